// SPDX-License-Identifier: Apache-2.0
// text.h: a growable string, and "did you mean". Floor 0.
#ifndef TRAINER_TEXT_H
#define TRAINER_TEXT_H

#include "trainer/base.h"

// `data` is always NUL-terminated once anything was appended; before that it is NULL and size 0.
struct text {
    char *data;
    size_t size;  // bytes, without the NUL
    size_t capacity;
};
void text_release(struct text *text);  // fine on a zeroed struct
void text_clear(struct text *text);
void text_append(struct text *text, const char *string);
void text_append_bytes(struct text *text, const void *bytes, size_t size);
void text_printf(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_append_json(struct text *text, const char *string);  // with quotes, escaped
void text_append_html(struct text *text, const char *string);  // & < > " escaped
// The shortest decimal that reads back as the same double; "null" for NaN and infinities.
void text_append_number(struct text *text, double value);
const char *text_get(const struct text *text);  // never NULL

// The entry of `names` (NULL-terminated) nearest to `name` by edit distance, or NULL when none is
// near enough (at most a third of the length, or two) to be worth saying.
const char *text_nearest(const char *name, const char *const *names);
// "a, b, c". Appends.
void text_append_list(struct text *text, const char *const *names);
// Shell-like match with * and ?.
bool text_glob(const char *pattern, const char *string);

#endif
