// SPDX-License-Identifier: Apache-2.0
// backend.c: the list of backends. One that not every build has gets its #ifdef here and nowhere else.
#include "trainer/backend.h"

#include <string.h>

extern const struct backend_def cpu_backend, ref_backend;

const struct backend_def *const backend_table[] = {&cpu_backend, &ref_backend, NULL};

const struct backend_def *backend_find(const char *name)
{
    for (const struct backend_def *const *row = backend_table; *row; row++) {
        if (strcmp((*row)->name, name) == 0) {
            return *row;
        }
    }
    return NULL;
}
