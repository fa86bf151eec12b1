// SPDX-License-Identifier: Apache-2.0
// source.c: the table of sources.
#include <string.h>

#include "trainer/dataset.h"

#define SOURCE(id) extern const struct source_def source_##id;
#include "sources.def"
#undef SOURCE

const struct source_def *const source_table[] = {
#define SOURCE(id) &source_##id,
#include "sources.def"
#undef SOURCE
    NULL,
};

const struct source_def *source_find(const char *name)
{
    for (const struct source_def *const *row = source_table; *row; row++) {
        if (strcmp((*row)->name, name) == 0) {
            return *row;
        }
    }
    return NULL;
}

static enum status unknown_builder(const char *builder)
{
    const char *names[ARRAY_COUNT(source_table)] = {NULL};
    for (size_t i = 0; source_table[i]; i++) {
        names[i] = source_table[i]->name;
    }
    struct text known = {0};
    text_append_list(&known, names);
    const char *nearest = text_nearest(builder, names);
    enum status status = FAIL(ERR_USAGE, "unknown builder '%s'; known are %s%s%s%s", builder,
                              text_get(&known), nearest ? "; did you mean '" : "",
                              nearest ? nearest : "", nearest ? "'?" : "");
    text_release(&known);
    return status;
}

enum status source_open(const char *builder, const struct source_options *options,
                        const struct source_def **def, struct source **out)
{
    *out = NULL;
    *def = source_find(builder);
    if (!*def) {
        return unknown_builder(builder);
    }
    enum status status = (*def)->open(options, out);
    if (status != STATUS_OK) {
        *def = NULL;
    }
    return status;
}
