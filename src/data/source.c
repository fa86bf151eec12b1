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

enum status source_open(const char *builder, const struct source_options *options,
                        const struct source_def **def, struct source **out)
{
    *out = NULL;
    *def = source_find(builder);
    CHECK(*def, "the builder '%s' passed the choices but has no row", builder);
    enum status status = (*def)->open(options, out);
    if (status != STATUS_OK) {
        *def = NULL;
    }
    return status;
}
