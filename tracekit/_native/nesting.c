/* The Python module: passes over the rows of nested spans, which rise from parents to children, and over sets of intervals, which are in order:
so one pass is enough.

Arrays come as addresses and lengths; `tracekit/span_passes.py` and `interval_passes.py`, their only callers, see to types and sizes. A parent that does not
rise ends a pass with an error, so nothing is read or written beyond an array. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

typedef unsigned long long Address;

#define AT(type, address) ((type *)(uintptr_t)(address))

/* Numbers in as few bits as hold them. */
typedef struct {
    const void *rows;
    int width;
    Py_ssize_t count;
} Narrow;

typedef Narrow Parents;

static inline int64_t number_at(const Narrow *numbers, Py_ssize_t row) {
    switch (numbers->width) {
    case 1: return ((const int8_t *)numbers->rows)[row];
    case 2: return ((const int16_t *)numbers->rows)[row];
    case 4: return ((const int32_t *)numbers->rows)[row];
    default: return ((const int64_t *)numbers->rows)[row];
    }
}

static bool rise(const Parents *parents) {
    for (Py_ssize_t row = 0; row < parents->count; row++) {
        int64_t parent = number_at(parents, row);
        if (parent < -1 || parent >= row) return PyErr_SetString(PyExc_ValueError, "a parent stands behind its child"), false;
    }
    return true;
}

/* For each row the last one before it on its thread that ends no sooner: what lies between ended before. */
static PyObject *parents_of(PyObject *module, PyObject *args) {
    Address thread_at, end_at, out_at;
    Py_ssize_t count;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKnK:parents", &thread_at, &end_at, &count, &out_at)) return NULL;
    const int64_t *thread = AT(const int64_t, thread_at), *end = AT(const int64_t, end_at);
    int64_t *out = AT(int64_t, out_at);
    for (Py_ssize_t row = 0; row < count; row++) {
        int64_t before = row > 0 && thread[row - 1] == thread[row] ? row - 1 : -1;
        while (before >= 0 && end[before] < end[row]) before = out[before];
        out[row] = before;
    }
    Py_RETURN_NONE;
}

/* Where the answers go; the parents are read from the arguments. NULL with an error set. */
static int64_t *along(PyObject *args, const char *format, Parents *parents) {
    Address rows_at, out_at;
    if (!PyArg_ParseTuple(args, format, &rows_at, &parents->width, &parents->count, &out_at)) return NULL;
    parents->rows = AT(const void, rows_at);
    return rise(parents) ? AT(int64_t, out_at) : NULL;
}

/* For each row the first one behind all that lies in it. */
static PyObject *after(PyObject *module, PyObject *args) {
    Parents parents;
    (void)module;
    int64_t *out = along(args, "KinK:after", &parents);
    if (out == NULL) return NULL;
    for (Py_ssize_t row = 0; row < parents.count; row++) out[row] = row + 1;
    for (Py_ssize_t row = parents.count - 1; row >= 0; row--) {
        int64_t parent = number_at(&parents, row);
        if (parent >= 0 && out[parent] < out[row]) out[parent] = out[row];
    }
    Py_RETURN_NONE;
}

/* For each row how many lie around it. */
static PyObject *depth(PyObject *module, PyObject *args) {
    Parents parents;
    (void)module;
    int64_t *out = along(args, "KinK:depth", &parents);
    if (out == NULL) return NULL;
    for (Py_ssize_t row = 0; row < parents.count; row++) {
        int64_t parent = number_at(&parents, row);
        out[row] = parent < 0 ? 0 : out[parent] + 1;
    }
    Py_RETURN_NONE;
}

/* For each row itself if it is wanted (and `itself` counts), else the nearest wanted one around it, or -1. */
static PyObject *nearest(PyObject *module, PyObject *args) {
    Parents parents;
    Address rows_at, wanted_at, out_at;
    int itself;
    (void)module;
    if (!PyArg_ParseTuple(args, "KinKiK:nearest", &rows_at, &parents.width, &parents.count, &wanted_at, &itself, &out_at)) return NULL;
    parents.rows = AT(const void, rows_at);
    if (!rise(&parents)) return NULL;
    const uint8_t *wanted = AT(const uint8_t, wanted_at);
    int64_t *out = AT(int64_t, out_at);
    for (Py_ssize_t row = 0; row < parents.count; row++) {
        int64_t parent = number_at(&parents, row);
        if (itself) out[row] = wanted[row] ? row : parent < 0 ? -1 : out[parent];
        else out[row] = parent < 0 ? -1 : wanted[parent] ? parent : out[parent];
    }
    Py_RETURN_NONE;
}

/* The values in these rows, in 64 bits; -1 for a row below 0. */
static PyObject *take(PyObject *module, PyObject *args) {
    Narrow values;
    Address values_at, rows_at, out_at;
    Py_ssize_t number;
    (void)module;
    if (!PyArg_ParseTuple(args, "KinKnK:take", &values_at, &values.width, &values.count, &rows_at, &number, &out_at)) return NULL;
    values.rows = AT(const void, values_at);
    const int64_t *rows = AT(const int64_t, rows_at);
    int64_t *out = AT(int64_t, out_at);
    for (Py_ssize_t i = 0; i < number; i++) {
        if (rows[i] >= values.count) return PyErr_SetString(PyExc_IndexError, "a row lies behind the last one"), NULL;
        out[i] = rows[i] < 0 ? -1 : number_at(&values, (Py_ssize_t)rows[i]);
    }
    Py_RETURN_NONE;
}

typedef struct {
    const int64_t *thread, *start, *end;
    Py_ssize_t count;
} Spans;

static inline bool begun(const Spans *spans, Py_ssize_t row, int64_t thread, int64_t time) {
    if (spans->thread != NULL && spans->thread[row] != thread) return spans->thread[row] < thread;
    return spans->start[row] <= time;
}

/* How many spans begin up to a place; `known` of them do for certain. */
static Py_ssize_t begun_until(const Spans *spans, Py_ssize_t known, int64_t thread, int64_t time) {
    Py_ssize_t low = known, high = known;
    for (Py_ssize_t leap = 1; high < spans->count && begun(spans, high, thread, time); leap *= 2) {
        low = high + 1;
        high = leap < spans->count - high ? high + leap : spans->count;
    }
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (begun(spans, middle, thread, time)) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* For each place the innermost span that is open there, or -1; -2 - row where so many parents did not tell, and the search stands at that row. */
static PyObject *innermost(PyObject *module, PyObject *args) {
    Spans spans;
    Parents parents;
    Address thread_at, start_at, end_at, rows_at, places_at, times_at, out_at;
    Py_ssize_t places;
    int patience;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKKKinKKnKi:innermost", &thread_at, &start_at, &end_at, &rows_at, &parents.width, &spans.count, &places_at,
                          &times_at, &places, &out_at, &patience))
        return NULL;
    spans.thread = AT(const int64_t, thread_at), spans.start = AT(const int64_t, start_at), spans.end = AT(const int64_t, end_at);
    parents.rows = AT(const void, rows_at), parents.count = spans.count;
    if (!rise(&parents)) return NULL;
    const int64_t *thread = AT(const int64_t, places_at), *time = AT(const int64_t, times_at);
    int64_t *out = AT(int64_t, out_at);
    Py_ssize_t known = 0;
    for (Py_ssize_t i = 0; i < places; i++) {
        bool later = i > 0 && (thread[i] > thread[i - 1] || (thread[i] == thread[i - 1] && time[i] >= time[i - 1]));
        known = begun_until(&spans, later ? known : 0, thread[i], time[i]);
        int64_t row = known > 0 && spans.thread[known - 1] == thread[i] ? known - 1 : -1;
        int left = patience;
        while (row >= 0 && left > 0 && !(spans.end[row] > time[i] || spans.start[row] == time[i])) row = number_at(&parents, row), left--;
        out[i] = row >= 0 && left == 0 ? -2 - row : row;
    }
    Py_RETURN_NONE;
}

/* Whether a span overlaps one partly that began before it: whatever lies between a span and its parent must have ended. */
static PyObject *overlap(PyObject *module, PyObject *args) {
    Spans spans;
    Parents parents;
    Address thread_at, start_at, end_at, rows_at;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKKKin:overlap", &thread_at, &start_at, &end_at, &rows_at, &parents.width, &spans.count)) return NULL;
    spans.thread = AT(const int64_t, thread_at), spans.start = AT(const int64_t, start_at), spans.end = AT(const int64_t, end_at);
    parents.rows = AT(const void, rows_at), parents.count = spans.count;
    if (!rise(&parents)) return NULL;
    for (Py_ssize_t row = 1; row < spans.count; row++) {
        int64_t parent = number_at(&parents, row), before = spans.thread[row - 1] == spans.thread[row] ? row - 1 : -1;
        for (; before > parent; before = number_at(&parents, (Py_ssize_t)before))
            if (spans.end[before] > spans.start[row]) Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

/* The times at which one of the rows from `low` to `high`, those of one thread, begins or ends, and the innermost one that is open from then
on, or -1; how many there are. Spans of no length count as nothing; `ends` are the ends of all others, in order. */
static PyObject *moments(PyObject *module, PyObject *args) {
    Parents parents;
    Address start_at, end_at, rows_at, ends_at, times_at, out_at;
    Py_ssize_t low, high, number, found = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKKinnnKnKK:moments", &start_at, &end_at, &rows_at, &parents.width, &parents.count, &low, &high, &ends_at,
                          &number, &times_at, &out_at))
        return NULL;
    const int64_t *start = AT(const int64_t, start_at), *end = AT(const int64_t, end_at), *ends = AT(const int64_t, ends_at);
    int64_t *times = AT(int64_t, times_at), *out = AT(int64_t, out_at), current = -1;
    parents.rows = AT(const void, rows_at);
    for (Py_ssize_t row = low, ended = 0;; found++) {
        while (row < high && end[row] <= start[row]) row++;
        if (row >= high && ended >= number) break;
        int64_t time = row >= high || (ended < number && ends[ended] < start[row]) ? ends[ended] : start[row];
        for (; row < high && start[row] <= time; row++)
            if (end[row] > start[row]) current = row;
        while (ended < number && ends[ended] <= time) ended++;
        while (current >= 0 && end[current] <= time) {
            int64_t around = number_at(&parents, (Py_ssize_t)current);
            if (around < -1 || around >= current) return PyErr_SetString(PyExc_ValueError, "a parent stands behind its child"), NULL;
            current = around;
        }
        times[found] = time, out[found] = current;
    }
    return PyLong_FromSsize_t(found);
}

/* Intervals are spans without a thread, in order of their starts; in a normal set no two of them touch. */
typedef struct {
    int64_t *start, *end;
    Py_ssize_t count;
} Found;

static inline void add(Found *found, int64_t start, int64_t end) {
    if (start >= end) return;
    found->start[found->count] = start;
    found->end[found->count++] = end;
}

/* Two lists of intervals, and where the answers go, of which there are at most as many as there are intervals. */
static bool two_sets(PyObject *args, const char *format, Spans *one, Spans *other, Found *found) {
    Address at[6];
    if (!PyArg_ParseTuple(args, format, &at[0], &at[1], &one->count, &at[2], &at[3], &other->count, &at[4], &at[5])) return false;
    one->thread = other->thread = NULL;
    one->start = AT(const int64_t, at[0]), one->end = AT(const int64_t, at[1]);
    other->start = AT(const int64_t, at[2]), other->end = AT(const int64_t, at[3]);
    found->start = AT(int64_t, at[4]), found->end = AT(int64_t, at[5]), found->count = 0;
    return true;
}

/* The union of two lists of intervals, which may overlap, touch and be empty; -1 where one of them is out of order. */
static PyObject *joined(PyObject *module, PyObject *args) {
    Spans one, other;
    Found found;
    (void)module;
    if (!two_sets(args, "KKnKKnKK:joined", &one, &other, &found)) return NULL;
    for (Py_ssize_t i = 0, j = 0; i < one.count || j < other.count;) {
        bool first = j >= other.count || (i < one.count && one.start[i] <= other.start[j]);
        const Spans *from = first ? &one : &other;
        Py_ssize_t row = first ? i++ : j++;
        int64_t start = from->start[row], end = from->end[row];
        if (row > 0 && start < from->start[row - 1]) return PyLong_FromLong(-1);
        if (start >= end) continue;
        if (found.count > 0 && start <= found.end[found.count - 1]) {
            if (end > found.end[found.count - 1]) found.end[found.count - 1] = end;
        } else add(&found, start, end);
    }
    return PyLong_FromSsize_t(found.count);
}

/* What two normal sets have in common. */
static PyObject *common(PyObject *module, PyObject *args) {
    Spans one, other;
    Found found;
    (void)module;
    if (!two_sets(args, "KKnKKnKK:common", &one, &other, &found)) return NULL;
    for (Py_ssize_t i = 0, j = 0; i < one.count && j < other.count;) {
        int64_t start = one.start[i] > other.start[j] ? one.start[i] : other.start[j];
        if (one.end[i] < other.end[j]) add(&found, start, one.end[i++]);
        else add(&found, start, other.end[j++]);
    }
    return PyLong_FromSsize_t(found.count);
}

/* What a normal set has and another one has not. */
static PyObject *without(PyObject *module, PyObject *args) {
    Spans one, other;
    Found found;
    (void)module;
    if (!two_sets(args, "KKnKKnKK:without", &one, &other, &found)) return NULL;
    for (Py_ssize_t i = 0, j = 0; i < one.count; i++) {
        int64_t start = one.start[i];
        for (; j < other.count && other.start[j] < one.end[i]; j++) {
            add(&found, start, other.start[j]);
            if (other.end[j] > start) start = other.end[j];
            if (start >= one.end[i]) break;
        }
        add(&found, start, one.end[i]);
    }
    return PyLong_FromSsize_t(found.count);
}

/* How much of a normal set lies before each point; `until` is how much lies before each of its intervals, and in all. */
static PyObject *covered(PyObject *module, PyObject *args) {
    Spans set;
    Address start_at, end_at, until_at, points_at, out_at;
    Py_ssize_t number, low = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "KKKnKnK:covered", &start_at, &end_at, &until_at, &set.count, &points_at, &number, &out_at)) return NULL;
    set.thread = NULL, set.start = AT(const int64_t, start_at), set.end = AT(const int64_t, end_at);
    const int64_t *until = AT(const int64_t, until_at), *points = AT(const int64_t, points_at);
    int64_t *out = AT(int64_t, out_at);
    for (Py_ssize_t i = 0; i < number; i++) {
        low = begun_until(&set, i > 0 && points[i] >= points[i - 1] ? low : 0, 0, points[i]);
        out[i] = until[low] - (low > 0 && set.end[low - 1] > points[i] ? set.end[low - 1] - points[i] : 0);
    }
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"parents", parents_of, METH_VARARGS, "parents(thread, end, count, out)"},
    {"after", after, METH_VARARGS, "after(parents, width, count, out)"},
    {"depth", depth, METH_VARARGS, "depth(parents, width, count, out)"},
    {"nearest", nearest, METH_VARARGS, "nearest(parents, width, count, wanted, itself, out)"},
    {"take", take, METH_VARARGS, "take(values, width, count, rows, number, out)"},
    {"innermost", innermost, METH_VARARGS, "innermost(thread, start, end, parents, width, count, places, times, number, out, patience)"},
    {"overlap", overlap, METH_VARARGS, "overlap(thread, start, end, parents, width, count)"},
    {"moments", moments, METH_VARARGS, "moments(start, end, parents, width, count, low, high, ends, number, times, out)"},
    {"joined", joined, METH_VARARGS, "joined(starts, ends, count, more_starts, more_ends, more, out_starts, out_ends)"},
    {"common", common, METH_VARARGS, "common(starts, ends, count, other_starts, other_ends, others, out_starts, out_ends)"},
    {"without", without, METH_VARARGS, "without(starts, ends, count, other_starts, other_ends, others, out_starts, out_ends)"},
    {"covered", covered, METH_VARARGS, "covered(starts, ends, until, count, points, number, out)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "nesting", "Passes over the rows of nested spans, and over sets of intervals.", 0, METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_nesting(void) { return PyModuleDef_Init(&MODULE); }
