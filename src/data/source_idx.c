// SPDX-License-Identifier: Apache-2.0
// source_idx.c: MNIST's and Fashion-MNIST's files (http://yann.lecun.com/exdb/mnist): big-endian
//   images  magic 0x00000803, count, height, width, bytes
//   labels  magic 0x00000801, count, bytes
// plain or gzip. Both are held in memory: a set has some fifty megabytes.
#include <stdio.h>
#include <string.h>

#include "digits_impl.h"
#include "trainer/dataset.h"
#include "trainer/file.h"
#include "trainer/io.h"

enum {
    IMAGES_MAGIC = 0x803,
    LABELS_MAGIC = 0x801,
    IMAGES_HEADER = 16,
    LABELS_HEADER = 8,
    CLASSES = 10,
    SIDE_LIMIT = 4096  // pixels: larger is no IDX image anyone has
};
// Bytes: a damaged gzip must not fill the memory. EMNIST, the largest set known in this format, has
// half of it.
#define FILE_LIMIT ((size_t)1 << 30)

static const char *const digit_names[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
static const char *const fashion_names[] = {"T-shirt/top", "Trouser", "Pullover", "Dress",
                                            "Coat",        "Sandal",  "Shirt",    "Sneaker",
                                            "Bag",         "Ankle boot"};

static const struct dataset {
    const char *name;
    const char *const *class_names;  // [CLASSES]
    bool embedded;                   // a subset comes with the program
} datasets[] = {
    {"mnist", digit_names, true},
    {"fashion_mnist", fashion_names, false},
};

struct source {
    struct example_spec spec;
    uint8_t *image_file, *label_file;  // whole files, headers included
    const uint8_t *images, *labels;    // (count, H, W, 1), (count)
    size_t row_bytes;
    int64_t count;
    char *label_path, *description;
};

static uint32_t big_endian(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void idx_close(struct source *source)
{
    if (source) {
        mem_free(source->image_file);
        mem_free(source->label_file);
        mem_free(source->label_path);
        mem_free(source->description);
        mem_free(source);
    }
}

// Published names: train-images-idx3-ubyte.gz; some copies have a dot before idx or are unpacked.
static enum status find_file(const char *directory, const char *split, const char *what, char **out)
{
    struct text path = {0}, tried = {0};
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s", what);
        if (i >= 2) {
            *strrchr(name, '-') = '.';
        }
        text_clear(&path);
        text_printf(&path, i % 2 ? "%s/%s-%s-ubyte" : "%s/%s-%s-ubyte.gz", directory, split, name);
        text_printf(&tried, "%s%s", i ? ", " : "", text_get(&path) + strlen(directory) + 1);
        // Some archives unpack to folders of these names: look on, for the file beside them.
        if (file_exists(text_get(&path)) && !file_is_directory(text_get(&path))) {
            *out = path.data;
            text_release(&tried);
            return STATUS_OK;
        }
    }
    enum status status =
        file_is_directory(directory)
            ? FAIL(ERR_NOT_FOUND, "%s: holds none of %s; is it the folder of the four IDX files?",
                   directory, text_get(&tried))
            : FAIL(ERR_NOT_FOUND, "%s: no such folder (data_dir); expected one with %s", directory,
                   text_get(&tried));
    text_release(&path);
    text_release(&tried);
    return status;
}

static enum status check_header(const char *path, const uint8_t *data, size_t size, uint32_t magic,
                                size_t header, const char *what)
{
    if (size < header) {
        return FAIL(ERR_CORRUPT, "%s: has %zu bytes, less than the header of an IDX %s file (%zu)",
                    path, size, what, header);
    }
    if (big_endian(data) != magic) {
        return FAIL(ERR_CORRUPT,
                    "%s: has the magic number 0x%08x at byte 0, expected 0x%08x of IDX %s", path,
                    big_endian(data), magic, what);
    }
    return STATUS_OK;
}

static enum status check_size(const char *path, size_t size, size_t header, uint64_t count,
                              uint64_t each)
{
    if (size - header != count * each) {
        return FAIL(ERR_CORRUPT,
                    "%s: %s: it has %zu bytes, expected %llu: a header of %zu and %llu records "
                    "(said at byte 4) of %llu", path,
                    size - header < count * each ? "cut short" : "something follows the last",
                    size, (unsigned long long)(header + count * each), header,
                    (unsigned long long)count, (unsigned long long)each);
    }
    return STATUS_OK;
}

static enum status parse_images(struct source *source, const char *path, size_t size)
{
    const uint8_t *data = source->image_file;
    TRY(check_header(path, data, size, IMAGES_MAGIC, IMAGES_HEADER, "images"));
    uint32_t count = big_endian(data + 4), height = big_endian(data + 8),
             width = big_endian(data + 12);
    if (!height || !width || height > SIDE_LIMIT || width > SIDE_LIMIT) {
        return FAIL(ERR_CORRUPT,
                    "%s: says at byte 8 that images have %u x %u pixels, expected 1 to %d each way",
                    path, height, width, SIDE_LIMIT);
    }
    TRY(check_size(path, size, IMAGES_HEADER, count, (uint64_t)height * width));
    source->images = data + IMAGES_HEADER;
    source->count = count;
    source->row_bytes = (size_t)height * width;
    source->spec.shape = SHAPE(height, width, 1);
    return STATUS_OK;
}

static enum status parse_labels(struct source *source, const char *path, size_t size,
                                const char *image_path)
{
    const uint8_t *data = source->label_file;
    TRY(check_header(path, data, size, LABELS_MAGIC, LABELS_HEADER, "labels"));
    uint32_t count = big_endian(data + 4);
    TRY(check_size(path, size, LABELS_HEADER, count, 1));
    if (count != source->count) {
        return FAIL(ERR_CORRUPT,
                    "%s: holds %u labels, but %s holds %lld images (both said at byte 4)", path,
                    count, image_path, (long long)source->count);
    }
    source->labels = data + LABELS_HEADER;
    return STATUS_OK;
}

static enum status parse(struct source *source, const char *image_path, size_t image_size,
                         const char *label_path, size_t label_size)
{
    TRY(parse_images(source, image_path, image_size));
    TRY(parse_labels(source, label_path, label_size, image_path));
    source->label_path = mem_strdup(label_path);
    return source->count ? STATUS_OK
                         : FAIL(ERR_CORRUPT, "%s: holds no examples (0 at byte 4)", image_path);
}

static enum status open_folder(struct source *source, const char *directory, const char *split)
{
    char *image_path = NULL, *label_path = NULL;
    size_t image_size = 0, label_size = 0;
    enum status status = find_file(directory, split, "images-idx3", &image_path);
    if (status == STATUS_OK) {
        status = find_file(directory, split, "labels-idx1", &label_path);
    }
    if (status == STATUS_OK) {
        status = gzip_read(image_path, FILE_LIMIT, &source->image_file, &image_size);
    }
    if (status == STATUS_OK) {
        status = gzip_read(label_path, FILE_LIMIT, &source->label_file, &label_size);
    }
    if (status == STATUS_OK) {
        status = parse(source, image_path, image_size, label_path, label_size);
    }
    mem_free(image_path);
    mem_free(label_path);
    return status;
}

static enum status open_embedded(struct source *source, bool validation)
{
    size_t sizes[2];
    uint8_t **files[2] = {&source->image_file, &source->label_file};
    for (int labels = 0; labels < 2; labels++) {
        struct digits_file file = digits_file(validation, labels);
        TRY(gzip_unpack("the digits that come with the program", file.bytes, file.size, FILE_LIMIT,
                        files[labels], &sizes[labels]));
    }
    return parse(source, "the embedded images", sizes[0], "the embedded labels", sizes[1]);
}

static enum status find_dataset(const struct source_options *options, const struct dataset **out)
{
    const char *names[ARRAY_COUNT(datasets) + 1] = {NULL};
    const char *name = options->dataset ? options->dataset : "";
    for (size_t i = 0; i < ARRAY_COUNT(datasets); i++) {
        names[i] = datasets[i].name;
        if (strcmp(name, names[i]) == 0) {
            *out = &datasets[i];
            return options->data_dir || datasets[i].embedded
                       ? STATUS_OK
                       : FAIL(ERR_USAGE,
                              "--dataset=%s needs --data_dir, the folder with its four IDX files; "
                              "only a subset of mnist comes with the program", name);
        }
    }
    struct text known = {0};
    text_append_list(&known, names);
    const char *nearest = text_nearest(name, names);
    enum status status = FAIL(ERR_USAGE, "no IDX data set is named '%s'; known are %s%s%s%s", name,
                              text_get(&known), nearest ? "; did you mean '" : "",
                              nearest ? nearest : "", nearest ? "'?" : "");
    text_release(&known);
    return status;
}

static enum status idx_open(const struct source_options *options, struct source **out)
{
    bool validation = strcmp(options->split, "validation") == 0;
    const struct dataset *dataset = NULL;
    *out = NULL;
    TRY(find_dataset(options, &dataset));
    struct source *source = MEM_NEW(struct source);
    source->spec = (struct example_spec){.dtype = DTYPE_U8,
                                         .num_classes = CLASSES,
                                         .class_names = dataset->class_names};
    const char *split = validation ? "t10k" : "train";
    enum status status = options->data_dir ? open_folder(source, options->data_dir, split)
                                           : open_embedded(source, validation);
    if (status != STATUS_OK) {
        idx_close(source);
        return status;
    }
    int64_t all = source->count;
    if (options->num_examples > all) {
        idx_close(source);
        return FAIL(ERR_USAGE, "num_examples of the %s data is %lld, but there are %lld examples",
                    options->split, (long long)options->num_examples, (long long)all);
    }
    if (options->num_examples > 0) {
        source->count = options->num_examples;
    }
    struct text text = {0};
    text_printf(&text, "%s, %lld %s examples%s%s", options->dataset, (long long)source->count,
                options->split, options->data_dir ? " from " : "",
                options->data_dir ? options->data_dir
                                  : ": the subset that comes with the program (give --data_dir for "
                                    "the whole set)");
    source->description = text.data;
    *out = source;
    return STATUS_OK;
}

static int64_t idx_count(const struct source *source)
{
    return source->count;
}

static const struct example_spec *idx_spec(const struct source *source)
{
    return &source->spec;
}

static enum status idx_read(const struct source *source, int64_t index, void *image, int32_t *label)
{
    *label = source->labels[index];
    if (*label >= CLASSES) {
        return FAIL(ERR_CORRUPT, "%s: example %lld (byte %lld) has the label %d, expected 0 to %d",
                    source->label_path, (long long)index, (long long)index + LABELS_HEADER, *label,
                    CLASSES - 1);
    }
    memcpy(image, source->images + (size_t)index * source->row_bytes, source->row_bytes);
    return STATUS_OK;
}

static const char *idx_describe(const struct source *source)
{
    return source->description;
}

const struct source_def source_idx = {
    .name = "idx",
    .help = "MNIST's and Fashion-MNIST's IDX files, plain or .gz",
    .open = idx_open,
    .close = idx_close,
    .count = idx_count,
    .spec = idx_spec,
    .read = idx_read,
    .describe = idx_describe,
};
