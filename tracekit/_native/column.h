/* Columns that grow: numbers with a mark for null, and texts as numbers of the distinct ones.

   A value of which this code is not sure stays null here and is kept as "odd", with its place in the text, for Python to read.
   Every function returns false when memory is out. */

#ifndef TRACEKIT_COLUMN_H
#define TRACEKIT_COLUMN_H

#include "scan.h"

#include <stdlib.h>

enum { LONGEST_PROBE = 256 };

typedef enum { TIME, IDENTITY, INTEGER, REAL, LABEL, RAW, COLUMN_TYPES } ColumnType;

#define NO_INTEGER INT64_MIN
#define NO_CODE UINT32_MAX

static const int64_t LATEST_NS = INT64_C(3000000000000000000);
static const int64_t EXACT_FLOAT_US = INT64_C(1) << 43;
static const int64_t POWERS[SAFE_DIGITS + 1] = {
    INT64_C(1), INT64_C(10), INT64_C(100), INT64_C(1000), INT64_C(10000), INT64_C(100000), INT64_C(1000000), INT64_C(10000000),
    INT64_C(100000000), INT64_C(1000000000), INT64_C(10000000000), INT64_C(100000000000), INT64_C(1000000000000),
    INT64_C(10000000000000), INT64_C(100000000000000), INT64_C(1000000000000000), INT64_C(10000000000000000),
    INT64_C(100000000000000000), INT64_C(1000000000000000000),
};

typedef struct {
    void *items;
    uint32_t count, capacity;
} Array;

/* Room for one more item of this size at the end; NULL when memory is out. */
static inline void *appended(Array *array, size_t size) {
    if (array->count == array->capacity) {
        if (array->capacity > UINT32_MAX / 2) return NULL;
        uint32_t capacity = array->capacity ? array->capacity * 2 : 64;
        if (capacity > SIZE_MAX / size) return NULL;
        void *items = realloc(array->items, capacity * size);
        if (items == NULL) return NULL;
        array->items = items;
        array->capacity = capacity;
    }
    return (uint8_t *)array->items + (size_t)array->count++ * size;
}

/* Bytes from `begin` to `end` of the text, in `row`. */
typedef struct {
    uint32_t row, begin, end;
} Place;

typedef struct {
    uint64_t hash;
    const uint8_t *begin, *end;
} Distinct;

/* The distinct texts in the order of their first appearance; the slots hold their numbers plus 1. */
typedef struct {
    Array distinct;
    uint32_t *slots;
    uint32_t slot_count; /* a power of two */
} Dictionary;

typedef struct {
    Array values; /* int64_t, double or uint32_t, by type; rows beyond its end are null */
    Array odd;    /* Place */
    Dictionary texts;
    uint32_t filled; /* rows with a value */
} Column;

static void free_column(Column *column) {
    free(column->values.items);
    free(column->odd.items);
    free(column->texts.distinct.items);
    free(column->texts.slots);
}

static inline uint64_t mixed(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
    __extension__ unsigned __int128 product = (__extension__(unsigned __int128) a) * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
    uint64_t low = (a & UINT32_MAX) * (b & UINT32_MAX), high = (a >> 32) * (b >> 32);
    uint64_t cross = (a >> 32) * (b & UINT32_MAX) + (low >> 32), other = (a & UINT32_MAX) * (b >> 32);
    return (low ^ (other << 32)) ^ (high + (cross >> 32)) ^ (cross << 32);
#endif
}

/* A hash that nobody who does not know the seed can aim at. */
static inline uint64_t hash_of(const uint8_t *at, const uint8_t *end, uint64_t seed) {
    size_t size = (size_t)(end - at);
    uint64_t hash = mixed(seed ^ size, UINT64_C(0x9E3779B97F4A7C15)), chunk;
    for (; end - at > 8; at += 8) {
        memcpy(&chunk, at, 8);
        hash = mixed(hash ^ chunk, UINT64_C(0xD6E8FEB86659FD93) ^ seed);
    }
    chunk = 0;
    memcpy(&chunk, at, (size_t)(end - at));
    /* Twice, since with some seeds the products of texts that count up lie in a row. */
    return mixed(mixed(hash ^ chunk, UINT64_C(0xA0761D6478BD642F) ^ seed), UINT64_C(0xE7037ED1A0B428DB));
}

static bool rehash(Dictionary *texts) {
    uint32_t count = texts->slot_count ? texts->slot_count * 2 : 64;
    if (count < texts->slot_count) return false;
    uint32_t *slots = calloc(count, sizeof *slots);
    if (slots == NULL) return false;
    const Distinct *distinct = texts->distinct.items;
    for (uint32_t i = 0; i < texts->distinct.count; i++) {
        uint32_t slot = (uint32_t)distinct[i].hash & (count - 1);
        while (slots[slot]) slot = (slot + 1) & (count - 1);
        slots[slot] = i + 1;
    }
    free(texts->slots);
    texts->slots = slots;
    texts->slot_count = count;
    return true;
}

/* The number of a text, which is added if it is new; NO_CODE when memory is out or a search would take too long. */
static uint32_t code_of(Dictionary *texts, const uint8_t *begin, const uint8_t *end, uint64_t seed) {
    if (texts->distinct.count >= texts->slot_count / 2 && !rehash(texts)) return NO_CODE;
    uint64_t hash = hash_of(begin, end, seed);
    uint32_t mask = texts->slot_count - 1, slot = (uint32_t)hash & mask;
    size_t size = (size_t)(end - begin);
    for (int probes = 0; texts->slots[slot]; slot = (slot + 1) & mask) {
        uint32_t code = texts->slots[slot] - 1;
        const Distinct *known = (const Distinct *)texts->distinct.items + code;
        if (known->hash == hash && (size_t)(known->end - known->begin) == size && same_bytes(known->begin, begin, size)) return code;
        if (++probes > LONGEST_PROBE) return NO_CODE;
    }
    Distinct *added = appended(&texts->distinct, sizeof *added);
    if (added == NULL) return NO_CODE;
    *added = (Distinct){hash, begin, end};
    texts->slots[slot] = texts->distinct.count;
    return texts->distinct.count - 1;
}

static bool put_integer(Column *column, uint32_t row, int64_t value) {
    int64_t *item;
    do {
        item = appended(&column->values, sizeof *item);
        if (item == NULL) return false;
        *item = NO_INTEGER;
    } while (column->values.count <= row);
    *item = value;
    column->filled++;
    return true;
}

static bool put_real(Column *column, uint32_t row, double value) {
    double *item;
    do {
        item = appended(&column->values, sizeof *item);
        if (item == NULL) return false;
        memset(item, 0xff, sizeof *item); /* NaN, which JSON cannot write */
    } while (column->values.count <= row);
    *item = value;
    column->filled++;
    return true;
}

static bool put_text(Column *column, uint32_t row, const uint8_t *begin, const uint8_t *end, uint64_t seed) {
    uint32_t code = code_of(&column->texts, begin, end, seed), *item;
    if (code == NO_CODE) return false;
    do {
        item = appended(&column->values, sizeof *item);
        if (item == NULL) return false;
        *item = NO_CODE;
    } while (column->values.count <= row);
    *item = code;
    column->filled++;
    return true;
}

static bool put_odd(Column *column, uint32_t row, const uint8_t *text, const uint8_t *begin, const uint8_t *end) {
    Place *place = appended(&column->odd, sizeof *place);
    if (place == NULL) return false;
    *place = (Place){row, (uint32_t)(begin - text), (uint32_t)(end - text)};
    return true;
}

/* µs as exact ns; false if the number has parts of a ns, or is none that a clock shows. */
static inline bool exact_ns(const Token *us, int64_t *ns) {
    if (us->odd) return false;
    if (us->decimals <= 3) {
        int64_t factor = POWERS[3 - us->decimals];
        if (us->digits > LATEST_NS / factor || us->digits < -(LATEST_NS / factor)) return false;
        *ns = us->digits * factor;
        return true;
    }
    int64_t divisor = POWERS[us->decimals - 3];
    *ns = us->digits / divisor;
    return us->digits % divisor == 0 && *ns <= LATEST_NS && *ns >= -LATEST_NS;
}

/* Whether a number with a point is so large that a double does not hold its ns. */
static inline bool is_inexact(const Token *us) {
    int64_t whole = us->digits / POWERS[us->decimals];
    return us->fraction && (whole >= EXACT_FLOAT_US || whole <= -EXACT_FLOAT_US);
}

/* The whole number that a number or a text of digits is. */
static inline bool plain_integer(const Token *token, int64_t *value) {
    if (token->kind == NUMBER) {
        *value = token->digits;
        return !token->odd && !token->fraction;
    }
    const uint8_t *at = token->begin;
    bool negative = at < token->end && *at == '-';
    at += negative;
    if (at == token->end || token->end - at > SAFE_DIGITS) return false;
    int64_t sum = 0;
    for (; at < token->end; at++) {
        if (!is_digit(*at)) return false;
        sum = sum * 10 + (*at - '0');
    }
    *value = negative ? -sum : sum;
    return true;
}

/* Put the value of a token: a text or a number, and in a RAW column anything. A large duration with a point is odd, because the
   decoder in Python reads it as a double. */
static bool put(Column *column, ColumnType type, uint32_t row, const Token *token, const uint8_t *text, uint64_t seed, bool is_duration) {
    int64_t value;
    bool quoted = token->kind == TEXT;
    const uint8_t *begin = token->begin - quoted, *end = token->end + quoted;
    switch (type) {
    case TIME:
        if (token->kind == NUMBER && exact_ns(token, &value) && !(is_duration && is_inexact(token)))
            return put_integer(column, row, value);
        break;
    case IDENTITY:
    case INTEGER:
        if (plain_integer(token, &value)) return put_integer(column, row, value);
        break;
    case REAL:
        if (token->kind == NUMBER && !token->odd && token->digits < (INT64_C(1) << 53) && token->digits > -(INT64_C(1) << 53))
            return put_real(column, row, (double)token->digits / (double)POWERS[token->decimals]);
        break;
    case LABEL: return put_text(column, row, token->begin, token->end, seed);
    case RAW: return put_text(column, row, begin, end, seed);
    default: return false;
    }
    return put_odd(column, row, text, begin, end);
}

#endif
