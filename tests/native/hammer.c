/* Gives mutated blocks to the native decoder, for a build with sanitizers; tests/native/hammer.py builds and runs it.

   Each text lies alone in memory of exactly its size, so that a read beside it is seen. A text is a run of events of a seed,
   with changes; many stay JSON. */

#include "../../tracekit/_native/events.h"

#include <stdio.h>
#include <time.h>

enum { MOST_SEEDS = 16 };

static uint64_t state;

static uint32_t chance(uint32_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)((state >> 32) * below >> 32);
}

static uint8_t *contents(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) exit(2);
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*size + 1);
    if (bytes == NULL || fread(bytes, 1, *size, file) != *size) exit(2);
    fclose(file);
    bytes[*size] = 0;
    return bytes;
}

/* Lines of what Python's plan says: T begins a table, `F type key`, `C table key`, `I table key`. */
static void read_plan(char *lines, Plan *plan) {
    for (char *line = strtok(lines, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        int number = line[0] == 'T' ? 0 : line[2] - '0';
        const char *key = line[0] == 'T' ? "" : line + 4;
        Category *category = line[0] == 'I' ? &plan->instant : &plan->categories[plan->category_count];
        if (line[0] == 'T') plan->table_count++;
        if (line[0] == 'F') {
            Table *table = &plan->tables[plan->table_count - 1];
            Field *field = &table->fields[table->field_count];
            field->type = (uint8_t)number;
            field->size = (uint8_t)strlen(key);
            memcpy(field->key, key, field->size);
            index_field(table);
        }
        if (line[0] == 'C') plan->category_count++;
        if (line[0] == 'C' || line[0] == 'I') {
            category->table = (int8_t)number;
            category->size = (uint8_t)strlen(key);
            memcpy(category->key, key, category->size);
        }
    }
}

static size_t changed(uint8_t *text, size_t size, size_t room) {
    static const char *const PIECES[] = {
        "\"", "\\", "{", "}", "[", "]", ",", ":", "0", "-", ".5", "e9", "null", "true", "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\xc3\xa9", "\xed\xa0",
        " ", "\n", "\x01", "\"ph\":\"X\",", "\"cat\":\"kernel\",", "\"cat\":null,", "\"args\":{},", "\"ts\":1.0005,", "{\"a\":[", "99999999999999999999",
    };
    size_t at = chance((uint32_t)size + 1), length = 1 + chance(chance(2) ? 3 : 60), from = chance((uint32_t)size + 1);
    switch (chance(5)) {
    case 0: { /* put in */
        const char *piece = PIECES[chance(sizeof PIECES / sizeof *PIECES)];
        length = strlen(piece);
        if (size + length > room) return size;
        memmove(text + at + length, text + at, size - at);
        memcpy(text + at, piece, length);
        return size + length;
    }
    case 1: /* take out */
        if (at + length > size) return size;
        memmove(text + at, text + at + length, size - at - length);
        return size - length;
    case 2: /* copy over */
        if (at + length <= size && from + length <= size) memmove(text + at, text + from, length);
        return size;
    case 3:
        if (at < size) text[at] = (uint8_t)chance(256);
        return size;
    default:
        if (at < size) text[at] ^= (uint8_t)(1 << chance(8));
        return size;
    }
}

/* hammer SEED SECONDS PLAN FILE… */
int main(int count, char **words) {
    if (count < 5) return 2;
    static Plan plan;
    static uint8_t text[1 << 16];
    size_t size;
    uint64_t texts = 0, whole = 0, events = 0;
    state = strtoull(words[1], NULL, 10) * 2 + 1;
    time_t end = time(NULL) + atol(words[2]);
    uint8_t *lines = contents(words[3], &size);
    read_plan((char *)lines, &plan);
    free(lines);
    static uint8_t *seeds[MOST_SEEDS];
    static size_t sizes[MOST_SEEDS];
    int files = count - 4 < MOST_SEEDS ? count - 4 : MOST_SEEDS;
    for (int i = 0; i < files; i++) seeds[i] = contents(words[4 + i], &sizes[i]);
    while ((texts & 0xff) || time(NULL) < end) {
        /* A seed has an event a line. */
        int file = (int)chance((uint32_t)files);
        const uint8_t *begin = seeds[file] + chance((uint32_t)sizes[file]), *last = seeds[file] + sizes[file];
        while (begin > seeds[file] && begin[-1] != '\n') begin--;
        const uint8_t *stop = begin;
        for (uint32_t lines = 1 + chance(chance(4) ? 4 : 60); lines > 0 && stop < last; lines--) {
            const uint8_t *line = memchr(stop, '\n', (size_t)(last - stop));
            if (line == NULL || line - begin > 50000) break;
            stop = line + 1;
        }
        size = (size_t)(stop - begin);
        while (size > 0 && (begin[size - 1] == '\n' || begin[size - 1] == ',')) size--;
        memcpy(text, begin, size);
        for (uint32_t changes = chance(chance(2) ? 2 : 8); changes > 0; changes--) size = changed(text, size, sizeof text);
        uint8_t *alone = malloc(size ? size : 1);
        Decoder *decoder = calloc(1, sizeof *decoder);
        if (alone == NULL || decoder == NULL) return 2;
        memcpy(alone, text, size);
        plan.seed = state;
        whole += read_events(decoder, &plan, alone, size);
        events += decoder->events;
        free_groups(decoder);
        free(decoder);
        free(alone);
        texts++;
    }
    printf("%llu texts, %llu of them read whole, %llu events\n", (unsigned long long)texts, (unsigned long long)whole, (unsigned long long)events);
    return 0;
}
