// SPDX-License-Identifier: Apache-2.0
// test.h: what all tests share: cmocka, where the data beside the checkout lie, skips with a reason.
#ifndef TRAINER_TEST_H
#define TRAINER_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "trainer/base.h"

// Path of a file of the repository's tests folder. Static buffer of the caller's choosing.
static inline const char *test_path(char *buffer, size_t size, const char *name)
{
    snprintf(buffer, size, "%s/%s", TEST_SOURCE_DIR, name);
    return buffer;
}

// Path below the reference data (TRAINER_SHARED, or ../shared beside the checkout); NULL when it is
// not there. The tests that need it then skip with a reason.
static inline const char *test_shared(char *buffer, size_t size, const char *name)
{
    const char *root = getenv("TRAINER_SHARED");
    if (root) {
        snprintf(buffer, size, "%s/%s", root, name);
    } else {
        snprintf(buffer, size, "%s/../../shared/%s", TEST_SOURCE_DIR, name);
    }
    return access(buffer, R_OK) == 0 ? buffer : NULL;
}

#define SKIP(...)                        \
    do {                                 \
        printf("SKIP %s: ", __func__);   \
        printf(__VA_ARGS__);             \
        printf("\n");                    \
        skip();                          \
    } while (0)

// Asserts that a call succeeded, printing its sentence if not.
#define assert_ok(call)                                                              \
    do {                                                                             \
        enum status status_ = (call);                                                \
        if (status_ != STATUS_OK) {                                                  \
            fail_msg("%s: %s [%s]", #call, error_get()->message, error_get()->trail); \
        }                                                                            \
    } while (0)

// Asserts that a call failed with `code` and a message that contains `text`.
#define assert_fails(call, expected, text)                                                 \
    do {                                                                                   \
        enum status status_ = (call);                                                      \
        if (status_ != (expected) || !strstr(error_get()->message, (text))) {              \
            fail_msg("%s: got %s \"%s\", expected %s with \"%s\"", #call,                  \
                     status_name(status_), error_get()->message, status_name(expected), text); \
        }                                                                                  \
    } while (0)

#endif
