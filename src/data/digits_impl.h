// SPDX-License-Identifier: Apache-2.0
// digits_impl.h: the embedded digits, as gzip'd IDX files. Private to src/data.
#ifndef TRAINER_DIGITS_IMPL_H
#define TRAINER_DIGITS_IMPL_H

#include "trainer/base.h"

struct digits_file {
    const unsigned char *bytes;  // lives as long as the program
    size_t size;
};
struct digits_file digits_file(bool validation, bool labels);

#endif
