/* The Python module: what to decode as a plan, and blocks of Chrome-format events as columns. */

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "events.h"

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
    int count = few(fields, MOST_FIELDS);
    for (int i = 0, type; i < count; i++) {
        Field *field = &table->fields[i];
        if (!copy_pair(PyTuple_GetItem(fields, i), field->key, &field->size, COLUMN_TYPES, &type)) return false;
        field->type = (uint8_t)type;
        index_field(table);
    }
    return count >= 0;
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

static PyObject *decoded(const Plan *plan, const uint8_t *text, Py_ssize_t end) {
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder == NULL) return PyErr_NoMemory();
    bool sure;
    Py_BEGIN_ALLOW_THREADS /* the caller holds the text, and does not change it */
    sure = read_events(decoder, plan, text, (size_t)end);
    if (sure) order_groups(decoder);
    Py_END_ALLOW_THREADS
    PyObject *block = sure ? block_object(decoder) : Py_NewRef(Py_None);
    free_groups(decoder);
    free(decoder);
    return block;
}

/* The place and size of a text, bytes or a bytearray; NULL, with an exception, if it is neither. */
static const uint8_t *text_of(PyObject *text, Py_ssize_t *size) {
    char *bytes;
    if (PyByteArray_Check(text)) {
        *size = PyByteArray_Size(text);
        return (const uint8_t *)PyByteArray_AsString(text);
    }
    return PyBytes_AsStringAndSize(text, &bytes, size) < 0 ? NULL : (const uint8_t *)bytes;
}

static PyObject *decode(PyObject *module, PyObject *args) {
    PyObject *capsule, *text;
    Py_ssize_t end, size;
    (void)module;
    if (!PyArg_ParseTuple(args, "OOn:decode", &capsule, &text, &end)) return NULL;
    const Plan *plan = PyCapsule_GetPointer(capsule, PLAN_NAME);
    const uint8_t *bytes = plan == NULL ? NULL : text_of(text, &size);
    if (bytes == NULL) return NULL;
    if (end < 0 || end > size || end > LARGEST_BLOCK) Py_RETURN_NONE;
    return decoded(plan, bytes, end);
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
