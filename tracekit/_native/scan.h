/* A cursor over JSON text that reads one token at a time.

   Every read is checked against the end of the text, nothing recurses, and each function returns false where the text is not
   JSON, or is JSON of which this code is not sure: the caller then hands the text to the decoder in Python. So a function may
   be stricter than JSON, and never more lenient. */

#ifndef TRACEKIT_SCAN_H
#define TRACEKIT_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__) && (defined(__GNUC__) || defined(__clang__))
#include <emmintrin.h>
#define TRACEKIT_SSE2 1
#endif

enum { DEEPEST = 60, LONGEST_NUMBER = 40, SAFE_DIGITS = 18 };

typedef enum { ABSENT, NONE, TEXT, NUMBER, OTHER } Kind;

typedef struct {
    const uint8_t *at, *end;
} Cursor;

typedef struct {
    const uint8_t *begin, *end; /* of a text: without its quotes */
    int64_t digits;             /* of a number that is not odd: all its digits, with its sign */
    uint8_t kind;
    uint8_t decimals; /* of a number: its digits behind the point */
    bool escaped;     /* a text with a backslash */
    bool fraction;    /* a number with a point */
    bool odd;         /* a number with an exponent, with more than SAFE_DIGITS digits, or −0 */
    bool exponent;
} Token;

static inline bool is_space(uint8_t c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static inline bool is_digit(uint8_t c) { return (uint8_t)(c - '0') < 10; }

/* Go to the next byte that is no white space; false at the end of the text. */
static inline bool skip_space(Cursor *cursor) {
    const uint8_t *at = cursor->at, *end = cursor->end;
    if (at < end && *at > ' ') return true;
#ifdef TRACEKIT_SSE2
    /* Where there is white space, it is mostly a new line with its indent. */
    const __m128i blank = _mm_set1_epi8(' ');
    if (end - at > 17 && is_space(*at) && is_space(at[1])) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(at + 1));
        unsigned mask = (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, blank)) ^ 0xFFFF;
        at += 1 + (mask ? __builtin_ctz(mask) : 16);
    }
#endif
    while (at < end && is_space(*at)) at++;
    cursor->at = at;
    return at < end;
}

/* Go behind this byte, which must come next but for white space. */
static inline bool skip_byte(Cursor *cursor, uint8_t wanted) {
    if (!skip_space(cursor) || *cursor->at != wanted) return false;
    cursor->at++;
    return true;
}

static inline int hex_value(uint8_t c) {
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The code unit of \uXXXX at `at`; −1 if it is none. */
static int32_t code_unit(const uint8_t *at, const uint8_t *end) {
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u') return -1;
    int32_t value = 0;
    for (int i = 2; i < 6; i++) {
        int digit = hex_value(at[i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The end of the escape sequence at `at`; NULL if it is none, or half a character. */
static const uint8_t *end_of_escape(const uint8_t *at, const uint8_t *end) {
    if (end - at < 2) return NULL;
    if (at[1] != 'u') return at[1] != 0 && strchr("\"\\/bfnrt", at[1]) != NULL ? at + 2 : NULL;
    int32_t unit = code_unit(at, end);
    if (unit < 0 || (unit >= 0xDC00 && unit <= 0xDFFF)) return NULL;
    if (unit < 0xD800 || unit > 0xDFFF) return at + 6;
    int32_t low = code_unit(at + 6, end);
    return low >= 0xDC00 && low <= 0xDFFF ? at + 12 : NULL;
}

/* The next byte that ends a text, begins an escape or may not stand in a text; `end` if there is none. */
static inline const uint8_t *next_special(const uint8_t *at, const uint8_t *end) {
#ifdef TRACEKIT_SSE2
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1f);
    while (end - at >= 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
        __m128i found = _mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash));
        found = _mm_or_si128(found, _mm_cmpeq_epi8(_mm_min_epu8(bytes, control), bytes));
        unsigned mask = (unsigned)_mm_movemask_epi8(found);
        if (mask) return at + __builtin_ctz(mask);
        at += 16;
    }
#endif
    while (at < end && *at != '"' && *at != '\\' && *at >= 0x20) at++;
    return at;
}

/* Read the text whose opening quote is next. */
static inline bool read_text(Cursor *cursor, Token *token) {
    const uint8_t *at = cursor->at + 1, *end = cursor->end;
    token->kind = TEXT;
    token->begin = at;
    token->escaped = false;
    for (;;) {
        at = next_special(at, end);
        if (at == end) return false;
        if (*at == '"') {
            token->end = at;
            cursor->at = at + 1;
            return true;
        }
        if (*at != '\\') return false;
        token->escaped = true;
        at = end_of_escape(at, end);
        if (at == NULL) return false;
    }
}

static bool read_number(Cursor *cursor, Token *token) {
    const uint8_t *at = cursor->at, *end = cursor->end;
    bool negative = *at == '-';
    uint64_t digits = 0; /* wraps if there are too many, and is not used then */
    at += negative;
    const uint8_t *first = at;
    for (; at < end && is_digit(*at); at++) digits = digits * 10 + (uint64_t)(*at - '0');
    ptrdiff_t whole = at - first, decimals = 0;
    if (whole == 0 || (whole > 1 && *first == '0')) return false;
    token->fraction = at < end && *at == '.';
    if (token->fraction) {
        const uint8_t *point = at++;
        for (; at < end && is_digit(*at); at++) digits = digits * 10 + (uint64_t)(*at - '0');
        decimals = at - point - 1;
        if (decimals == 0) return false;
    }
    token->exponent = at < end && (*at == 'e' || *at == 'E');
    if (token->exponent) {
        at++;
        if (at < end && (*at == '+' || *at == '-')) at++;
        const uint8_t *exponent = at;
        while (at < end && is_digit(*at)) at++;
        if (at == exponent || at - exponent > 2) return false; /* a larger one may be out of range */
    }
    if (at - cursor->at > LONGEST_NUMBER) return false;
    token->kind = NUMBER;
    token->begin = cursor->at;
    token->end = at;
    token->odd = token->exponent || whole + decimals > SAFE_DIGITS || (negative && digits == 0);
    token->decimals = (uint8_t)decimals;
    token->digits = token->odd ? 0 : negative ? -(int64_t)digits : (int64_t)digits;
    cursor->at = at;
    return true;
}

/* Whether these bytes are the same; `memcmp` is a call. */
static inline bool same_bytes(const uint8_t *one, const uint8_t *other, size_t size) {
    uint64_t a, b, c, d;
    if (size > 16) return memcmp(one, other, size) == 0;
    if (size >= 8) {
        memcpy(&a, one, 8), memcpy(&b, other, 8), memcpy(&c, one + size - 8, 8), memcpy(&d, other + size - 8, 8);
        return ((a ^ b) | (c ^ d)) == 0;
    }
    for (size_t i = 0; i < size; i++) {
        if (one[i] != other[i]) return false;
    }
    return true;
}

/* Go behind this word, whose first letter is next. */
static inline bool skip_word(Cursor *cursor, const char *word, ptrdiff_t size) {
    if (cursor->end - cursor->at < size || memcmp(cursor->at, word, (size_t)size) != 0) return false;
    cursor->at += size;
    return true;
}

/* Go behind the value that is next and is neither an object nor a list. */
static inline bool skip_scalar(Cursor *cursor) {
    Token ignored;
    switch (*cursor->at) {
    case '"': return read_text(cursor, &ignored);
    case 't': return skip_word(cursor, "true", 4);
    case 'f': return skip_word(cursor, "false", 5);
    case 'n': return skip_word(cursor, "null", 4);
    default: return (*cursor->at == '-' || is_digit(*cursor->at)) && read_number(cursor, &ignored);
    }
}

/* Go behind a key and its colon. */
static inline bool skip_key(Cursor *cursor) {
    Token key;
    return skip_space(cursor) && *cursor->at == '"' && read_text(cursor, &key) && skip_byte(cursor, ':');
}

/* Go behind the object or list that is next. The open ones are bits of a number, so that nesting costs no stack. */
static bool skip_nested(Cursor *cursor) {
    uint64_t objects = 0; /* the lowest bit: whether the innermost open one is an object */
    int depth = 0;
    for (;;) {
        if (!skip_space(cursor)) return false;
        uint8_t first = *cursor->at;
        if (first == '{' || first == '[') {
            if (++depth > DEEPEST) return false;
            bool is_object = first == '{';
            objects = objects << 1 | (uint64_t)is_object;
            cursor->at++;
            if (!skip_space(cursor)) return false;
            if (*cursor->at != (is_object ? '}' : ']')) {
                if (is_object && !skip_key(cursor)) return false;
                continue;
            }
        } else if (!skip_scalar(cursor)) {
            return false;
        }
        for (;;) {
            if (depth == 0) return true;
            if (!skip_space(cursor)) return false;
            uint8_t next = *cursor->at++;
            if (next == ',') {
                if ((objects & 1) && !skip_key(cursor)) return false;
                break;
            }
            if (next != ((objects & 1) ? '}' : ']')) return false;
            objects >>= 1;
            depth--;
        }
    }
}

/* Read any value. */
static inline bool read_value(Cursor *cursor, Token *token) {
    if (!skip_space(cursor)) return false;
    uint8_t first = *cursor->at;
    if (first == '"') return read_text(cursor, token);
    if (first == '-' || is_digit(first)) return read_number(cursor, token);
    token->begin = cursor->at;
    token->kind = first == 'n' ? NONE : OTHER;
    bool there = first == '{' || first == '[' ? skip_nested(cursor) : skip_scalar(cursor);
    token->end = cursor->at;
    return there;
}

/* Whether the next 64 bytes are ASCII; false where that takes as long as to look at each. */
static inline bool are_ascii(const uint8_t *at) {
#ifdef TRACEKIT_SSE2
    const __m128i *bytes = (const __m128i *)(const void *)at;
    __m128i low = _mm_or_si128(_mm_loadu_si128(bytes), _mm_loadu_si128(bytes + 1));
    __m128i high = _mm_or_si128(_mm_loadu_si128(bytes + 2), _mm_loadu_si128(bytes + 3));
    return _mm_movemask_epi8(_mm_or_si128(low, high)) == 0;
#else
    (void)at;
    return false;
#endif
}

/* Whether all bytes are UTF-8, without halves of characters. */
static bool is_utf8(const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        uint64_t eight;
        if (end - at >= 64 && are_ascii(at)) {
            at += 64;
            continue;
        }
        if (end - at >= 8 && (memcpy(&eight, at, 8), (eight & UINT64_C(0x8080808080808080)) == 0)) {
            at += 8;
            continue;
        }
        uint8_t lead = *at++;
        if (lead < 0x80) continue;
        int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        if (lead < 0xC2 || lead > 0xF4 || end - at < more) return false;
        uint8_t least = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
        uint8_t most = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
        if (*at < least || *at > most) return false;
        for (int i = 1; i < more; i++) {
            if ((at[i] & 0xC0) != 0x80) return false;
        }
        at += more;
    }
    return true;
}

#endif
