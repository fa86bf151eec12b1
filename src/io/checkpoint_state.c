// SPDX-License-Identifier: Apache-2.0
// checkpoint_state.c: the text file `checkpoint`: which checkpoints a folder holds, and the newest.
//   model_checkpoint_path: "model.ckpt-0002"
//   all_model_checkpoint_paths: "model.ckpt-0001"
#include <stdio.h>
#include <string.h>

#include "trainer/file.h"
#include "trainer/io.h"

enum { STATE_LIMIT = 1 << 20 };  // bytes

struct names {
    char **items;
    int count, capacity;
};

static void names_add(struct names *names, char *name)
{
    GROW(names->items, names->count, names->capacity);
    names->items[names->count++] = name;
}

// The value of `key: "value"` in this line, with \" and \\ undone; NULL when the line is another.
static char *line_value(const char *line, size_t size, const char *key)
{
    size_t skip = strspn(line, " \t"), length = strlen(key);
    if (size < skip + length || strncmp(line + skip, key, length) != 0) {
        return NULL;
    }
    const char *at = line + skip + length, *end = line + size;
    at += strspn(at, " \t");
    if (at >= end || *at != ':') {
        return NULL;
    }
    at = memchr(at, '"', (size_t)(end - at));
    if (!at) {
        return NULL;
    }
    struct text value = {0};
    text_append(&value, "");
    for (at++; at < end && *at != '"'; at++) {
        at += *at == '\\' && at + 1 < end;
        text_append_bytes(&value, at, 1);
    }
    return value.data;
}

// Names within the folder are kept relative. An absolute one (a folder that was moved, or written by
// another program) counts by its last part when that is here.
static char *localize(const char *directory, char *name)
{
    const char *slash = strrchr(name, '/');
    if (name[0] != '/' || !slash) {
        return name;
    }
    struct text here = {0};
    text_printf(&here, "%s/%s.index", directory, slash + 1);
    if (!file_exists(text_get(&here))) {
        text_release(&here);
        return name;
    }
    text_release(&here);
    char *last = mem_strdup(slash + 1);
    mem_free(name);
    return last;
}

enum status checkpoint_state_list(const char *directory, char ***names, int *count)
{
    struct text path = {0};
    uint8_t *data = NULL;
    size_t size;
    struct names all = {0};
    char *newest = NULL;
    *names = NULL;
    *count = 0;
    text_printf(&path, "%s/checkpoint", directory);
    enum status status = file_read(text_get(&path), STATE_LIMIT, &data, &size);
    if (status != STATUS_OK) {
        text_release(&path);
        return status;
    }
    for (const char *line = (const char *)data; *line;) {
        size_t length = strcspn(line, "\n");
        char *value = line_value(line, length, "model_checkpoint_path");
        if (value) {
            mem_free(newest);
            newest = localize(directory, value);
        } else if ((value = line_value(line, length, "all_model_checkpoint_paths"))) {
            names_add(&all, localize(directory, value));
        }
        line += length + (line[length] == '\n');
    }
    mem_free(data);
    if (!newest) {
        status = FAIL(ERR_CORRUPT, "%s: names no checkpoint (model_checkpoint_path is missing)",
                      text_get(&path));
        file_list_free(all.items, all.count);
    } else {
        // The newest goes last, once.
        for (int i = 0; i < all.count; i++) {
            if (strcmp(all.items[i], newest) == 0) {
                mem_free(all.items[i]);
                memmove(all.items + i, all.items + i + 1,
                        sizeof *all.items * (size_t)(all.count - i - 1));
                all.count--;
                i--;
            }
        }
        names_add(&all, newest);
        *names = all.items;
        *count = all.count;
    }
    text_release(&path);
    return status;
}

enum status checkpoint_state_read(const char *directory, char **prefix)
{
    char **names;
    int count;
    *prefix = NULL;
    TRY(checkpoint_state_list(directory, &names, &count));
    struct text path = {0};
    const char *newest = names[count - 1];
    text_printf(&path, "%s%s%s", *newest == '/' ? "" : directory, *newest == '/' ? "" : "/",
                newest);
    *prefix = path.data;
    file_list_free(names, count);
    return STATUS_OK;
}

static void put_line(struct text *out, const char *key, const char *name)
{
    text_printf(out, "%s: \"", key);
    for (; *name; name++) {
        text_append(out, *name == '"' || *name == '\\' ? "\\" : "");
        text_append_bytes(out, name, 1);
    }
    text_append(out, "\"\n");
}

enum status checkpoint_state_write(const char *directory, const char *const *names, int count)
{
    struct text path = {0}, out = {0};
    text_printf(&path, "%s/checkpoint", directory);
    put_line(&out, "model_checkpoint_path", names[count - 1]);
    for (int i = 0; i < count; i++) {
        put_line(&out, "all_model_checkpoint_paths", names[i]);
    }
    enum status status = file_write(text_get(&path), out.data, out.size);
    text_release(&path);
    text_release(&out);
    return status;
}
