// SPDX-License-Identifier: Apache-2.0
// backend.c: the list of backends, and the only place that knows which were built.
#include "trainer/backend.h"

#include <string.h>

extern const struct backend_def ref_backend;
#ifdef TRAINER_HAVE_ONEDNN
extern const struct backend_def cpu_backend;
#endif

const struct backend_def *const backend_table[] = {
#ifdef TRAINER_HAVE_ONEDNN
    &cpu_backend,
#endif
    &ref_backend,
    NULL,
};

const struct backend_def *backend_find(const char *name)
{
    for (const struct backend_def *const *row = backend_table; *row; row++) {
        if (strcmp((*row)->name, name) == 0) {
            return *row;
        }
    }
    return NULL;
}
