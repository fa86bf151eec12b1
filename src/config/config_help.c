// SPDX-License-Identifier: Apache-2.0
// config_help.c: the rows as a person reads them in --help.
#include <string.h>

#include "config_impl.h"

enum {
    WIDTH = 100,  // columns of a line, as everywhere in --help
    TEXT_AT = 44 // where the sentences begin: most paths are shorter, longer ones take a line
};

// Words from column TEXT_AT on; the first line goes on behind what stands there.
static void append_wrapped(struct text *out, const char *words)
{
    size_t column = TEXT_AT;
    while (*words) {
        size_t size = strcspn(words, " ");
        if (column > TEXT_AT && column + 1 + size > WIDTH) {
            text_printf(out, "\n%*s", TEXT_AT, "");
            column = TEXT_AT;
        } else if (column > TEXT_AT) {
            text_append(out, " ");
            column++;
        }
        text_append_bytes(out, words, size);
        column += size;
        words += size + strspn(words + size, " ");
    }
    text_append(out, "\n");
}

void config_help(const struct config *config, struct text *out)
{
    const struct config_entry **sorted = config_sorted(config);
    for (int i = 0; i < config->count; i++) {
        const struct config_field *field = sorted[i]->field;
        bool ignored = field->flags & CONFIG_IGNORED, fits = strlen(field->path) + 4 <= TEXT_AT;
        struct text words = {0};
        text_printf(&words, "%s%s (", ignored ? "[no effect] " : "", field->help);
        config_append_expected(field, &words);
        text_append(&words, "; default ");
        value_dump_json(&words, sorted[i]->value);
        text_append(&words, ")");
        text_printf(out, "  %-*s", TEXT_AT - 2, field->path);
        if (!fits) {
            text_printf(out, "\n%*s", TEXT_AT, "");
        }
        append_wrapped(out, text_get(&words));
        text_release(&words);
    }
    mem_free(sorted);
}
