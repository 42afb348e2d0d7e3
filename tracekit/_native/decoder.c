/* Decodes blocks of Chrome-format events to columns.

   A block is decoded whole or not at all: where an event holds anything that this code is not sure to read as the decoder in
   Python does, `decode` gives None, and the block is decoded there. The text is only read, through the cursor of scan.h; memory
   grows with the number of events of one block. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "column.h"

enum { MOST_TABLES = 8, MOST_FIELDS = 32, MOST_CATEGORIES = 64, LONGEST_KEY = 48, KEY_SLOTS = 128 };
enum { MOST_GROUPS = 200, GROUP_SLOTS = 512, LARGEST_BLOCK = 1 << 30 };

typedef enum { PHASE, CATEGORY, NAME, PROCESS, THREAD, START, DURATION, FLOW, ARGUMENTS, EVENT_KEYS, UNKNOWN } EventKey;

/* The columns of an event that does not belong to its arguments come first in each table. */
static const EventKey COMMON[] = {NAME, START, DURATION, PROCESS, THREAD};
static const ColumnType COMMON_TYPES[] = {LABEL, TIME, TIME, IDENTITY, IDENTITY};
enum { COMMON_COLUMNS = 5, MOST_COLUMNS = COMMON_COLUMNS + MOST_FIELDS, NO_TABLE = -1 };

typedef struct {
    uint8_t key[LONGEST_KEY];
    uint8_t size, type;
} Field;

typedef struct {
    Field fields[MOST_FIELDS];
    uint8_t slots[KEY_SLOTS]; /* numbers of fields plus 1 */
    int field_count;
} Table;

typedef struct {
    uint8_t key[LONGEST_KEY];
    uint8_t size;
    int8_t table;
} Category;

/* What to decode. It does not change once it is made. */
typedef struct {
    Table tables[MOST_TABLES];
    Category categories[MOST_CATEGORIES]; /* of complete events */
    int table_count, category_count;
    Category instant; /* the name of the instant events that have a table */
    uint64_t seed;
} Plan;

/* The events of one phase and category. */
typedef struct {
    Token phase, category;
    uint32_t rows;
    int table;
    Column columns[MOST_COLUMNS];
    Array others; /* Place: events that no table takes */
} Group;

typedef struct {
    const Plan *plan;
    const uint8_t *text;
    Cursor cursor;
    Token event[EVENT_KEYS];
    Token arguments[MOST_FIELDS];
    uint32_t seen;     /* fields of `arguments` that the event has */
    const Table *read; /* by which `arguments` were read; NULL if they were not */
    Group *groups[MOST_GROUPS];
    uint8_t slots[GROUP_SLOTS];
    int group_count;
    uint32_t events;
    bool float_time, large_time; /* whether there is a start with a point, and one that a double does not hold exactly */
    bool ended;                  /* by the bracket that closes the array */
} Decoder;

/* -- one event ---------------------------------------------------------------------------------------- */

static inline bool same(const uint8_t *begin, const uint8_t *end, const void *key, size_t size) {
    return (size_t)(end - begin) == size && memcmp(begin, key, size) == 0;
}

static EventKey event_key(const Token *key) {
    const uint8_t *begin = key->begin, *end = key->end;
    switch (end - begin) {
    case 2: return same(begin, end, "ph", 2) ? PHASE : same(begin, end, "ts", 2) ? START : same(begin, end, "id", 2) ? FLOW : UNKNOWN;
    case 3:
        return same(begin, end, "cat", 3)   ? CATEGORY
               : same(begin, end, "pid", 3) ? PROCESS
               : same(begin, end, "tid", 3) ? THREAD
               : same(begin, end, "dur", 3) ? DURATION
                                            : UNKNOWN;
    case 4: return same(begin, end, "name", 4) ? NAME : same(begin, end, "args", 4) ? ARGUMENTS : UNKNOWN;
    default: return UNKNOWN;
    }
}

static inline unsigned key_slot(const uint8_t *begin, size_t size) {
    return ((unsigned)size * 9 + begin[0] * 5u + begin[size - 1] * 3u + begin[size / 2]) % KEY_SLOTS;
}

/* The number of the field of this key; −1 if it is not wanted. */
static inline int field_of(const Table *table, const Token *key) {
    size_t size = (size_t)(key->end - key->begin);
    if (size == 0 || size > LONGEST_KEY) return -1;
    for (unsigned slot = key_slot(key->begin, size); table->slots[slot]; slot = (slot + 1) % KEY_SLOTS) {
        const Field *field = &table->fields[table->slots[slot] - 1];
        if (same(key->begin, key->end, field->key, field->size)) return table->slots[slot] - 1;
    }
    return -1;
}

/* Read a key and its colon; false also if it is written with escapes. */
static inline bool read_key(Cursor *cursor, Token *key) {
    return skip_space(cursor) && *cursor->at == '"' && read_text(cursor, key) && !key->escaped && skip_byte(cursor, ':');
}

/* After a value: go behind the comma (`*more` is true) or behind the brace. */
static inline bool read_separator(Cursor *cursor, bool *more) {
    if (!skip_space(cursor)) return false;
    uint8_t next = *cursor->at++;
    *more = next == ',';
    return *more || next == '}';
}

/* Whether the decoder in Python takes such a value for a field of this type. */
static inline bool is_of_type(const Token *value, ColumnType type) {
    if (type == RAW) return true;
    if (value->kind == NUMBER) return type != LABEL;
    return value->kind == TEXT || value->kind == NONE;
}

/* Read the arguments, whose brace is next, by this table. */
static bool read_arguments(Decoder *decoder, const Table *table) {
    Cursor *cursor = &decoder->cursor;
    Token key, unwanted;
    decoder->seen = 0;
    decoder->read = table;
    cursor->at++;
    if (!skip_space(cursor)) return false;
    if (*cursor->at == '}') return cursor->at++, true;
    for (bool more = true; more;) {
        if (!read_key(cursor, &key)) return false;
        int field = field_of(table, &key);
        if (!read_value(cursor, field < 0 ? &unwanted : &decoder->arguments[field])) return false;
        if (field >= 0) {
            if (!is_of_type(&decoder->arguments[field], table->fields[field].type)) return false;
            decoder->seen |= UINT32_C(1) << field;
        }
        if (!read_separator(cursor, &more)) return false;
    }
    return true;
}

static int table_of(const Plan *plan, const Token *phase, const Token *category) {
    if (phase->end - phase->begin != 1) return NO_TABLE;
    uint8_t letter = *phase->begin;
    if (letter == 'i' || letter == 'I') return plan->instant.table;
    if (letter != 'X' || category->kind != TEXT) return NO_TABLE;
    for (int i = 0; i < plan->category_count; i++) {
        const Category *known = &plan->categories[i];
        if (same(category->begin, category->end, known->key, known->size)) return known->table;
    }
    return NO_TABLE;
}

static inline bool same_text(const Token *one, const Token *other) {
    if (one->kind != TEXT || other->kind != TEXT) return one->kind != TEXT && other->kind != TEXT;
    return same(one->begin, one->end, other->begin, (size_t)(other->end - other->begin));
}

/* The group of the event whose phase and category were read; NULL when memory is out or there are too many. */
static Group *group_of(Decoder *decoder) {
    const Token *phase = &decoder->event[PHASE], *category = &decoder->event[CATEGORY];
    uint64_t hash = hash_of(phase->begin, phase->end, decoder->plan->seed);
    if (category->kind == TEXT) hash ^= hash_of(category->begin, category->end, decoder->plan->seed) * 3;
    unsigned slot = (unsigned)hash % GROUP_SLOTS;
    for (; decoder->slots[slot]; slot = (slot + 1) % GROUP_SLOTS) {
        Group *known = decoder->groups[decoder->slots[slot] - 1];
        if (same_text(&known->phase, phase) && same_text(&known->category, category)) return known;
    }
    if (decoder->group_count == MOST_GROUPS) return NULL;
    Group *group = calloc(1, sizeof *group);
    if (group == NULL) return NULL;
    group->phase = *phase;
    group->category = *category;
    group->table = table_of(decoder->plan, phase, category);
    decoder->groups[decoder->group_count++] = group;
    decoder->slots[slot] = (uint8_t)decoder->group_count;
    return group;
}

/* The table by which the arguments of a group are read; NULL if they are not. */
static inline const Table *arguments_of(const Decoder *decoder, const Group *group) {
    if (group->table == NO_TABLE || decoder->plan->tables[group->table].field_count == 0) return NULL;
    return &decoder->plan->tables[group->table];
}

/* Read the value of a key of an event. Arguments are read by their table at once where the category stands before them. */
static bool read_member(Decoder *decoder, EventKey key) {
    Cursor *cursor = &decoder->cursor;
    Token *value = &decoder->event[key];
    if (key != ARGUMENTS) {
        if (!read_value(cursor, value)) return false;
        if (key == PHASE) return value->kind == TEXT && !value->escaped;
        if (key == CATEGORY) return value->kind == NONE || (value->kind == TEXT && !value->escaped);
        return is_of_type(value, key == NAME ? LABEL : INTEGER);
    }
    decoder->read = NULL;
    if (!skip_space(cursor)) return false;
    if (*cursor->at == '{' && decoder->event[PHASE].kind != ABSENT && decoder->event[CATEGORY].kind != ABSENT) {
        const Group *group = group_of(decoder);
        if (group == NULL) return false;
        const Table *table = arguments_of(decoder, group);
        if (table != NULL) {
            value->kind = OTHER;
            value->begin = cursor->at;
            bool whole = read_arguments(decoder, table);
            value->end = cursor->at;
            return whole;
        }
    }
    return read_value(cursor, value);
}

/* Whether times of this block lose their ns as doubles; false also for a start of which that is not clear. */
static bool note_start(Decoder *decoder, const Token *start) {
    if (start->kind != NUMBER) return true;
    const uint8_t *at = start->begin + (*start->begin == '-');
    int64_t whole = 0;
    int digits = 0;
    for (; at < start->end && is_digit(*at); at++, digits++) {
        if (digits == SAFE_DIGITS) return false;
        whole = whole * 10 + (*at - '0');
    }
    if (start->exponent || (whole == EXACT_FLOAT_US - 1 && start->fraction)) return false;
    decoder->float_time |= start->fraction;
    decoder->large_time |= whole >= EXACT_FLOAT_US;
    return true;
}

static bool put_row(Decoder *decoder, Group *group, const Table *table) {
    uint64_t seed = decoder->plan->seed;
    uint32_t row = group->rows++;
    for (int i = 0; i < COMMON_COLUMNS; i++) {
        const Token *value = &decoder->event[COMMON[i]];
        if (value->kind <= NONE) continue;
        if (!put(&group->columns[i], COMMON_TYPES[i], row, value, decoder->text, seed, COMMON[i] == DURATION)) return false;
    }
    if (table->field_count == 0 || decoder->event[ARGUMENTS].kind == ABSENT) return true;
    for (int i = 0; i < table->field_count; i++) {
        const Token *value = &decoder->arguments[i];
        ColumnType type = table->fields[i].type;
        if (!(decoder->seen >> i & 1) || (value->kind == NONE && type != RAW)) continue;
        if (!put(&group->columns[COMMON_COLUMNS + i], type, row, value, decoder->text, seed, false)) return false;
    }
    return true;
}

/* Put the event that was read, which began here, into its group. */
static bool put_event(Decoder *decoder, const uint8_t *begin) {
    if (decoder->event[PHASE].kind == ABSENT) return false;
    Group *group = group_of(decoder);
    if (group == NULL || !note_start(decoder, &decoder->event[START])) return false;
    const Token *name = &decoder->event[NAME], *arguments = &decoder->event[ARGUMENTS];
    const Category *instant = &decoder->plan->instant;
    bool in_table = group->table != NO_TABLE;
    if (in_table && *group->phase.begin != 'X') {
        if (name->kind == TEXT && name->escaped) return false;
        in_table = name->kind == TEXT && same(name->begin, name->end, instant->key, instant->size);
    }
    if (!in_table) {
        Place *place = appended(&group->others, sizeof *place);
        if (place == NULL) return false;
        *place = (Place){0, (uint32_t)(begin - decoder->text), (uint32_t)(decoder->cursor.at - decoder->text)};
        return true;
    }
    const Table *table = &decoder->plan->tables[group->table];
    if (table->field_count > 0 && arguments->kind != ABSENT && decoder->read != table) {
        /* They stood before the category, or are no object. */
        Cursor behind = decoder->cursor;
        if (arguments->kind != OTHER || *arguments->begin != '{') return false;
        decoder->cursor = (Cursor){arguments->begin, arguments->end};
        if (!read_arguments(decoder, table)) return false;
        decoder->cursor = behind;
    }
    return put_row(decoder, group, table);
}

/* Read the event whose brace is next. */
static bool read_event(Decoder *decoder) {
    Cursor *cursor = &decoder->cursor;
    const uint8_t *begin = cursor->at++;
    Token key, unknown;
    for (int i = 0; i < EVENT_KEYS; i++) decoder->event[i].kind = ABSENT;
    decoder->read = NULL;
    if (!skip_space(cursor)) return false;
    bool more = *cursor->at != '}';
    cursor->at += !more;
    while (more) {
        if (!read_key(cursor, &key)) return false;
        EventKey known = event_key(&key);
        if (!(known == UNKNOWN ? read_value(cursor, &unknown) : read_member(decoder, known))) return false;
        if (!read_separator(cursor, &more)) return false;
    }
    return put_event(decoder, begin);
}

/* Read events up to the end of the text, or up to the bracket that closes the array. */
static bool read_events(Decoder *decoder) {
    Cursor *cursor = &decoder->cursor;
    if (!is_utf8(cursor->at, cursor->end) || !skip_space(cursor)) return false;
    while (*cursor->at != ']') {
        if (*cursor->at != '{' || !read_event(decoder)) return false;
        decoder->events++;
        if (!skip_space(cursor)) return true;
        if (*cursor->at == ']') break;
        if (*cursor->at++ != ',' || !skip_space(cursor) || *cursor->at == ']') return false;
    }
    cursor->at++;
    decoder->ended = true;
    return true;
}

static void free_groups(Decoder *decoder) {
    for (int i = 0; i < decoder->group_count; i++) {
        for (int j = 0; j < MOST_COLUMNS; j++) free_column(&decoder->groups[i]->columns[j]);
        free(decoder->groups[i]->others.items);
        free(decoder->groups[i]);
    }
    decoder->group_count = 0;
}

/* -- what Python gets --------------------------------------------------------------------------------- */

static PyObject *bytes_of(const void *at, size_t size) { return PyBytes_FromStringAndSize(at, (Py_ssize_t)size); }

static PyObject *bytes_or_none(const Token *text) {
    if (text->kind != TEXT) Py_RETURN_NONE;
    return bytes_of(text->begin, (size_t)(text->end - text->begin));
}

/* The distinct texts of a column as one JSON list. */
static PyObject *label_list(const Array *distinct) {
    const Distinct *items = distinct->items;
    size_t size = 2;
    for (uint32_t i = 0; i < distinct->count; i++) size += (size_t)(items[i].end - items[i].begin) + 2 + (i > 0);
    PyObject *list = bytes_of(NULL, size);
    if (list == NULL) return NULL;
    char *at = PyBytes_AsString(list);
    *at++ = '[';
    for (uint32_t i = 0; i < distinct->count; i++) {
        size_t length = (size_t)(items[i].end - items[i].begin);
        if (i > 0) *at++ = ',';
        *at++ = '"';
        memcpy(at, items[i].begin, length);
        at += length;
        *at++ = '"';
    }
    *at = ']';
    return list;
}

/* The distinct values of a column as they are written. */
static PyObject *raw_list(const Array *distinct) {
    const Distinct *items = distinct->items;
    PyObject *list = PyList_New((Py_ssize_t)distinct->count);
    for (uint32_t i = 0; list != NULL && i < distinct->count; i++) {
        PyObject *text = bytes_of(items[i].begin, (size_t)(items[i].end - items[i].begin));
        if (text == NULL || PyList_SetItem(list, (Py_ssize_t)i, text) < 0) Py_CLEAR(list);
    }
    return list;
}

/* (values, rows with a value, odd values, distinct texts); None for a column without any. */
static PyObject *column_object(const Column *column, ColumnType type) {
    static const size_t SIZES[] = {8, 8, 8, 8, 4, 4};
    if (column->values.count == 0 && column->odd.count == 0) Py_RETURN_NONE;
    PyObject *values = bytes_of(column->values.items, column->values.count * SIZES[type]);
    PyObject *odd = bytes_of(column->odd.items, column->odd.count * sizeof(Place));
    PyObject *texts = type == LABEL ? label_list(&column->texts.distinct) : type == RAW ? raw_list(&column->texts.distinct) : Py_NewRef(Py_None);
    if (values == NULL || odd == NULL || texts == NULL) {
        Py_XDECREF(values), Py_XDECREF(odd), Py_XDECREF(texts);
        return NULL;
    }
    return Py_BuildValue("(NINN)", values, (unsigned int)column->filled, odd, texts);
}

/* (phase, category, table, rows, columns, other events). */
static PyObject *group_object(const Plan *plan, const Group *group) {
    int fields = group->table == NO_TABLE ? -COMMON_COLUMNS : plan->tables[group->table].field_count;
    PyObject *columns = PyTuple_New(COMMON_COLUMNS + fields);
    for (int i = 0; columns != NULL && i < COMMON_COLUMNS + fields; i++) {
        ColumnType type = i < COMMON_COLUMNS ? COMMON_TYPES[i] : plan->tables[group->table].fields[i - COMMON_COLUMNS].type;
        PyObject *column = column_object(&group->columns[i], type);
        if (column == NULL || PyTuple_SetItem(columns, i, column) < 0) Py_CLEAR(columns);
    }
    PyObject *phase = bytes_or_none(&group->phase), *category = bytes_or_none(&group->category);
    PyObject *others = bytes_of(group->others.items, group->others.count * sizeof(Place));
    if (columns == NULL || phase == NULL || category == NULL || others == NULL) {
        Py_XDECREF(columns), Py_XDECREF(phase), Py_XDECREF(category), Py_XDECREF(others);
        return NULL;
    }
    return Py_BuildValue("(NNiINN)", phase, category, group->table, (unsigned int)group->rows, columns, others);
}

static PyObject *block_object(const Decoder *decoder) {
    PyObject *groups = PyList_New(decoder->group_count);
    for (int i = 0; groups != NULL && i < decoder->group_count; i++) {
        PyObject *group = group_object(decoder->plan, decoder->groups[i]);
        if (group == NULL || PyList_SetItem(groups, i, group) < 0) Py_CLEAR(groups);
    }
    if (groups == NULL) return NULL;
    return Py_BuildValue(
        "(nNNIN)", (Py_ssize_t)(decoder->cursor.at - decoder->text), PyBool_FromLong(decoder->ended),
        PyBool_FromLong(decoder->float_time && decoder->large_time), (unsigned int)decoder->events, groups
    );
}

/* -- the module --------------------------------------------------------------------------------------- */

static const char PLAN_NAME[] = "tracekit._native.decoder.plan";

static void free_plan(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, PLAN_NAME)); }

/* Copy a key; false, with an exception, if it is empty or too long. */
static bool copy_key(PyObject *from, uint8_t *key, uint8_t *size) {
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(from, &bytes, &length) < 0) return false;
    if (length < 1 || length > LONGEST_KEY) return PyErr_SetString(PyExc_ValueError, "a key is empty or too long"), false;
    memcpy(key, bytes, (size_t)length);
    *size = (uint8_t)length;
    return true;
}

/* Take a key and a number from 0 to below `most` from a pair. */
static bool copy_pair(PyObject *pair, uint8_t *key, uint8_t *size, int most, int *number) {
    PyObject *from;
    if (!PyTuple_Check(pair)) return PyErr_SetString(PyExc_TypeError, "no pair"), false;
    if (!PyArg_ParseTuple(pair, "Si", &from, number)) return false;
    if (*number < 0 || *number >= most) return PyErr_SetString(PyExc_ValueError, "a number is out of range"), false;
    return copy_key(from, key, size);
}

/* The number of items of a tuple; −1, with an exception, if it is none or has too many. */
static int few(PyObject *tuple, int most) {
    if (!PyTuple_Check(tuple)) return PyErr_SetString(PyExc_TypeError, "no tuple"), -1;
    Py_ssize_t count = PyTuple_Size(tuple);
    if (count > most) return PyErr_SetString(PyExc_ValueError, "too many items"), -1;
    return (int)count;
}

static bool fill_table(Table *table, PyObject *fields) {
    table->field_count = few(fields, MOST_FIELDS);
    for (int i = 0, type; i < table->field_count; i++) {
        Field *field = &table->fields[i];
        if (!copy_pair(PyTuple_GetItem(fields, i), field->key, &field->size, COLUMN_TYPES, &type)) return false;
        field->type = (uint8_t)type;
        unsigned slot = key_slot(field->key, field->size);
        while (table->slots[slot]) slot = (slot + 1) % KEY_SLOTS;
        table->slots[slot] = (uint8_t)(i + 1);
    }
    return table->field_count >= 0;
}

static bool fill_plan(Plan *plan, PyObject *tables, PyObject *categories, PyObject *instant) {
    int table;
    plan->table_count = few(tables, MOST_TABLES);
    for (int i = 0; i < plan->table_count; i++) {
        if (!fill_table(&plan->tables[i], PyTuple_GetItem(tables, i))) return false;
    }
    plan->category_count = plan->table_count < 0 ? -1 : few(categories, MOST_CATEGORIES);
    for (int i = 0; i < plan->category_count; i++) {
        Category *category = &plan->categories[i];
        if (!copy_pair(PyTuple_GetItem(categories, i), category->key, &category->size, plan->table_count, &table)) return false;
        category->table = (int8_t)table;
    }
    if (plan->category_count < 0 || !copy_pair(instant, plan->instant.key, &plan->instant.size, plan->table_count, &table)) return false;
    plan->instant.table = (int8_t)table;
    return true;
}

static PyObject *make_plan(PyObject *module, PyObject *args) {
    PyObject *tables, *categories, *instant;
    unsigned long long seed;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOOK:plan", &tables, &categories, &instant, &seed)) return NULL;
    Plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) return PyErr_NoMemory();
    plan->seed = seed;
    PyObject *capsule = fill_plan(plan, tables, categories, instant) ? PyCapsule_New(plan, PLAN_NAME, free_plan) : NULL;
    if (capsule == NULL) free(plan);
    return capsule;
}

static PyObject *decode(PyObject *module, PyObject *args) {
    PyObject *capsule, *text;
    Py_ssize_t end, size;
    char *bytes;
    (void)module;
    if (!PyArg_ParseTuple(args, "OSn:decode", &capsule, &text, &end)) return NULL;
    const Plan *plan = PyCapsule_GetPointer(capsule, PLAN_NAME);
    if (plan == NULL || PyBytes_AsStringAndSize(text, &bytes, &size) < 0) return NULL;
    if (end < 0 || end > size || end > LARGEST_BLOCK) Py_RETURN_NONE;
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder == NULL) return PyErr_NoMemory();
    bool sure;
    Py_BEGIN_ALLOW_THREADS /* the text is held by the caller's tuple, and cannot change */
    decoder->plan = plan;
    decoder->text = (const uint8_t *)bytes;
    decoder->cursor = (Cursor){decoder->text, decoder->text + end};
    sure = read_events(decoder);
    Py_END_ALLOW_THREADS
    PyObject *block = sure ? block_object(decoder) : Py_NewRef(Py_None);
    free_groups(decoder);
    free(decoder);
    return block;
}

static PyMethodDef METHODS[] = {
    {"plan", make_plan, METH_VARARGS, "plan(tables, categories, instant, seed): what `decode` reads."},
    {"decode", decode, METH_VARARGS, "decode(plan, text, end): the columns of the events of text[:end]; None where that is not sure."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "decoder", "Blocks of Chrome-format events as columns.", 0, METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_decoder(void) { return PyModuleDef_Init(&MODULE); }
