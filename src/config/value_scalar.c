// SPDX-License-Identifier: Apache-2.0
// value_scalar.c: what a plain (unquoted) scalar is. The rules are YAML 1.1's as PyYAML applies
// them, widened where a person would be surprised: 1e-4, 1.5e3 and -.5 are numbers here.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config_impl.h"

#define DIGITS "0123456789"

static bool one_of(const char *text, const char *const *words)
{
    for (; *words; words++) {
        if (strcmp(text, *words) == 0) {
            return true;
        }
    }
    return false;
}

// Reads a magnitude digit by digit; `overflow` stays set once it is beyond 64 bits.
struct magnitude {
    uint64_t value;
    bool overflow;
};

static void add_digit(struct magnitude *magnitude, unsigned base, unsigned digit)
{
    magnitude->overflow |= __builtin_mul_overflow(magnitude->value, base, &magnitude->value);
    magnitude->overflow |= __builtin_add_overflow(magnitude->value, digit, &magnitude->value);
}

// All of `text` as digits of `base`, underscores between them. False: something else, or nothing.
static bool read_digits(const char *text, unsigned base, struct magnitude *out)
{
    static const char digits[] = DIGITS "abcdef";
    bool any = false;
    for (; *text; text++) {
        if (*text == '_') {
            continue;
        }
        const char *digit =
            strchr(digits, *text >= 'A' && *text <= 'F' ? *text - 'A' + 'a' : *text);
        if (!digit || (unsigned)(digit - digits) >= base) {
            return false;
        }
        add_digit(out, base, (unsigned)(digit - digits));
        any = true;
    }
    return any;
}

// 1:30 = 90, 1:30.5 = 90.5: base 60, every part after the first has one or two digits below 60.
// *rest: the end, or the dot. False: not of this form.
static bool read_base_60(const char *text, struct magnitude *out, const char **rest)
{
    if (*text < '0' || *text > '9') {
        return false;
    }
    for (; (*text >= '0' && *text <= '9') || *text == '_'; text++) {
        if (*text != '_') {
            add_digit(out, 10, (unsigned)(*text - '0'));
        }
    }
    int parts = 0;
    for (; *text == ':'; parts++) {
        size_t size = strspn(++text, DIGITS);
        if (size == 0 || size > 2 || (size == 2 && *text > '5')) {
            return false;
        }
        unsigned part = 0;
        for (; size > 0; size--) {
            part = part * 10 + (unsigned)(*text++ - '0');
        }
        add_digit(out, 60, part);
    }
    *rest = text;
    return parts > 0 && (!*text || (*text == '.' && !text[1 + strspn(text + 1, DIGITS "_")]));
}

static bool read_integer(const char *text, struct magnitude *out)
{
    const char *rest;
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'b')) {
        return read_digits(text + 2, text[1] == 'x' ? 16 : 2, out);
    }
    if (text[0] == '0') {  // octal; 08 is a word, as in PyYAML
        return read_digits(text, 8, out);
    }
    if (text[0] < '1' || text[0] > '9') {
        return false;
    }
    if (strchr(text, ':')) {
        return read_base_60(text, out, &rest) && !*rest;
    }
    return read_digits(text, 10, out);
}

// The number of a decimal text whose form was checked; underscores are left out.
static double decimal(const char *text)
{
    char *clean = MEM_NEW_ARRAY(char, strlen(text) + 1), *end = clean;
    for (; *text; text++) {
        if (*text != '_') {
            *end++ = *text;
        }
    }
    double number = strtod(clean, NULL);
    mem_free(clean);
    return number;
}

// Digits with a dot or an exponent. *overflow: beyond the largest double.
static bool read_float(const char *text, double *out, bool *overflow)
{
    struct magnitude whole = {0};
    const char *rest;
    if (read_base_60(text, &whole, &rest) && *rest == '.') {
        *out = (double)whole.value + (rest[1] ? decimal(rest) : 0);
        *overflow = whole.overflow;
        return true;
    }
    const char *at = text + strspn(text, DIGITS "_");
    bool digits = at > text && *text != '_', dot = *at == '.', exponent = false;
    if (dot) {
        digits |= at == text && at[1] >= '0' && at[1] <= '9';
        at++;
        at += strspn(at, DIGITS "_");
    }
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '-' || at[1] == '+');
        size_t size = strspn(at, DIGITS);
        exponent = size > 0;
        at += size;
        digits &= exponent;
    }
    if (*at || !digits || !(dot || exponent)) {
        return false;
    }
    *out = decimal(text);
    *overflow = isinf(*out);
    return true;
}

bool value_resolve_scalar(const char *text, struct value *value)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const yes[] = {"yes",  "Yes", "YES", "true", "True",
                                      "TRUE", "on",  "On",  "ON",   NULL};
    static const char *const no[] = {"no",    "No",  "NO",  "false", "False",
                                     "FALSE", "off", "Off", "OFF",   NULL};
    static const char *const infinities[] = {".inf", ".Inf", ".INF", NULL};
    static const char *const nans[] = {".nan", ".NaN", ".NAN", NULL};
    bool negative = *text == '-', overflow = false;
    const char *rest = text + (*text == '-' || *text == '+');
    struct magnitude magnitude = {0};
    double number;
    if (one_of(text, nulls)) {
        value->kind = VALUE_NULL;
    } else if (one_of(text, yes) || one_of(text, no)) {
        value->kind = VALUE_BOOL;
        value->boolean = one_of(text, yes);
    } else if (one_of(rest, infinities) || one_of(text, nans)) {
        value->kind = VALUE_FLOAT;
        value->number = one_of(text, nans) ? (double)NAN : negative ? -INFINITY : INFINITY;
    } else if (read_integer(rest, &magnitude)) {
        value->kind = VALUE_INT;
        value->integer = (int64_t)(negative ? 0 - magnitude.value : magnitude.value);
        overflow = magnitude.overflow || magnitude.value > (uint64_t)INT64_MAX + negative;
    } else if (read_float(rest, &number, &overflow)) {
        value->kind = VALUE_FLOAT;
        value->number = negative ? -number : number;
    } else {
        value->kind = VALUE_STRING;
        value->string = text;
    }
    return !overflow;
}
