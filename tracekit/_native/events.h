/* The events of a block, group by group, as columns.

   A block is decoded whole or not at all: `read_events` is false where an event holds anything that this code is not sure to
   read as the decoder in Python does. The text is only read, through the cursor of scan.h; memory grows with the number of
   events. */

#ifndef TRACEKIT_EVENTS_H
#define TRACEKIT_EVENTS_H

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
    uint32_t rows, first; /* how many events, and the number of the first one */
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
    Group *groups[MOST_GROUPS], *last; /* `last`: that of the event before, or of this one */
    uint8_t slots[GROUP_SLOTS];
    int group_count;
    uint32_t events;
    bool float_time, large_time; /* whether there is a start with a point, and one that a double does not hold exactly */
    bool ended;                  /* by the bracket that closes the array */
} Decoder;

static inline bool same(const uint8_t *begin, const uint8_t *end, const void *key, size_t size) {
    return (size_t)(end - begin) == size && same_bytes(begin, key, size);
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

/* Put a field that was added at the end of a table into its slots. */
static void index_field(Table *table) {
    const Field *field = &table->fields[table->field_count];
    unsigned slot = key_slot(field->key, field->size);
    while (table->slots[slot]) slot = (slot + 1) % KEY_SLOTS;
    table->slots[slot] = (uint8_t)++table->field_count;
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
    Group *last = decoder->last;
    if (last != NULL && same_text(&last->phase, phase) && same_text(&last->category, category)) return last;
    uint64_t hash = hash_of(phase->begin, phase->end, decoder->plan->seed);
    if (category->kind == TEXT) hash ^= hash_of(category->begin, category->end, decoder->plan->seed) * 3;
    unsigned slot = (unsigned)hash % GROUP_SLOTS;
    for (; decoder->slots[slot]; slot = (slot + 1) % GROUP_SLOTS) {
        Group *known = decoder->groups[decoder->slots[slot] - 1];
        if (same_text(&known->phase, phase) && same_text(&known->category, category)) return decoder->last = known;
    }
    if (decoder->group_count == MOST_GROUPS) return NULL;
    Group *group = calloc(1, sizeof *group);
    if (group == NULL) return NULL;
    group->phase = *phase;
    group->category = *category;
    group->table = table_of(decoder->plan, phase, category);
    decoder->groups[decoder->group_count++] = group;
    decoder->slots[slot] = (uint8_t)decoder->group_count;
    return decoder->last = group;
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
    if (group->rows == 0 && group->others.count == 0) group->first = decoder->events;
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

/* Read the events of a text up to its end, or up to the bracket that closes the array. All else of the decoder is zero. */
static bool read_events(Decoder *decoder, const Plan *plan, const uint8_t *text, size_t size) {
    Cursor *cursor = &decoder->cursor;
    decoder->plan = plan;
    decoder->text = text;
    *cursor = (Cursor){text, text + size};
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

/* Put the groups in the order of their first events. An event whose category stands twice may have made that of the first before its own. */
static void order_groups(Decoder *decoder) {
    for (int i = 1; i < decoder->group_count; i++) {
        Group *group = decoder->groups[i];
        int at = i;
        for (; at > 0 && decoder->groups[at - 1]->first > group->first; at--) decoder->groups[at] = decoder->groups[at - 1];
        decoder->groups[at] = group;
    }
}

static void free_groups(Decoder *decoder) {
    for (int i = 0; i < decoder->group_count; i++) {
        for (int j = 0; j < MOST_COLUMNS; j++) free_column(&decoder->groups[i]->columns[j]);
        free(decoder->groups[i]->others.items);
        free(decoder->groups[i]);
    }
    decoder->group_count = 0;
}

#endif
