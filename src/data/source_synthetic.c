// SPDX-License-Identifier: Apache-2.0
// source_synthetic.c: images made from the seed: a bright square whose place tells the class, in
// noise. Learnable, so that a run on it shows progress; a pure function of (seed, index).
#include <stdio.h>
#include <string.h>

#include "trainer/dataset.h"
#include "trainer/rng.h"

struct source {
    struct example_spec spec;
    uint64_t seed;
    int64_t count;
    bool validation;
    char *description;
};

static enum status synthetic_open(const struct source_options *options, struct source **out)
{
    CHECK(options->spec.dtype == DTYPE_U8 && options->spec.num_classes > 0,
          "synthetic images are bytes of at least one class");
    struct source *source = MEM_NEW(struct source);
    source->spec = options->spec;
    source->seed = options->seed;
    source->validation = strcmp(options->split, "validation") == 0;
    source->count = options->num_examples ? options->num_examples : 1024;  // a few batches
    struct text text = {0};
    text_printf(&text, "synthetic, %lld %s examples of %s, %d classes", (long long)source->count,
                options->split, shape_str(source->spec.shape), source->spec.num_classes);
    source->description = text.data;
    *out = source;
    return STATUS_OK;
}

static void synthetic_close(struct source *source)
{
    if (source) {
        mem_free(source->description);
        mem_free(source);
    }
}

static int64_t synthetic_count(const struct source *source)
{
    return source->count;
}

static const struct example_spec *synthetic_spec(const struct source *source)
{
    return &source->spec;
}

static enum status synthetic_read(const struct source *source, int64_t index, void *image,
                                  int32_t *label)
{
    const struct example_spec *spec = &source->spec;
    int64_t height = spec->shape.dim[0], width = spec->shape.dim[1], depth = spec->shape.dim[2];
    uint32_t salt = source->validation;
    uint8_t *pixels = image;  // (H, W, C)
    *label = (int32_t)(rng_u32(source->seed, RNG_SYNTHETIC, 2 + salt, 0, (uint64_t)index) %
                       (uint32_t)spec->num_classes);
    int64_t grid = 1;  // classes lie on a grid x grid board
    while (grid * grid < spec->num_classes) {
        grid++;
    }
    int64_t top = *label / grid * height / grid, left = *label % grid * width / grid;
    int64_t bottom = MIN(top + CEIL_DIV(height, grid), height);
    int64_t right = MIN(left + CEIL_DIV(width, grid), width);
    int64_t size = height * width * depth;
    for (int64_t i = 0; i < size; i += 16) {  // a block has 16 bytes
        struct rng_block noise = rng_block_at(source->seed, RNG_SYNTHETIC, salt, (uint64_t)index,
                                              (uint64_t)i / 16);
        for (int64_t j = i; j < MIN(i + 16, size); j++) {
            pixels[j] = (noise.word[(j - i) / 4] >> (j % 4 * 8)) & 0x7f;
        }
    }
    for (int64_t y = top; y < bottom; y++) {
        for (int64_t i = (y * width + left) * depth; i < (y * width + right) * depth; i++) {
            pixels[i] |= 0x80;  // the lit half of the range
        }
    }
    return STATUS_OK;
}

static const char *synthetic_describe(const struct source *source)
{
    return source->description;
}

const struct source_def source_synthetic = {
    .name = "synthetic",
    .help = "made from the seed; nothing is read",
    .open = synthetic_open,
    .close = synthetic_close,
    .count = synthetic_count,
    .spec = synthetic_spec,
    .read = synthetic_read,
    .describe = synthetic_describe,
};
