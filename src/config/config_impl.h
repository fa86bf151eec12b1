// SPDX-License-Identifier: Apache-2.0
// config_impl.h: what the files of the part share. Private to src/config.
#ifndef TRAINER_CONFIG_IMPL_H
#define TRAINER_CONFIG_IMPL_H

#include "trainer/config.h"

// Fills kind and the scalar from plain (unquoted) text by YAML 1.1's rules, as PyYAML applies them.
// A string's pointer is `text` itself. ERR_USAGE for an integer beyond 64 bits; no place in the text.
enum status value_resolve_scalar(const char *text, struct value *value);

// "gpu.yaml:12:3", "--params_override, at 5".
void place_text(struct value_place place, struct text *out);
// Fails with the place in front.
enum status fail_at(struct value_place place, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
