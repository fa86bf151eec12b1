// SPDX-License-Identifier: Apache-2.0
// test_data.c: sources (IDX files good and bad, the digits that come with the program, synthetic)
// and the pipeline: the same batches whatever the threads, exact seeks, bad records, limits.
#include "test.h"

#include <ftw.h>
#include <sys/stat.h>
#include <time.h>
#include <zlib.h>

#include "trainer/dataset.h"
#include "trainer/file.h"

// ---- Helpers ------------------------------------------------------------------------------------

static char folder[64];  // a new one for each test

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/trainer_data_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info;
    (void)type;
    (void)at;
    return remove(path);
}

static int remove_folder(void **state)
{
    (void)state;
    return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static const char *in_folder(const char *name)
{
    static char path[256];  // until the next call
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const void *bytes, size_t size)
{
    assert_ok(file_write(in_folder(name), bytes, size));
}

static void put_big_endian(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        at[i] = (uint8_t)(value >> (24 - 8 * i));
    }
}

enum { COUNT = 6, HEIGHT = 3, WIDTH = 5, ROW = HEIGHT * WIDTH };
static uint8_t image_file[16 + COUNT * ROW];  // byte i of the pixels is i
static uint8_t label_file[8 + COUNT];        // example i has label i + 1

// A good pair of training files, plain; the tests then damage them.
static int make_small(void **state)
{
    put_big_endian(image_file, 0x803);
    put_big_endian(image_file + 4, COUNT);
    put_big_endian(image_file + 8, HEIGHT);
    put_big_endian(image_file + 12, WIDTH);
    for (int i = 0; i < COUNT * ROW; i++) {
        image_file[16 + i] = (uint8_t)i;
    }
    put_big_endian(label_file, 0x801);
    put_big_endian(label_file + 4, COUNT);
    for (int i = 0; i < COUNT; i++) {
        label_file[8 + i] = (uint8_t)(i + 1);
    }
    if (make_folder(state) != 0) {
        return -1;
    }
    put("train-images-idx3-ubyte", image_file, sizeof image_file);
    put("train-labels-idx1-ubyte", label_file, sizeof label_file);
    return 0;
}

// Appends a gzip member.
static void put_gzip(const char *name, const void *bytes, size_t size)
{
    gzFile file = gzopen(in_folder(name), "ab");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes, (unsigned)size), size);
    assert_int_equal(gzclose(file), Z_OK);
}

struct opened {
    const struct source_def *def;
    struct source *source;
};

static enum status open_idx(const char *directory, const char *dataset, const char *split,
                            struct opened *out)
{
    struct source_options options = {.data_dir = directory, .dataset = dataset, .split = split};
    return source_open("idx", &options, &out->def, &out->source);
}

static void open_synthetic(int64_t count, const char *split, struct opened *out)
{
    struct source_options options = {
        .split = split,
        .num_examples = count,
        .seed = 5,
        .spec = {.dtype = DTYPE_U8, .shape = SHAPE(4, 6, 3), .num_classes = 7}};
    assert_ok(source_open("synthetic", &options, &out->def, &out->source));
}

// ---- The table ----------------------------------------------------------------------------------

static void test_table(void **state)
{
    (void)state;
    assert_string_equal(source_find("idx")->name, "idx");
    assert_null(source_find("tfds"));
    struct opened opened;
    struct source_options options = {.split = "train"};
    assert_int_equal(source_open("synthetik", &options, &opened.def, &opened.source), ERR_USAGE);
    assert_string_equal(error_get()->message,
                        "unknown builder 'synthetik'; known are idx, synthetic; "
                        "did you mean 'synthetic'?");
    assert_null(opened.source);
}

// ---- Published data -----------------------------------------------------------------------------

// Sum of all pixels and number of each label; the first labels are compared.
static uint64_t survey(const struct opened *opened, const char *first, int64_t per_class[10])
{
    const struct example_spec *spec = opened->def->spec(opened->source);
    assert_true(shape_equal(spec->shape, SHAPE(28, 28, 1)));
    assert_int_equal(spec->dtype, DTYPE_U8);
    assert_int_equal(spec->num_classes, 10);
    uint8_t image[784];
    uint64_t sum = 0;
    for (int64_t i = 0; i < opened->def->count(opened->source); i++) {
        int32_t label;
        assert_ok(opened->def->read(opened->source, i, image, &label));
        if (i < (int64_t)strlen(first)) {
            assert_int_equal(label, first[i] - '0');
        }
        per_class[label]++;
        for (int k = 0; k < 784; k++) {
            sum += image[k];
        }
    }
    return sum;
}

// Opens a folder of the reference data; false when it is not there.
static bool open_shared(const char *name, const char *dataset, const char *split, int64_t count,
                        struct opened *opened)
{
    char path[512];
    if (!test_shared(path, sizeof path, name)) {
        return false;
    }
    assert_ok(open_idx(path, dataset, split, opened));
    assert_int_equal(opened->def->count(opened->source), count);
    return true;
}

static void test_mnist(void **state)
{
    (void)state;
    // The sums were taken from the unpacked files by another program; for the training set they
    // give the mean of 0.13066 (of 255) that is published for it.
    static const struct {
        const char *split, *first;
        int64_t count, zeros;
        uint64_t pixel_sum;
    } rows[] = {{"train", "5041921314", 60000, 5923, 1567298545},
                {"validation", "7210414959", 10000, 980, 264923200}};
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct opened opened;
        int64_t per_class[10] = {0};
        if (!open_shared("data/mnist", "mnist", rows[i].split, rows[i].count, &opened)) {
            SKIP("data/mnist is not there");
        }
        assert_int_equal(survey(&opened, rows[i].first, per_class), rows[i].pixel_sum);
        assert_int_equal(per_class[0], rows[i].zeros);
        opened.def->close(opened.source);
    }
}

// Both splits are balanced; which images lie in which differs between copies.
static void test_fashion_mnist(void **state)
{
    (void)state;
    for (int validation = 0; validation < 2; validation++) {
        struct opened opened;
        int64_t per_class[10] = {0}, count = validation ? 10000 : 60000;
        if (!open_shared("data/fashion-mnist", "fashion_mnist", validation ? "validation" : "train",
                         count, &opened)) {
            SKIP("data/fashion-mnist is not there");
        }
        assert_true(survey(&opened, "", per_class) > 0);
        for (int k = 0; k < 10; k++) {
            assert_int_equal(per_class[k], count / 10);
        }
        opened.def->close(opened.source);
    }
}

static void test_embedded(void **state)
{
    (void)state;
    static const int64_t counts[] = {5000, 1000};
    static const char *const splits[] = {"train", "validation"};
    char path[512];
    const char *whole = test_shared(path, sizeof path, "data/mnist");
    for (int s = 0; s < 2; s++) {
        struct opened small, full;
        assert_ok(open_idx(NULL, "mnist", splits[s], &small));
        assert_int_equal(small.def->count(small.source), counts[s]);
        assert_non_null(strstr(small.def->describe(small.source), "comes with the program"));
        if (whole) {
            assert_ok(open_idx(whole, "mnist", splits[s], &full));
            for (int64_t i = 0; i < counts[s]; i++) {
                uint8_t a[784], b[784];
                int32_t x, y;
                assert_ok(small.def->read(small.source, i, a, &x));
                assert_ok(full.def->read(full.source, i, b, &y));
                assert_memory_equal(a, b, sizeof a);
                assert_int_equal(x, y);
            }
            full.def->close(full.source);
        }
        small.def->close(small.source);
    }
    if (!whole) {
        SKIP("data/mnist is not there: the subset was counted, but not compared with the whole");
    }
}

static void test_class_names(void **state)
{
    (void)state;
    struct opened opened;
    assert_ok(open_idx(folder, "mnist", "train", &opened));
    assert_string_equal(opened.def->spec(opened.source)->class_names[7], "7");
    opened.def->close(opened.source);
    assert_ok(open_idx(folder, "fashion_mnist", "train", &opened));
    assert_string_equal(opened.def->spec(opened.source)->class_names[0], "T-shirt/top");
    assert_string_equal(opened.def->spec(opened.source)->class_names[9], "Ankle boot");
    opened.def->close(opened.source);
}

// ---- File names and packing ---------------------------------------------------------------------

// The small set, whatever its files are called.
static void check_small(void)
{
    struct opened opened;
    assert_ok(open_idx(folder, "mnist", "train", &opened));
    assert_int_equal(opened.def->count(opened.source), COUNT);
    assert_true(shape_equal(opened.def->spec(opened.source)->shape, SHAPE(HEIGHT, WIDTH, 1)));
    for (int i = 0; i < COUNT; i++) {
        uint8_t image[ROW];
        int32_t label;
        assert_ok(opened.def->read(opened.source, i, image, &label));
        assert_memory_equal(image, image_file + 16 + i * ROW, ROW);
        assert_int_equal(label, i + 1);
    }
    opened.def->close(opened.source);
}

static void rename_in_folder(const char *from, const char *to)
{
    char old[256];
    snprintf(old, sizeof old, "%s", in_folder(from));
    assert_int_equal(rename(old, in_folder(to)), 0);
}

static void test_names(void **state)
{
    (void)state;
    check_small();
    rename_in_folder("train-images-idx3-ubyte", "train-images.idx3-ubyte");
    rename_in_folder("train-labels-idx1-ubyte", "train-labels.idx1-ubyte");
    check_small();
    // Folders of the usual names beside the files.
    assert_ok(file_mkdirs(in_folder("train-images-idx3-ubyte")));
    assert_ok(file_mkdirs(in_folder("train-labels-idx1-ubyte")));
    check_small();
    assert_ok(file_remove(in_folder("train-images.idx3-ubyte")));
    put_gzip("train-images.idx3-ubyte.gz", image_file, sizeof image_file);
    check_small();
}

static void test_gzip_members(void **state)
{
    (void)state;
    assert_ok(file_remove(in_folder("train-images-idx3-ubyte")));
    put_gzip("train-images-idx3-ubyte.gz", image_file, 40);
    put_gzip("train-images-idx3-ubyte.gz", image_file + 40, sizeof image_file - 40);
    check_small();
    // Packed without the ending.
    rename_in_folder("train-images-idx3-ubyte.gz", "train-images-idx3-ubyte");
    check_small();
}

static void test_num_examples(void **state)
{
    (void)state;
    struct opened opened;
    struct source_options options = {
        .data_dir = folder, .dataset = "mnist", .split = "train", .num_examples = 4};
    assert_ok(source_open("idx", &options, &opened.def, &opened.source));
    assert_int_equal(opened.def->count(opened.source), 4);
    opened.def->close(opened.source);
    options.num_examples = 7;
    assert_fails(source_open("idx", &options, &opened.def, &opened.source), ERR_USAGE,
                 "num_examples of the train data is 7, but there are 6 examples");
}

// ---- Bad input ----------------------------------------------------------------------------------

// Opening fails with exactly this message; %s is the folder.
static void refused(enum status expected, const char *format)
{
    struct opened opened = {0};
    enum status status = open_idx(folder, "mnist", "train", &opened);
    struct text text = {0};
    for (const char *at = format; *at; at++) {
        if (at[0] == '%') {
            text_append(&text, folder);
        } else {
            text_append_bytes(&text, at, 1);
        }
    }
    assert_int_equal(status, expected);
    assert_string_equal(error_get()->message, text_get(&text));
    assert_null(opened.source);
    text_release(&text);
}

static void test_missing(void **state)
{
    (void)state;
    assert_ok(file_remove(in_folder("train-labels-idx1-ubyte")));
    refused(ERR_NOT_FOUND,
            "%: holds none of train-labels-idx1-ubyte.gz, train-labels-idx1-ubyte, "
            "train-labels.idx1-ubyte.gz, train-labels.idx1-ubyte; is it the folder of the four IDX "
            "files?");
    assert_ok(file_remove(in_folder("train-images-idx3-ubyte")));
    struct opened opened;
    assert_fails(open_idx(folder, "mnist", "validation", &opened), ERR_NOT_FOUND,
                 "holds none of t10k-images-idx3-ubyte.gz, t10k-images-idx3-ubyte, ");
    assert_int_equal(rmdir(folder), 0);
    refused(ERR_NOT_FOUND,
            "%: no such folder (data_dir); expected one with train-images-idx3-ubyte.gz, "
            "train-images-idx3-ubyte, train-images.idx3-ubyte.gz, train-images.idx3-ubyte");
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void test_names_of_sets(void **state)
{
    (void)state;
    struct opened opened;
    assert_int_equal(open_idx(NULL, "fashion_mnist", "train", &opened), ERR_USAGE);
    assert_string_equal(
        error_get()->message,
        "--dataset=fashion_mnist needs --data_dir, the folder with its four IDX files; "
        "only a subset of mnist comes with the program");
    assert_int_equal(open_idx(NULL, "mnits", "train", &opened), ERR_USAGE);
    assert_string_equal(error_get()->message, "no IDX data set is named 'mnits'; known are mnist, "
                                              "fashion_mnist; did you mean 'mnist'?");
    assert_fails(open_idx(NULL, NULL, "train", &opened), ERR_USAGE,
                 "known are mnist, fashion_mnist");
}

// One byte of the image or the label file changed, or its end.
static void test_bad_files(void **state)
{
    (void)state;
    put("train-images-idx3-ubyte", image_file, 15);
    refused(ERR_CORRUPT, "%/train-images-idx3-ubyte: has 15 bytes, less than the header of an IDX "
                         "images file (16)");
    put("train-images-idx3-ubyte", "", 0);
    refused(ERR_CORRUPT, "%/train-images-idx3-ubyte: has 0 bytes, less than the header of an IDX "
                         "images file (16)");
    put("train-images-idx3-ubyte", label_file, sizeof label_file);
    refused(ERR_CORRUPT, "%/train-images-idx3-ubyte: has 14 bytes, less than the header of an IDX "
                         "images file (16)");
    image_file[3] = 4;
    put("train-images-idx3-ubyte", image_file, sizeof image_file);
    refused(ERR_CORRUPT, "%/train-images-idx3-ubyte: has the magic number 0x00000804 at byte 0, "
                         "expected 0x00000803 of IDX images");
    image_file[3] = 3;
    put("train-images-idx3-ubyte", image_file, sizeof image_file - 1);
    refused(ERR_CORRUPT, "%/train-images-idx3-ubyte: cut short: it has 105 bytes, expected 106: a "
                         "header of 16 and 6 records (said at byte 4) of 15");
    uint8_t longer[sizeof image_file + 1] = {0};
    memcpy(longer, image_file, sizeof image_file);
    put("train-images-idx3-ubyte", longer, sizeof longer);
    refused(ERR_CORRUPT,
            "%/train-images-idx3-ubyte: something follows the last: it has 107 "
            "bytes, expected 106: a header of 16 and 6 records (said at byte 4) of 15");
    memset(longer + 4, 0xff, 4);  // a count that would take 64 GB
    put("train-images-idx3-ubyte", longer, sizeof longer);
    refused(ERR_CORRUPT,
            "%/train-images-idx3-ubyte: cut short: it has 107 bytes, expected "
            "64424509441: a header of 16 and 4294967295 records (said at byte 4) of 15");
    put_big_endian(longer + 8, 0);
    put("train-images-idx3-ubyte", longer, sizeof longer);
    refused(ERR_CORRUPT, "%/train-images-idx3-ubyte: says at byte 8 that images have 0 x 5 pixels, "
                         "expected 1 to 4096 each way");
    put_big_endian(longer + 8, 4097);
    put("train-images-idx3-ubyte", longer, sizeof longer);
    refused(ERR_CORRUPT,
            "%/train-images-idx3-ubyte: says at byte 8 that images have 4097 x 5 pixels, "
            "expected 1 to 4096 each way");
}

static void test_bad_labels(void **state)
{
    (void)state;
    put("train-labels-idx1-ubyte", label_file, sizeof label_file - 2);
    refused(ERR_CORRUPT,
            "%/train-labels-idx1-ubyte: cut short: it has 12 bytes, expected 14: a header "
            "of 8 and 6 records (said at byte 4) of 1");
    put_big_endian(label_file + 4, COUNT - 1);
    put("train-labels-idx1-ubyte", label_file, sizeof label_file - 1);
    refused(ERR_CORRUPT, "%/train-labels-idx1-ubyte: holds 5 labels, but %/train-images-idx3-ubyte "
                         "holds 6 images (both said at byte 4)");
    put_big_endian(image_file + 4, 0);
    put_big_endian(label_file + 4, 0);
    put("train-images-idx3-ubyte", image_file, 16);
    put("train-labels-idx1-ubyte", label_file, 8);
    refused(ERR_CORRUPT, "%/train-images-idx3-ubyte: holds no examples (0 at byte 4)");
}

// A label beyond the classes is a fault of one example, found when it is read.
static void test_bad_label(void **state)
{
    (void)state;
    label_file[8 + 4] = 10;
    put("train-labels-idx1-ubyte", label_file, sizeof label_file);
    struct opened opened;
    assert_ok(open_idx(folder, "mnist", "train", &opened));
    uint8_t image[ROW];
    int32_t label;
    assert_ok(opened.def->read(opened.source, 3, image, &label));
    assert_int_equal(opened.def->read(opened.source, 4, image, &label), ERR_CORRUPT);
    char expected[256];
    snprintf(expected, sizeof expected, "%s: example 4 (byte 12) has the label 10, expected 0 to 9",
             in_folder("train-labels-idx1-ubyte"));
    assert_string_equal(error_get()->message, expected);
    opened.def->close(opened.source);
}

static void test_bad_gzip(void **state)
{
    (void)state;
    assert_ok(file_remove(in_folder("train-images-idx3-ubyte")));
    put_gzip("train-images-idx3-ubyte.gz", image_file, sizeof image_file);
    uint8_t *packed;
    size_t size;
    assert_ok(file_read(in_folder("train-images-idx3-ubyte.gz"), 1 << 20, &packed, &size));
    struct opened opened;
    const size_t cuts[] = {2, 9, 10, 11, size / 2, size - 8, size - 1};  // 10: header, 8: trailer
    for (size_t i = 0; i < ARRAY_COUNT(cuts); i++) {
        put("train-images-idx3-ubyte.gz", packed, cuts[i]);
        assert_fails(
            open_idx(folder, "mnist", "train", &opened), ERR_CORRUPT,
            in_folder("train-images-idx3-ubyte.gz: the gzip data is damaged or cut short"));
    }
    packed[size - 6] ^= 1;  // the checksum
    put("train-images-idx3-ubyte.gz", packed, size);
    assert_fails(open_idx(folder, "mnist", "train", &opened), ERR_CORRUPT, "incorrect data check");
    mem_free(packed);
}

// ---- Synthetic ----------------------------------------------------------------------------------

static void test_synthetic(void **state)
{
    (void)state;
    struct opened train, again, validation;
    open_synthetic(100, "train", &train);
    open_synthetic(50, "train", &again);
    open_synthetic(100, "validation", &validation);
    int per_class[7] = {0}, same = 0;
    for (int64_t i = 0; i < 100; i++) {
        uint8_t a[72], b[72];
        int32_t x, y;
        assert_ok(train.def->read(train.source, i, a, &x));
        assert_in_range(x, 0, 6);
        per_class[x]++;
        if (i < 50) {  // a pure function of the seed and the index, not of the count
            assert_ok(again.def->read(again.source, i, b, &y));
            assert_int_equal(x, y);
            assert_memory_equal(a, b, sizeof a);
        }
        assert_ok(validation.def->read(validation.source, i, b, &y));
        same += memcmp(a, b, sizeof a) == 0;
        // The class tells which field of a board of 3 x 3 is bright: two of the four rows, from 0,
        // 1 or 2 on, and two of the six columns.
        int top = x / 3 * 4 / 3, left = x % 3 * 2;
        for (int at = 0; at < 72; at++) {
            int row = at / 18, column = at / 3 % 6;
            bool lit = row >= top && row < top + 2 && column >= left && column < left + 2;
            assert_true(lit == (a[at] >= 128));
        }
    }
    assert_int_equal(same, 0);
    for (int k = 0; k < 7; k++) {
        assert_true(per_class[k] > 0);
    }
    train.def->close(train.source);
    again.def->close(again.source);
    validation.def->close(validation.source);
}

// ---- Order --------------------------------------------------------------------------------------

static void test_order_is_bijection(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 2, 3, 7, 255, 256, 257, 60000};
    for (size_t c = 0; c < ARRAY_COUNT(counts); c++) {
        int64_t count = counts[c];
        uint8_t *seen = mem_alloc((size_t)count);
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            for (int64_t i = 0; i < count; i++) {
                int64_t example = pipeline_order(9, epoch, count, i);
                assert_in_range(example, 0, count - 1);
                assert_int_equal(seen[example], epoch);
                seen[example]++;
            }
        }
        mem_free(seen);
    }
    // Sets that fit no memory, so no list of them is made either.
    int64_t huge = INT64_C(1) << 62;
    assert_in_range(pipeline_order(9, 1, huge, huge - 1), 0, huge - 1);
}

// All 120 orders of five examples come equally often: chi-squared over 12,000 epochs has 119
// degrees of freedom, so that less than one seed in 100,000 would exceed 199 by chance. The seed is
// fixed.
static void test_order_is_fair(void **state)
{
    (void)state;
    int seen[3125] = {0}, orders = 0;  // 5^5
    for (int64_t epoch = 0; epoch < 12000; epoch++) {
        int code = 0;
        for (int64_t i = 0; i < 5; i++) {
            code = 5 * code + (int)pipeline_order(11, epoch, 5, i);
        }
        seen[code]++;
    }
    double chi = 0;
    for (int i = 0; i < 3125; i++) {
        orders += seen[i] > 0;
        chi += seen[i] ? (seen[i] - 100.0) * (seen[i] - 100.0) / 100.0 : 0;
    }
    assert_int_equal(orders, 120);
    assert_true(chi < 199);
}

// Seeds and epochs give orders that agree nowhere more than chance has it: 60000 positions of two
// independent orders agree at 1 on average (Poisson); 10 or more happen once in ten million.
static void test_orders_differ(void **state)
{
    (void)state;
    int agree_epoch = 0, agree_seed = 0, follow = 0;
    for (int64_t i = 0; i < 60000; i++) {
        int64_t example = pipeline_order(1, 0, 60000, i);
        agree_epoch += example == pipeline_order(1, 1, 60000, i);
        agree_seed += example == pipeline_order(2, 0, 60000, i);
        follow += i && example == pipeline_order(1, 0, 60000, i - 1) + 1;
    }
    assert_in_range(agree_epoch, 0, 9);
    assert_in_range(agree_seed, 0, 9);
    assert_in_range(follow, 0, 9);
}

// ---- A source made up for the pipeline's tests --------------------------------------------------

// Example i is the four bytes of i; label i % 100. Some are bad, or take long.
struct source {
    int64_t count;
    bool (*bad)(int64_t example);
    enum status bad_status;
    int64_t slow;        // this example takes slow_ms; -1 = none
    int slow_ms, all_us;  // each takes all_us
};

static const struct example_spec fake_example = {
    .dtype = DTYPE_U8, .shape = {.rank = 3, .dim = {2, 2, 1}}, .num_classes = 100};

static int64_t fake_count(const struct source *source)
{
    return source->count;
}

static const struct example_spec *fake_spec(const struct source *source)
{
    (void)source;
    return &fake_example;
}

static const char *fake_describe(const struct source *source)
{
    (void)source;
    return "fake data";
}

static void sleep_us(int64_t us)
{
    struct timespec time = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static enum status fake_read(const struct source *source, int64_t index, void *image,
                             int32_t *label)
{
    if (source->all_us) {
        sleep_us(source->all_us);
    }
    if (index == source->slow) {
        sleep_us(1000 * (int64_t)source->slow_ms);
    }
    *label = (int32_t)(index % 100);
    uint32_t bytes = (uint32_t)index;
    memcpy(image, &bytes, sizeof bytes);
    return source->bad && source->bad(index)
               ? FAIL(source->bad_status, "fake: example %lld is bad", (long long)index)
               : STATUS_OK;
}

static const struct source_def fake_def = {.name = "fake",
                                           .help = "",
                                           .count = fake_count,
                                           .spec = fake_spec,
                                           .read = fake_read,
                                           .describe = fake_describe};

static struct pipeline *start(const struct source *source, const struct pipeline_options *options,
                              int64_t epoch, int64_t batch)
{
    struct pipeline *pipeline;
    assert_ok(pipeline_new(&fake_def, source, options, &pipeline));
    assert_ok(pipeline_seek(pipeline, (struct pipeline_state){epoch, batch}));
    return pipeline;
}

static uint64_t hash_batch(uint64_t hash, const struct batch *batch, int size)
{
    hash = hash_bytes(hash, batch->images, (size_t)size * 4);
    hash = hash_bytes(hash, batch->labels, (size_t)size * sizeof *batch->labels);
    hash = hash_bytes(hash, batch->indices, (size_t)size * sizeof *batch->indices);
    hash = hash_bytes(hash, &batch->count, sizeof batch->count);
    hash = hash_bytes(hash, &batch->epoch, sizeof batch->epoch);
    return hash_bytes(hash, &batch->position, sizeof batch->position);
}

// ---- Pipeline: batches --------------------------------------------------------------------------

static const struct {
    int threads, prefetch;
} setups[] = {{0, 1}, {1, 1}, {1, 4}, {2, 1}, {2, 4}, {4, 1}, {4, 4}};

static void test_threads_change_nothing(void **state)
{
    (void)state;
    struct source source = {.count = 1003, .slow = -1};
    uint64_t first = 0;
    for (size_t s = 0; s < ARRAY_COUNT(setups); s++) {
        struct pipeline_options options = {.batch_size = 64,
                                           .shuffle = true,
                                           .seed = 3,
                                           .threads = setups[s].threads,
                                           .prefetch = setups[s].prefetch};
        struct pipeline *pipeline = start(&source, &options, 0, 0);
        uint64_t hash = HASH_START;
        for (int i = 0; i < 200; i++) {
            const struct batch *batch;
            assert_ok(pipeline_next(pipeline, &batch));
            hash = hash_batch(hash, batch, 64);
        }
        pipeline_free(pipeline);
        first = s ? first : hash;
        assert_true(hash == first);
    }
}

// Every example once an epoch, the last batch short and padded; or left out.
static void test_epochs(void **state)
{
    (void)state;
    struct source source = {.count = 103, .slow = -1};
    for (int flags = 0; flags < 8; flags++) {
        bool drop = flags & 1, shuffle = flags & 2;
        struct pipeline_options options = {.batch_size = 10,
                                           .shuffle = shuffle,
                                           .seed = 8,
                                           .drop_remainder = drop,
                                           .threads = flags & 4 ? 2 : 0,
                                           .prefetch = 3};
        struct pipeline *pipeline = start(&source, &options, 0, 0);
        int64_t batches = pipeline_batches_per_epoch(pipeline);
        assert_int_equal(batches, drop ? 10 : 11);
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            int seen[103] = {0}, total = 0;
            for (int64_t b = 0; b < batches; b++) {
                const struct batch *batch;
                assert_ok(pipeline_next(pipeline, &batch));
                assert_int_equal(batch->epoch, epoch);
                assert_int_equal(batch->position, 10 * b);
                assert_int_equal(batch->count, b == 10 ? 3 : 10);
                for (int i = 0; i < 10; i++) {
                    uint32_t bytes;
                    memcpy(&bytes, (char *)batch->images + 4 * i, sizeof bytes);
                    int64_t at = 10 * b + i;
                    int64_t example = shuffle && at < 103 ? pipeline_order(8, epoch, 103, at) : at;
                    bool real = i < batch->count;
                    assert_int_equal(batch->indices[i], real ? example : -1);
                    assert_int_equal(bytes, real ? example : 0);
                    assert_int_equal(batch->labels[i], real ? example % 100 : 0);
                    if (real) {
                        seen[example]++;
                        total++;
                    }
                }
            }
            assert_int_equal(total, drop ? 100 : 103);
            for (int i = 0; i < 103; i++) {
                assert_true(seen[i] <= 1);
            }
        }
        pipeline_free(pipeline);
    }
}

static void test_batch_larger_than_data(void **state)
{
    (void)state;
    struct source source = {.count = 3, .slow = -1};
    struct pipeline_options options = {
        .batch_size = 8, .shuffle = true, .threads = 1, .prefetch = 2};
    struct pipeline *pipeline = start(&source, &options, 5, 0);
    const struct batch *batch;
    assert_ok(pipeline_next(pipeline, &batch));
    assert_int_equal(batch->count, 3);
    assert_int_equal(batch->epoch, 5);
    pipeline_free(pipeline);
    options.drop_remainder = true;
    assert_int_equal(pipeline_new(&fake_def, &source, &options, &pipeline), ERR_USAGE);
    assert_string_equal(error_get()->message,
                        "the batch has 8 examples, but there are only 3 (fake data), and smaller "
                        "batches are left out (drop_remainder)");
    assert_null(pipeline);
    source.count = 0;
    assert_fails(pipeline_new(&fake_def, &source, &options, &pipeline), ERR_USAGE,
                 "fake data: no examples");
    pipeline_free(NULL);
}

// From anywhere, also back, also while workers are busy, the batches are those of the whole stream.
static void test_seek(void **state)
{
    (void)state;
    enum { BATCHES = 40 };
    struct source source = {.count = 203, .slow = -1};
    for (size_t s = 0; s < ARRAY_COUNT(setups); s++) {
        struct pipeline_options options = {.batch_size = 16,
                                           .shuffle = true,
                                           .seed = 3,
                                           .threads = setups[s].threads,
                                           .prefetch = setups[s].prefetch};
        struct pipeline *pipeline = start(&source, &options, 0, 0);
        int64_t batches = pipeline_batches_per_epoch(pipeline);
        uint64_t whole[BATCHES];
        const struct batch *batch;
        for (int i = 0; i < BATCHES; i++) {
            assert_ok(pipeline_next(pipeline, &batch));
            whole[i] = hash_batch(HASH_START, batch, 16);
        }
        static const int places[] = {17, 0, 39, 13, 12, 26};
        for (size_t p = 0; p < ARRAY_COUNT(places); p++) {
            assert_ok(pipeline_seek(
                pipeline, (struct pipeline_state){places[p] / batches, places[p] % batches}));
            for (int i = places[p]; i < MIN(places[p] + 5, BATCHES); i++) {
                assert_ok(pipeline_next(pipeline, &batch));
                assert_true(hash_batch(HASH_START, batch, 16) == whole[i]);
            }
        }
        pipeline_free(pipeline);
    }
}

// ---- Pipeline: bad records ----------------------------------------------------------------------

static bool bad_7_8_40(int64_t example)
{
    return example == 7 || example == 8 || example == 40;
}

static bool bad_all(int64_t example)
{
    return example >= 0;
}

static void test_bad_replaced(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    struct source source = {.count = 50, .slow = -1, .bad = bad_7_8_40, .bad_status = ERR_CORRUPT};
    for (size_t s = 0; s < ARRAY_COUNT(setups); s++) {
        struct pipeline_options options = {.batch_size = 10,
                                           .max_bad_records = 3,
                                           .threads = setups[s].threads,
                                           .prefetch = setups[s].prefetch};
        struct pipeline *pipeline = start(&source, &options, 0, 0);
        for (int b = 0; b < 15; b++) {  // three epochs: each is counted once
            const struct batch *batch;
            assert_ok(pipeline_next(pipeline, &batch));
            for (int i = 0; i < 10; i++) {
                int64_t at = b % 5 * 10 + i;
                int64_t expected = at == 7 || at == 8 ? 9 : at == 40 ? 41 : at;
                assert_int_equal(batch->indices[i], expected);
                assert_int_equal(batch->labels[i], expected);
                assert_int_equal(((uint8_t *)batch->images)[4 * i], expected);
            }
            assert_int_equal(pipeline_bad_records(pipeline), b < 4 ? 2 : 3);
        }
        pipeline_free(pipeline);
    }
    log_set_level(LOG_WARNING);
}

// The run fails at the same example, after the same batches, whatever the threads.
static void test_bad_budget(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    struct source source = {.count = 50, .slow = -1, .bad = bad_7_8_40, .bad_status = ERR_CORRUPT};
    static const struct {
        int64_t budget;
        int good_batches;
        const char *message;
    } rows[] = {
        {0, 0,
         "fake: example 7 is bad; that makes 1, more than max_bad_records=0 (--mode=check_data "
         "lists all)"},
        {1, 0,
         "fake: example 8 is bad; that makes 2, more than max_bad_records=1 (--mode=check_data "
         "lists all)"},
        {2, 4,
         "fake: example 40 is bad; that makes 3, more than max_bad_records=2 (--mode=check_data "
         "lists all)"},
    };
    for (size_t s = 0; s < ARRAY_COUNT(setups); s++) {
        for (size_t r = 0; r < ARRAY_COUNT(rows); r++) {
            struct pipeline_options options = {.batch_size = 10,
                                               .threads = setups[s].threads,
                                               .prefetch = setups[s].prefetch,
                                               .max_bad_records = rows[r].budget};
            struct pipeline *pipeline = start(&source, &options, 0, 0);
            const struct batch *batch;
            for (int b = 0; b < rows[r].good_batches; b++) {
                assert_ok(pipeline_next(pipeline, &batch));
                assert_int_equal(batch->indices[9], 10 * b + 9);  // complete
            }
            assert_int_equal(pipeline_next(pipeline, &batch), ERR_CORRUPT);
            assert_string_equal(error_get()->message, rows[r].message);
            assert_int_equal(pipeline_next(pipeline, &batch), ERR_CORRUPT);  // and stays so
            pipeline_free(pipeline);
        }
    }
    log_set_level(LOG_WARNING);
}

static void test_no_good_record(void **state)
{
    (void)state;
    struct source source = {.count = 5, .slow = -1, .bad = bad_all, .bad_status = ERR_CORRUPT};
    for (size_t s = 0; s < ARRAY_COUNT(setups); s++) {
        struct pipeline_options options = {.batch_size = 2,
                                           .threads = setups[s].threads,
                                           .prefetch = setups[s].prefetch,
                                           .max_bad_records = 1000};
        struct pipeline *pipeline = start(&source, &options, 0, 0);
        const struct batch *batch;
        assert_int_equal(pipeline_next(pipeline, &batch), ERR_CORRUPT);
        assert_string_equal(error_get()->message,
                            "fake data: no example can be read; the last: fake: "
                            "example 4 is bad");
        pipeline_free(pipeline);
    }
}

// Only damage is skipped: a failing disk is not a bad record.
static void test_other_errors(void **state)
{
    (void)state;
    struct source source = {.count = 50, .slow = -1, .bad = bad_7_8_40, .bad_status = ERR_IO};
    for (size_t s = 0; s < ARRAY_COUNT(setups); s++) {
        struct pipeline_options options = {.batch_size = 10,
                                           .threads = setups[s].threads,
                                           .prefetch = setups[s].prefetch,
                                           .max_bad_records = 1000};
        struct pipeline *pipeline = start(&source, &options, 0, 1);
        const struct batch *batch;
        for (int b = 1; b < 4; b++) {
            assert_ok(pipeline_next(pipeline, &batch));
        }
        assert_fails(pipeline_next(pipeline, &batch), ERR_IO, "fake: example 40 is bad");
        assert_int_equal(pipeline_bad_records(pipeline), 0);
        pipeline_free(pipeline);
    }
}

// ---- Pipeline: waiting and stopping -------------------------------------------------------------

static void test_timeout(void **state)
{
    (void)state;
    // 0.4 s against a limit of 0.05 s: neither a busy machine nor a sanitizer turns them around.
    struct source source = {.count = 50, .slow = 23, .slow_ms = 400};
    struct pipeline_options options = {
        .batch_size = 10, .threads = 2, .prefetch = 3, .timeout = 0.05};
    struct pipeline *pipeline = start(&source, &options, 0, 2);
    const struct batch *batch;
    assert_int_equal(pipeline_next(pipeline, &batch), ERR_TIMEOUT);
    assert_string_equal(error_get()->message, "fake data: waited 0.05 s for batch 3 of epoch 1; "
                                              "example 23 is still being read");
    assert_true(pipeline_wait_seconds(pipeline) >= 0.05);
    pipeline_free(pipeline);
}

// Ends in the middle of batches without waiting for the rest of them: 1000 rows of 1 ms each.
static void test_free_while_busy(void **state)
{
    (void)state;
    struct source source = {.count = 5000, .slow = -1, .all_us = 1000};
    for (int delay_ms = 0; delay_ms < 4; delay_ms++) {
        struct pipeline_options options = {
            .batch_size = 1000, .shuffle = true, .threads = 4, .prefetch = 2};
        struct pipeline *pipeline = start(&source, &options, 0, 0);
        sleep_us(1000 * delay_ms);
        double begin = time_now();
        assert_ok(pipeline_seek(pipeline, (struct pipeline_state){1, 2}));
        pipeline_free(pipeline);
        assert_true(time_now() - begin < 0.9);  // a batch alone takes a second
    }
}

// Through real files: what the trainer does.
static void test_digits_in_pipeline(void **state)
{
    (void)state;
    struct opened opened;
    assert_ok(open_idx(NULL, "mnist", "validation", &opened));
    struct pipeline_options options = {.batch_size = 64, .threads = 0, .prefetch = 1};
    struct pipeline *pipeline;
    assert_ok(pipeline_new(opened.def, opened.source, &options, &pipeline));
    assert_ok(pipeline_seek(pipeline, (struct pipeline_state){0, 0}));
    const struct batch *batch;
    assert_int_equal(pipeline_batches_per_epoch(pipeline), 16);
    int64_t examples = 0;
    for (int b = 0; b < 16; b++) {
        assert_ok(pipeline_next(pipeline, &batch));
        examples += batch->count;
    }
    assert_int_equal(examples, 1000);
    assert_int_equal(batch->count, 40);
    pipeline_free(pipeline);
    opened.def->close(opened.source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_mnist),
        cmocka_unit_test(test_fashion_mnist),
        cmocka_unit_test(test_embedded),
        cmocka_unit_test_setup_teardown(test_class_names, make_small, remove_folder),
        cmocka_unit_test_setup_teardown(test_names, make_small, remove_folder),
        cmocka_unit_test_setup_teardown(test_gzip_members, make_small, remove_folder),
        cmocka_unit_test_setup_teardown(test_num_examples, make_small, remove_folder),
        cmocka_unit_test_setup_teardown(test_missing, make_small, remove_folder),
        cmocka_unit_test(test_names_of_sets),
        cmocka_unit_test_setup_teardown(test_bad_files, make_small, remove_folder),
        cmocka_unit_test_setup_teardown(test_bad_labels, make_small, remove_folder),
        cmocka_unit_test_setup_teardown(test_bad_label, make_small, remove_folder),
        cmocka_unit_test_setup_teardown(test_bad_gzip, make_small, remove_folder),
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_order_is_bijection),
        cmocka_unit_test(test_order_is_fair),
        cmocka_unit_test(test_orders_differ),
        cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_batch_larger_than_data),
        cmocka_unit_test(test_seek),
        cmocka_unit_test(test_bad_replaced),
        cmocka_unit_test(test_bad_budget),
        cmocka_unit_test(test_no_good_record),
        cmocka_unit_test(test_other_errors),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_free_while_busy),
        cmocka_unit_test(test_digits_in_pipeline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
