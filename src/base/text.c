// SPDX-License-Identifier: Apache-2.0
// text.c: growable string, escapes, nearest name, globs.
#include "trainer/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/mem.h"

void text_release(struct text *text)
{
    mem_free(text->data);
    *text = (struct text){0};
}

void text_clear(struct text *text)
{
    text->size = 0;
    if (text->data) {
        text->data[0] = '\0';
    }
}

static void text_reserve(struct text *text, size_t more)
{
    size_t need = text->size + more + 1;
    if (need > text->capacity) {
        size_t capacity = MAX(need, 2 * text->capacity + 64);
        text->data = mem_resize(text->data, text->capacity, capacity);
        text->capacity = capacity;
    }
}

void text_append_bytes(struct text *text, const void *bytes, size_t size)
{
    text_reserve(text, size);
    if (size) {
        memcpy(text->data + text->size, bytes, size);
    }
    text->size += size;
    text->data[text->size] = '\0';
}

void text_append(struct text *text, const char *string)
{
    text_append_bytes(text, string, strlen(string));
}

void text_printf(struct text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    CHECK(length >= 0, "bad format %s", format);
    text_reserve(text, (size_t)length);
    vsnprintf(text->data + text->size, (size_t)length + 1, format, again);
    va_end(again);
    text->size += (size_t)length;
}

void text_append_json(struct text *text, const char *string)
{
    text_append(text, "\"");
    for (const unsigned char *c = (const unsigned char *)string; *c; c++) {
        if (*c == '"' || *c == '\\') {
            text_printf(text, "\\%c", *c);
        } else if (*c == '\n') {
            text_append(text, "\\n");
        } else if (*c == '\t') {
            text_append(text, "\\t");
        } else if (*c < 0x20) {
            text_printf(text, "\\u%04x", *c);
        } else {
            text_append_bytes(text, c, 1);
        }
    }
    text_append(text, "\"");
}

void text_append_html(struct text *text, const char *string)
{
    for (const char *c = string; *c; c++) {
        switch (*c) {
        case '&': text_append(text, "&amp;"); break;
        case '<': text_append(text, "&lt;"); break;
        case '>': text_append(text, "&gt;"); break;
        case '"': text_append(text, "&quot;"); break;
        default: text_append_bytes(text, c, 1);
        }
    }
}

void text_append_number(struct text *text, double value)
{
    if (!isfinite(value)) {
        text_append(text, "null");
        return;
    }
    char buffer[32];
    if (fabs(value) < 1e15 && value == floor(value) && (value != 0 || !signbit(value))) {
        text_printf(text, "%.0f", value);  // 10, where %g would say 1e+01
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(buffer, sizeof buffer, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) {
            break;
        }
    }
    text_append(text, buffer);
}

const char *text_get(const struct text *text)
{
    return text->data ? text->data : "";
}

static size_t edit_distance(const char *a, const char *b)
{
    enum { LONGEST = 128 };
    size_t n = strlen(a), m = strlen(b);
    if (n >= LONGEST || m >= LONGEST) {
        return LONGEST;
    }
    size_t row[LONGEST];
    for (size_t j = 0; j <= m; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = MIN(change, MIN(row[j], row[j - 1]) + 1);
        }
    }
    return row[m];
}

const char *text_nearest(const char *name, const char *const *names)
{
    const char *best = NULL;
    size_t least = SIZE_MAX;
    for (; *names; names++) {
        size_t distance = edit_distance(name, *names);
        if (distance < least && distance <= MAX(strlen(*names) / 3, (size_t)2) &&
            distance < strlen(name)) {
            least = distance;
            best = *names;
        }
    }
    return best;
}

void text_append_list(struct text *text, const char *const *names)
{
    for (const char *const *name = names; *name; name++) {
        text_printf(text, "%s%s", name == names ? "" : ", ", *name);
    }
}

bool text_glob(const char *pattern, const char *string)
{
    const char *star = NULL, *resume = NULL;
    while (*string) {
        if (*pattern == '*') {
            star = ++pattern;
            resume = string;
        } else if (*pattern == '?' || *pattern == *string) {
            pattern++;
            string++;
        } else if (star) {
            pattern = star;
            string = ++resume;
        } else {
            return false;
        }
    }
    while (*pattern == '*') {
        pattern++;
    }
    return !*pattern;
}
