// SPDX-License-Identifier: Apache-2.0
// test_checkpoint_v1.c: checkpoints of TensorFlow's first format, through the same calls as V2.
// tests/checkpoint_v1 was written by tf.compat.v1.train.Saver(write_version=V1): one file (whole)
// and two shards (parts); "cut" is a partitioned variable, its second column in a slice of its own.
#include "test.h"

#include "trainer/file.h"
#include "trainer/io.h"

#define PARTS "-\?\?\?\?\?-of-00002"

static void write_bytes(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static const float kernel[6] = {0, .25F, .5F, .75F, 1, 1.25F};
static const float cut[8] = {0, 0, 1, 10, 2, 20, 3, 30};

// Reads every tensor; a value that is not what was saved fails the test, an error is returned.
static enum status read_all(const char *prefix)
{
    struct bundle *bundle;
    float k[6], c[8];
    double d[2];
    int64_t count;
    int32_t integers[3];
    uint8_t bytes[2];
    TRY(bundle_open(prefix, &bundle));
    enum status status = bundle_read(bundle, "kernel", DTYPE_F32, SHAPE(2, 3), k);
    if (status == STATUS_OK) {
        assert_memory_equal(k, kernel, sizeof k);
        status = bundle_read(bundle, "cut", DTYPE_F32, SHAPE(4, 2), c);
    }
    if (status == STATUS_OK) {
        assert_memory_equal(c, cut, sizeof c);
        status = bundle_read(bundle, "double", DTYPE_F64, SHAPE(2), d);
    }
    if (status == STATUS_OK) {
        assert_true(d[0] == 1.0 / 3 && d[1] == -1e300);
        status = bundle_read(bundle, "count", DTYPE_I64, (struct shape){0}, &count);
    }
    if (status == STATUS_OK) {
        assert_int_equal(count, -7);
        status = bundle_read(bundle, "int", DTYPE_I32, SHAPE(3), integers);
    }
    if (status == STATUS_OK) {
        assert_true(integers[0] == 1 && integers[1] == -2 && integers[2] == INT32_MAX);
        status = bundle_read(bundle, "byte", DTYPE_U8, SHAPE(1, 2), bytes);
    }
    if (status == STATUS_OK) {
        assert_true(bytes[0] == 0 && bytes[1] == 255);
    }
    bundle_close(bundle);
    return status;
}

static void test_reads_tensorflow(void **state)
{
    (void)state;
    static const char *const names[] = {"byte", "count", "cut", "double", "int", "kernel"};
    static const char *const prefixes[] = {"whole", "parts", "parts" PARTS};
    for (size_t i = 0; i < ARRAY_COUNT(prefixes); i++) {
        char path[512], below[64];
        struct bundle *bundle;
        float values[6];
        snprintf(below, sizeof below, "checkpoint_v1/%s", prefixes[i]);
        (void)test_path(path, sizeof path, below);
        assert_ok(read_all(path));
        assert_ok(bundle_open(path, &bundle));
        assert_int_equal(bundle_count(bundle), (int)ARRAY_COUNT(names));
        for (int k = 0; k < bundle_count(bundle); k++) {
            assert_string_equal(bundle_at(bundle, k)->name, names[k]);
        }
        assert_fails(bundle_read(bundle, "kernel", DTYPE_F32, SHAPE(3, 2), values), ERR_MISMATCH,
                     "kernel is float32 (2, 3), expected float32 (3, 2)");
        assert_fails(bundle_read(bundle, "bias", DTYPE_F32, SHAPE(3), values), ERR_NOT_FOUND,
                     "has no tensor bias");
        bundle_close(bundle);
    }
}

static void test_reads_half_plus_two(void **state)
{
    (void)state;
    char path[512];
    float a, b;
    struct bundle *bundle;
    static const char *const prefix =
        "data/tf_artifacts/checkpoint/v1_half_plus_two/00000123/export";
    if (!test_shared(path, sizeof path,
                     "data/tf_artifacts/checkpoint/v1_half_plus_two/00000123/export.meta")) {
        SKIP("%s is not beside the checkout", prefix);
    }
    path[strlen(path) - strlen(".meta")] = '\0';
    assert_ok(bundle_open(path, &bundle));
    assert_int_equal(bundle_count(bundle), 2);
    assert_ok(bundle_read(bundle, "a", DTYPE_F32, (struct shape){0}, &a));
    assert_ok(bundle_read(bundle, "b", DTYPE_F32, (struct shape){0}, &b));
    assert_true(a == 0.5F && b == 2.0F);
    bundle_close(bundle);
}

// Every length and every flipped bit: what was saved, or a sentence; never something else.
static void damage(const char *prefix, const char *victim)
{
    uint8_t *bytes;
    size_t size;
    assert_ok(file_read(victim, 1 << 20, &bytes, &size));
    for (size_t length = 0; length < size; length++) {
        write_bytes(victim, bytes, length);
        assert_int_equal(read_all(prefix), ERR_CORRUPT);
        assert_non_null(strstr(error_get()->message, prefix));
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        write_bytes(victim, bytes, size);
        enum status status = read_all(prefix);
        // A flip in the place of the (unused, empty) metaindex harms nothing.
        assert_true(status == STATUS_OK || status == ERR_CORRUPT || status == ERR_UNSUPPORTED);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    write_bytes(victim, bytes, size);
    assert_ok(read_all(prefix));
    mem_free(bytes);
}

static void copy(const char *name, const char *to)
{
    char from[512], below[64];
    uint8_t *bytes;
    size_t size;
    snprintf(below, sizeof below, "checkpoint_v1/%s", name);
    assert_ok(file_read(test_path(from, sizeof from, below), 1 << 20, &bytes, &size));
    write_bytes(to, bytes, size);
    mem_free(bytes);
}

static void test_damage(void **state)
{
    (void)state;
    char directory[] = "/tmp/trainer_test_XXXXXX", whole[64], parts[64], first[96], second[96];
    assert_non_null(mkdtemp(directory));
    snprintf(whole, sizeof whole, "%s/whole", directory);
    snprintf(parts, sizeof parts, "%s/parts", directory);
    snprintf(first, sizeof first, "%s-00000-of-00002", parts);
    snprintf(second, sizeof second, "%s-00001-of-00002", parts);
    copy("whole", whole);
    copy("parts-00000-of-00002", first);
    copy("parts-00001-of-00002", second);
    damage(whole, whole);
    damage(parts, second);
    // A shard that is gone is named; so is the same shard twice.
    assert_ok(file_remove(second));
    assert_int_equal(read_all(parts), ERR_NOT_FOUND);
    assert_non_null(strstr(error_get()->message, "parts-00001-of-00002"));
    copy("parts-00000-of-00002", second);
    assert_fails(read_all(parts), ERR_CORRUPT, "two slices of tensor kernel overlap");
    assert_ok(file_remove(first));
    assert_ok(file_remove(second));
    assert_int_equal(read_all(parts), ERR_NOT_FOUND);
    assert_non_null(strstr(error_get()->message, "parts.index"));
    assert_ok(file_remove(whole));
    assert_int_equal(rmdir(directory), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_tensorflow),
        cmocka_unit_test(test_reads_half_plus_two),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
