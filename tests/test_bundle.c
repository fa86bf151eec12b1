// SPDX-License-Identifier: Apache-2.0
// test_bundle.c: checkpoints as bytes: TensorFlow's own files read and rewritten, damage, faults.
#include "test.h"

#include <sys/stat.h>

#include "trainer/file.h"
#include "trainer/io.h"

static int compare_offsets(const void *a, const void *b)
{
    const struct bundle_entry *x = *(struct bundle_entry *const *)a;
    const struct bundle_entry *y = *(struct bundle_entry *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

// Copies tensor by tensor, in the order in which they lie in the data file.
static void copy_bundle(const char *from, const char *to)
{
    struct bundle *bundle;
    struct bundle_writer *writer;
    assert_ok(bundle_open(from, &bundle));
    assert_ok(bundle_create(to, &writer));
    int count = bundle_count(bundle);
    const struct bundle_entry **order = MEM_NEW_ARRAY(const struct bundle_entry *, count);
    for (int i = 0; i < count; i++) {
        order[i] = bundle_at(bundle, i);
    }
    qsort(order, (size_t)count, sizeof *order, compare_offsets);
    for (int i = 0; i < count; i++) {
        const struct bundle_entry *entry = order[i];
        enum dtype dtype;
        if (entry->tf_dtype == TF_STRING) {
            uint8_t *bytes;
            size_t size;
            assert_ok(bundle_read_string(bundle, entry->name, &bytes, &size));
            assert_ok(bundle_put_string(writer, entry->name, bytes, size));
            mem_free(bytes);
        } else {
            assert_true(tf_dtype_find(entry->tf_dtype, &dtype));
            void *data = mem_alloc(entry->size);
            assert_ok(bundle_read(bundle, entry->name, dtype, entry->shape, data));
            assert_ok(bundle_put(writer, entry->name, dtype, entry->shape, data));
            mem_free(data);
        }
    }
    mem_free(order);
    bundle_close(bundle);
    assert_ok(bundle_commit(writer));
}

static void same_file(const char *a, const char *b)
{
    uint8_t *x, *y;
    size_t n, m;
    assert_ok(file_read(a, 1 << 28, &x, &n));
    assert_ok(file_read(b, 1 << 28, &y, &m));
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    mem_free(x);
    mem_free(y);
}

// Read with our reader, written with our writer: the same bytes as TensorFlow's.
static void test_rewrites_tensorflow(void **state)
{
    (void)state;
    static const char *const prefixes[] = {
        "golden/keras/interop/legacy_adam/training_checkpoints/ckpt_2",
        "golden/keras/interop/new_adam/training_checkpoints/ckpt_2",
        "golden/keras/interop/full_width/training_checkpoints/ckpt_1",
        "golden/keras/interop/legacy_adam/saved_model/variables/variables"};
    char directory[] = "/tmp/trainer_test_XXXXXX", path[512];
    if (!test_shared(path, sizeof path, "golden/keras/interop/interop.md")) {
        SKIP("TensorFlow's checkpoints are not beside the checkout");
    }
    assert_non_null(mkdtemp(directory));
    for (size_t i = 0; i < ARRAY_COUNT(prefixes); i++) {
        char copy[64], a[600], b[600];
        (void)test_shared(path, sizeof path, prefixes[i]);
        snprintf(copy, sizeof copy, "%s/copy", directory);
        copy_bundle(path, copy);
        static const char *const endings[] = {".index", ".data-00000-of-00001"};
        for (int k = 0; k < 2; k++) {
            snprintf(a, sizeof a, "%s%s", path, endings[k]);
            snprintf(b, sizeof b, "%s%s", copy, endings[k]);
            same_file(a, b);
            assert_ok(file_remove(b));
        }
    }
    rmdir(directory);
}

static const float weights[6] = {1, 2, 3, 4, 5, 6};

static enum status write_small(const char *prefix, float first)
{
    struct bundle_writer *writer;
    float values[6];
    memcpy(values, weights, sizeof values);
    values[0] = first;
    TRY(bundle_create(prefix, &writer));
    enum status status = bundle_put(writer, "b/kernel", DTYPE_F32, SHAPE(2, 3), values);
    int64_t step = 7;
    if (status == STATUS_OK) {
        status = bundle_put(writer, "a/step", DTYPE_I64, shape_scalar(), &step);
    }
    if (status == STATUS_OK) {
        status = bundle_put_string(writer, "c/text", "hello", 5);
    }
    if (status != STATUS_OK) {
        bundle_abort(writer);
        return status;
    }
    return bundle_commit(writer);
}

// Reads everything; true when all of it is what was written with `first`.
static bool reads_back(const char *prefix, float *first)
{
    struct bundle *bundle;
    float values[6];
    int64_t step = 0;
    uint8_t *bytes = NULL;
    size_t size;
    if (bundle_open(prefix, &bundle) != STATUS_OK) {
        return false;
    }
    bool good = bundle_read(bundle, "b/kernel", DTYPE_F32, SHAPE(2, 3), values) == STATUS_OK &&
                bundle_read(bundle, "a/step", DTYPE_I64, shape_scalar(), &step) == STATUS_OK &&
                bundle_read_string(bundle, "c/text", &bytes, &size) == STATUS_OK;
    good = good && memcmp(values + 1, weights + 1, 20) == 0 && step == 7 && size == 5 &&
           memcmp(bytes, "hello", 5) == 0;
    *first = values[0];
    mem_free(bytes);
    bundle_close(bundle);
    return good;
}

static void write_bytes(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

// Every length and every single flipped bit: what was written, or an error; never something else.
static void test_damage(void **state)
{
    (void)state;
    char directory[] = "/tmp/trainer_test_XXXXXX", prefix[64], path[96];
    assert_non_null(mkdtemp(directory));
    snprintf(prefix, sizeof prefix, "%s/c", directory);
    assert_ok(write_small(prefix, 1));
    static const char *const endings[] = {".index", ".data-00000-of-00001"};
    for (int k = 0; k < 2; k++) {
        uint8_t *bytes;
        size_t size;
        float first;
        snprintf(path, sizeof path, "%s%s", prefix, endings[k]);
        assert_ok(file_read(path, 1 << 20, &bytes, &size));
        for (size_t length = 0; length < size; length++) {
            write_bytes(path, bytes, length);
            assert_false(reads_back(prefix, &first));
        }
        for (size_t bit = 0; bit < 8 * size; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            write_bytes(path, bytes, size);
            assert_true(!reads_back(prefix, &first) || first == 1);
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        write_bytes(path, bytes, size);
        assert_true(reads_back(prefix, &first));
        mem_free(bytes);
        assert_ok(file_remove(path));
        struct bundle *bundle = NULL;
        float values[6];
        enum status status = bundle_open(prefix, &bundle);
        if (status == STATUS_OK) {
            status = bundle_read(bundle, "b/kernel", DTYPE_F32, SHAPE(2, 3), values);
        }
        assert_int_equal(status, ERR_NOT_FOUND);
        assert_non_null(strstr(error_get()->message, endings[k]));
        bundle_close(bundle);
        assert_ok(write_small(prefix, 1));
    }
    for (int k = 0; k < 2; k++) {
        snprintf(path, sizeof path, "%s%s", prefix, endings[k]);
        assert_ok(file_remove(path));
    }
    rmdir(directory);
}

static void test_messages(void **state)
{
    (void)state;
    char directory[] = "/tmp/trainer_test_XXXXXX", prefix[64];
    assert_non_null(mkdtemp(directory));
    snprintf(prefix, sizeof prefix, "%s/c", directory);
    assert_ok(write_small(prefix, 1));
    struct bundle *bundle;
    float values[6];
    assert_ok(bundle_open(prefix, &bundle));
    assert_fails(bundle_read(bundle, "b/kernel", DTYPE_F32, SHAPE(3, 2), values), ERR_MISMATCH,
                 "tensor b/kernel is float32 (2, 3), expected float32 (3, 2)");
    assert_fails(bundle_read(bundle, "b/bias", DTYPE_F32, SHAPE(3), values), ERR_NOT_FOUND,
                 "has no tensor b/bias");
    bundle_close(bundle);
}

// A write that fails at any point leaves an error, no temporary file, and the old or the new content.
static void test_faults(void **state)
{
    (void)state;
    char directory[] = "/tmp/trainer_test_XXXXXX", prefix[64];
    assert_non_null(mkdtemp(directory));
    snprintf(prefix, sizeof prefix, "%s/c", directory);
    assert_ok(write_small(prefix, 1));
    for (int n = 1;; n++) {
        float first;
        file_fail_after(n);
        enum status status = write_small(prefix, 2);
        file_fail_after(0);
        char **names;
        int count;
        assert_ok(file_list(directory, &names, &count));
        assert_int_equal(count, 2);
        file_list_free(names, count);
        // Between the two renames the crcs tell; the caller's older checkpoints are untouched.
        bool whole = reads_back(prefix, &first);
        assert_true(!whole || first == 1 || first == 2);
        if (status == STATUS_OK) {
            assert_true(whole && first == 2);
            break;
        }
        assert_ok(write_small(prefix, 1));
        assert_true(n < 40);
    }
}

static void test_crc(void **state)
{
    (void)state;
    // RFC 3720, B.4: 32 bytes of zeros, of ones, ascending.
    uint8_t bytes[32] = {0};
    assert_int_equal(crc32c(0, bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, 32);
    assert_int_equal(crc32c(0, bytes, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) {
        bytes[i] = (uint8_t)i;
    }
    assert_int_equal(crc32c(0, bytes, 32), 0x46dd794eu);
    assert_int_equal(crc32c(crc32c(0, bytes, 13), bytes + 13, 19), 0x46dd794eu);
    assert_int_equal(crc32c_unmask(crc32c_mask(0x12345678)), 0x12345678);
}

static void test_state_file(void **state)
{
    (void)state;
    char directory[] = "/tmp/trainer_test_XXXXXX", path[96];
    assert_non_null(mkdtemp(directory));
    char **names;
    int count;
    assert_fails(checkpoint_state_list(directory, &names, &count), ERR_NOT_FOUND, "checkpoint");
    assert_ok(checkpoint_state_write(directory, (const char *[]){"a-1", "b\"2"}, 2));
    assert_ok(checkpoint_state_list(directory, &names, &count));
    assert_int_equal(count, 2);
    assert_string_equal(names[0], "a-1");
    assert_string_equal(names[1], "b\"2");
    file_list_free(names, count);
    // A folder that was moved: the absolute name is gone, its last part is here.
    snprintf(path, sizeof path, "%s/checkpoint", directory);
    const char *moved = "model_checkpoint_path: \"/gone/ckpt-5\"\n";
    assert_ok(file_write(path, moved, strlen(moved)));
    snprintf(path, sizeof path, "%s/ckpt-5.index", directory);
    assert_ok(file_write(path, "", 0));
    char *prefix;
    assert_ok(checkpoint_state_read(directory, &prefix));
    assert_string_equal(prefix + strlen(directory), "/ckpt-5");
    mem_free(prefix);
}

static void test_object_graph(void **state)
{
    (void)state;
    struct object_graph graph, again;
    object_graph_init(&graph);
    int layer = object_add(&graph, 0, "layer_with_weights-0");
    int kernel = object_add(&graph, layer, "kernel");
    object_set_variable(&graph, kernel, "layer_with_weights-0/kernel", "conv2d/kernel");
    int optimizer = object_add(&graph, 0, "optimizer");
    int slot = object_add(&graph, optimizer, "m");
    object_add_slot(&graph, optimizer, kernel, "m", slot);
    struct text bytes = {0}, second = {0};
    object_graph_encode(&graph, &bytes);
    assert_ok(object_graph_decode("t", bytes.data, bytes.size, &again));
    object_graph_encode(&again, &second);
    assert_int_equal(bytes.size, second.size);
    assert_memory_equal(bytes.data, second.data, bytes.size);
    assert_int_equal(object_find(&again, object_find(&again, 0, "layer_with_weights-0"), "kernel"),
                     kernel);
    object_graph_release(&again);
    for (size_t length = 0; length < bytes.size; length++) {
        if (object_graph_decode("t", bytes.data, length, &again) == STATUS_OK) {
            object_graph_release(&again);
        }
    }
    for (size_t bit = 0; bit < 8 * bytes.size; bit++) {
        bytes.data[bit / 8] ^= (char)(1 << bit % 8);
        if (object_graph_decode("t", bytes.data, bytes.size, &again) == STATUS_OK) {
            object_graph_release(&again);
        }
        bytes.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    text_release(&bytes);
    text_release(&second);
    object_graph_release(&graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rewrites_tensorflow), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_messages),            cmocka_unit_test(test_faults),
        cmocka_unit_test(test_crc),                 cmocka_unit_test(test_state_file),
        cmocka_unit_test(test_object_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
