// SPDX-License-Identifier: Apache-2.0
// test_base.c: floor 0: errors, text, files under injected faults, barrier, team, random numbers.
#include "test.h"

#include <math.h>
#include <sys/stat.h>

#include "trainer/file.h"
#include "trainer/mem.h"
#include "trainer/rng.h"
#include "trainer/tensor.h"
#include "trainer/text.h"
#include "trainer/thread.h"

static enum status inner(void)
{
    return FAIL(ERR_CORRUPT, "%s: byte %d is bad", "file.bin", 7);
}

static enum status outer(void)
{
    TRY(inner());
    return STATUS_OK;
}

static void test_error_trail(void **state)
{
    (void)state;
    assert_int_equal(outer(), ERR_CORRUPT);
    assert_string_equal(error_get()->message, "file.bin: byte 7 is bad");
    assert_non_null(strstr(error_get()->trail, "test_base.c:"));
    assert_non_null(strstr(error_get()->trail, " < test_base.c:"));
    assert_int_equal(error_prefix(ERR_CORRUPT, "layer %s", "conv"), ERR_CORRUPT);
    assert_string_equal(error_get()->message, "layer conv: file.bin: byte 7 is bad");
}

static void test_text(void **state)
{
    (void)state;
    struct text text = {0};
    assert_string_equal(text_get(&text), "");
    text_append_json(&text, "a\"b\\c\n\x01");
    assert_string_equal(text_get(&text), "\"a\\\"b\\\\c\\n\\u0001\"");
    text_clear(&text);
    text_append_html(&text, "<a href=\"x\">&");
    assert_string_equal(text_get(&text), "&lt;a href=&quot;x&quot;&gt;&amp;");
    static const double numbers[] = {0.1, 1.0 / 3, 1e-300, 5e-324, 12345678.9, 1e22};
    for (size_t i = 0; i < ARRAY_COUNT(numbers); i++) {
        text_clear(&text);
        text_append_number(&text, numbers[i]);
        assert_true(strtod(text_get(&text), NULL) == numbers[i]);
    }
    text_clear(&text);
    text_append_number(&text, NAN);
    assert_string_equal(text_get(&text), "null");
    text_release(&text);
    static const char *const names[] = {"num_gpus", "num_replicas", "seed", NULL};
    assert_string_equal(text_nearest("num_gpu", names), "num_gpus");
    assert_null(text_nearest("banana", names));
    assert_true(text_glob("conv*_1", "conv2d_1"));
    assert_false(text_glob("conv*_1", "conv2d_2"));
    assert_true(text_glob("*", ""));
}

// After a failed write at any point the old file is whole and no temporary file is left.
static void test_file_faults(void **state)
{
    (void)state;
    char directory[] = "/tmp/trainer_test_XXXXXX", path[64];
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/data", directory);
    assert_ok(file_write(path, "old", 3));
    bool done = false;
    for (int n = 1; !done; n++) {
        file_fail_after(n);
        enum status status = file_write(path, "newer", 5);
        file_fail_after(0);
        uint8_t *data;
        size_t size;
        assert_ok(file_read(path, 100, &data, &size));
        assert_true((size == 3 && memcmp(data, "old", 3) == 0) ||
                    (size == 5 && memcmp(data, "newer", 5) == 0));
        mem_free(data);
        char **names;
        int count;
        assert_ok(file_list(directory, &names, &count));
        assert_int_equal(count, 1);
        file_list_free(names, count);
        done = status == STATUS_OK;
        assert_true(n < 20);
    }
    uint8_t *data;
    size_t size;
    assert_fails(file_read(path, 4, &data, &size), ERR_UNSUPPORTED, "more than the limit of 4");
    assert_fails(file_read(directory, 4, &data, &size), ERR_IO, "is a directory");
    char below[96];
    snprintf(below, sizeof below, "%s/x/y", path);
    assert_fails(file_mkdirs(below), ERR_IO, "is a file, expected a directory");
    assert_ok(file_remove(path));
    assert_ok(file_remove(path));
    rmdir(directory);
}

struct waiter {
    struct barrier *barrier;
    int member;
    double seconds;
};

static enum status wait_once(void *argument)
{
    struct waiter *waiter = argument;
    return barrier_wait(waiter->barrier, waiter->member, waiter->seconds, "all_reduce");
}

static void test_barrier(void **state)
{
    (void)state;
    struct barrier *barrier = barrier_new(3);
    struct waiter waiters[2] = {{barrier, 0, 0.2}, {barrier, 1, 5}};
    struct thread *threads[2];
    for (int i = 0; i < 2; i++) {
        assert_ok(thread_start(wait_once, &waiters[i], "waiter", &threads[i]));
    }
    // Member 2 never comes: the first to lose patience says so, the other is released.
    assert_fails(thread_join(threads[0]), ERR_TIMEOUT, "replicas that did not come: 2");
    assert_fails(thread_join(threads[1]), ERR_PEER, "replica 0 failed, replica 1 stops");
    barrier_free(barrier);
}

static enum status team_job(void *context, int member)
{
    int *counts = context;
    counts[member]++;
    return member == 2 && counts[member] == 50 ? FAIL(ERR_DEVICE, "member 2 broke") : STATUS_OK;
}

static void test_team(void **state)
{
    (void)state;
    struct team *team;
    int counts[4] = {0};
    assert_ok(team_new(4, &team));
    for (int i = 0; i < 49; i++) {
        assert_ok(team_run(team, team_job, counts));
    }
    assert_fails(team_run(team, team_job, counts), ERR_DEVICE, "member 2 broke");
    for (int i = 0; i < 4; i++) {
        assert_int_equal(counts[i], 50);
    }
    team_free(team);
}

// Known answers of the Philox4x32-10 paper's test vectors (Random123, kat_vectors).
static void test_philox(void **state)
{
    (void)state;
    struct rng_block zero = rng_philox(0, 0, 0, 0, 0, 0);
    assert_int_equal(zero.word[0], 0x6627e8d5u);
    assert_int_equal(zero.word[1], 0xe169c58du);
    assert_int_equal(zero.word[2], 0xbc57ac4cu);
    assert_int_equal(zero.word[3], 0x9b00dbd8u);
    uint32_t f = 0xffffffffu;
    struct rng_block ones = rng_philox(f, f, f, f, f, f);
    assert_int_equal(ones.word[0], 0x408f276du);
    assert_int_equal(ones.word[1], 0x41c83b0eu);
    assert_int_equal(ones.word[2], 0xa20bc7c6u);
    assert_int_equal(ones.word[3], 0x6d5451fdu);
}

static void test_shapes(void **state)
{
    (void)state;
    struct shape out;
    assert_true(shape_broadcast(SHAPE(4, 1, 3), SHAPE(5, 1), &out));
    assert_true(shape_equal(out, SHAPE(4, 5, 3)));
    assert_false(shape_broadcast(SHAPE(4, 2), SHAPE(3), &out));
    assert_string_equal(shape_str(SHAPE(64, 28, 28, 1)), "(64, 28, 28, 1)");
    assert_string_equal(shape_str(shape_scalar()), "()");
    assert_int_equal(shape_count(shape_scalar()), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_trail), cmocka_unit_test(test_text),
        cmocka_unit_test(test_file_faults), cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_team),        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
