// SPDX-License-Identifier: Apache-2.0
// test_config.c: scalars, the YAML suite, the three syntaxes of an override, strict tables, dumps.
#include "test.h"

#include <math.h>

#include "trainer/config.h"
#include "trainer/file.h"

static const char *const kinds[] = {"momentum", "sgd", NULL};
static const char *const strategies[] = {"off", "one_device", NULL};
static const struct config_field fields[] = {
    {"runtime.num_gpus", CONFIG_INT, CONFIG_NULLABLE, "1", 0, 64, NULL, "GPUs."},
    {"runtime.s", CONFIG_STRING, CONFIG_NULLABLE, "null", 0, 0, NULL, "A word."},
    {"runtime.strategy", CONFIG_STRING, 0, "one_device", 0, 0, strategies, "Strategy."},
    {"mp.num_classes", CONFIG_INT, 0, "10", 0, 0, NULL, "Classes."},
    {"mp.any", CONFIG_ANY, CONFIG_NULLABLE, "null", 0, 0, NULL, "Anything."},
    {"model_dir", CONFIG_STRING, CONFIG_NULLABLE, "null", 0, 0, NULL, "Folder."},
    {"steps", CONFIG_INT, 0, "0", 0, 0, NULL, "Steps."},
    {"lr", CONFIG_FLOAT, 0, "0.1", 0, 10, NULL, "Rate."},
    {"l", CONFIG_INT_LIST, CONFIG_NULLABLE, "null", 0, 0, NULL, "A list."},
    {"names", CONFIG_STRING_LIST, 0, "[a]", 0, 0, NULL, "Names."},
    {"flag", CONFIG_BOOL, 0, "false", 0, 0, NULL, "A switch."},
    {"kind", CONFIG_STRING, 0, "sgd", 0, 0, kinds, "A choice."},
    {"old", CONFIG_INT, CONFIG_IGNORED, "0", 0, 0, NULL, "No effect."},
};

static struct config *make(void)
{
    struct config *config = config_new();
    config_declare(config, fields, ARRAY_COUNT(fields));
    return config;
}

static enum status apply(struct config *config, const char *text)
{
    struct arena arena;
    struct value *map;
    arena_init(&arena);
    enum status status = value_load_option(&arena, "--params_override", text, &map);
    if (status == STATUS_OK) {
        status = config_apply(config, map);
    }
    arena_release(&arena);
    return status;
}

// ---- Scalars as PyYAML resolves them (YAML 1.1), plus exponents without a dot ------------------------

static void test_scalars(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum value_kind kind;
        double number;
    } rows[] = {
        {"8", VALUE_INT, 8},         {"0x10", VALUE_INT, 16},     {"010", VALUE_INT, 8},
        {"1_000", VALUE_INT, 1000},  {"1:30", VALUE_INT, 90},     {"-5", VALUE_INT, -5},
        {"0", VALUE_INT, 0},         {"+7", VALUE_INT, 7},        {"0b101", VALUE_INT, 5},
        {"0.1", VALUE_FLOAT, 0.1},   {".5", VALUE_FLOAT, 0.5},    {"5.", VALUE_FLOAT, 5},
        {"1.0e-4", VALUE_FLOAT, 1e-4}, {"1.5e+3", VALUE_FLOAT, 1500}, {"1e-4", VALUE_FLOAT, 1e-4},
        {"1e4", VALUE_FLOAT, 1e4},   {"1.5e3", VALUE_FLOAT, 1500}, {"-1e-3", VALUE_FLOAT, -1e-3},
        {"-.inf", VALUE_FLOAT, -INFINITY}, {"yes", VALUE_BOOL, 1}, {"off", VALUE_BOOL, 0},
        {"True", VALUE_BOOL, 1},     {"null", VALUE_NULL, 0},     {"~", VALUE_NULL, 0},
        {"None", VALUE_STRING, 0},   {"2020-01-01", VALUE_STRING, 0}, {"08", VALUE_STRING, 0},
        {"1e", VALUE_STRING, 0},     {".", VALUE_STRING, 0},
        {"1.2.3", VALUE_STRING, 0},  {"0x", VALUE_STRING, 0},     {"_1", VALUE_STRING, 0},
        {"y", VALUE_STRING, 0},      {"e5", VALUE_STRING, 0},     {"'4'", VALUE_STRING, 0},
        {"9223372036854775807", VALUE_INT, 9223372036854775807.0},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct arena arena;
        struct value *value;
        char text[64];
        arena_init(&arena);
        snprintf(text, sizeof text, "k: %s", rows[i].text);
        assert_ok(value_load_yaml(&arena, "t", text, strlen(text), &value));
        value = value->map.items[0];
        if (value->kind != rows[i].kind) {
            fail_msg("%s became %s", rows[i].text, value_kind_name(value->kind));
        }
        double number = value->kind == VALUE_INT     ? (double)value->integer
                        : value->kind == VALUE_FLOAT ? value->number
                        : value->kind == VALUE_BOOL  ? value->boolean
                                                     : 0;
        assert_true(number == rows[i].number);
        arena_release(&arena);
    }
    struct config *config = make();
    assert_fails(apply(config, "steps=9223372036854775808"), ERR_USAGE, "does not fit into 64 bits");
    assert_ok(apply(config, "steps=9007199254740993"));
    assert_true(config_int(config, "steps") == 9007199254740993);
    config_free(config);
}

// ---- Golden vectors of the original's override parser ------------------------------------------------

static void test_override_vectors(void **state)
{
    (void)state;
    // `want` is what changed, as JSON of the dump's lines; or the start of the error. Where this program
    // differs from the original on purpose, the comment says why.
    static const struct {
        const char *text, *path, *want;
    } good[] = {
        {"runtime.num_gpus = 8, model_dir = /tmp/x", "runtime.num_gpus", "8"},
        {"runtime.num_gpus = 8, model_dir = /tmp/x", "model_dir", "\"/tmp/x\""},
        {"model_dir=gs://b/x,steps=5", "model_dir", "\"gs://b/x\""},
        {"model_dir=\"a,b\"", "model_dir", "\"a,b\""},
        {"model_dir=a=b", "model_dir", "\"a=b\""},
        {"model_dir=http://x", "model_dir", "\"http://x\""},
        {"l=[1,2,3],steps=2", "l", "[1, 2, 3]"},
        {"l=[1,2,3],steps=2", "steps", "2"},
        {"{\"runtime\": {\"num_gpus\": 2}}", "runtime.num_gpus", "2"},
        {"{runtime: {num_gpus: 2}}", "runtime.num_gpus", "2"},
        {"runtime:\n  num_gpus: 2\n", "runtime.num_gpus", "2"},
        {"runtime.num_gpus=", "runtime.num_gpus", "null"},
        {"runtime.num_gpus=8,", "runtime.num_gpus", "8"},
        {"steps=1 ", "steps", "1"},
        {"runtime.s=a b", "runtime.s", "\"a b\""},
        {"runtime.num_gpus=8,runtime.s=x", "runtime.s", "\"x\""},
        {"lr=1e-4", "lr", "0.0001"},        // the original had a string here up to 2.4
        {" steps=1", "steps", "1"},         // the original looks for a file of this name
        {"mp.any=[[1,2]]", "mp.any", "[[1, 2]]"},  // the original cannot nest lists
        {"mp={num_classes: 3}", "mp.num_classes", "3"},  // a section as a mapping
        {"runtime.strategy=off", "runtime.strategy", "\"off\""},  // the original makes it False
        {"names=a", "names", "\"a\""},
        {"", "steps", "0"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(good); i++) {
        struct config *config = make();
        struct text json = {0};
        assert_ok(apply(config, good[i].text));
        value_dump_json(&json, config_value(config, good[i].path));
        assert_string_equal(text_get(&json), good[i].want);
        text_release(&json);
        config_free(config);
    }
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"runtime.bogus=1", "--params_override, at 1: unknown key 'runtime.bogus'"},
        {"mp.foo=1", "unknown key 'mp.foo'"},
        {"mp={a: 1}", "unknown key 'mp.a'"},
        {"runtime=5", "'runtime' is a section"},          // the original replaces the section
        {"mp=[1,2]", "'mp' is a section"},                // the same
        {"steps=abc", "at 7: steps is a string (abc), expected an integer"},  // ... stores the string
        {"runtime.num_gpus=\"4\"", "expected an integer; leave out the quotes"},
        {"steps=1,steps=2", "at 9: the key 'steps' is given twice"},  // ... takes the last
        {"runtime.num_gpus=8,,steps=2", "at 20: expected key=value"},  // ... looks for a file
        {"l=[[1,2]]", "l is a list, expected an integer"},  // ... looks for a file
        {"l=[1,2", "at 3: the bracket [ is not closed"},
        {"runtime.s='a", "at 11: the quote ' is not closed"},
        {"runtime.num_gpus=$NUM_GPUS", "the shell did not expand the variable; single quotes"},
        {"runtime.num_gpus=65", "runtime.num_gpus is 65, expected an integer from 0 to 64"},
        {"lr=.nan", "lr is .nan, expected a number from 0 to 10"},
        {"flag=1", "flag is an integer (1), expected true or false"},
        {"kind=sdg", "kind is 'sdg'; did you mean 'sgd', expected one of: momentum, sgd"},
        {"model_dir=5", "model_dir is an integer (5), expected a string; put it in quotes"},
        {"steps=null", "steps is null, expected an integer"},
        {"runtime.num_gpu=1", "did you mean 'runtime.num_gpus'?"},
        {"no_such_file.yaml", "neither key=value pairs nor a YAML mapping, and there is no such file"},
        {"[1, 2]\n", "expected sections and keys (a mapping), got a list"},
        {"=5", "there is no such file"},
        {"a..b=1", "expected key=value"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(bad); i++) {
        struct config *config = make();
        assert_fails(apply(config, bad[i].text), ERR_USAGE, bad[i].message);
        assert_true(config_int(config, "runtime.num_gpus") == 1);  // nothing was applied
        config_free(config);
    }
}

static void test_nothing_applied_on_failure(void **state)
{
    (void)state;
    struct config *config = make();
    assert_fails(apply(config, "steps=5,lr=0.5,bogus=1"), ERR_USAGE, "bogus");
    assert_int_equal(config_int(config, "steps"), 0);
    assert_false(config_is_given(config, "lr"));
    config_free(config);
}

// ---- Limits -------------------------------------------------------------------------------------------

static enum status load(const char *text, size_t size)
{
    struct arena arena;
    struct value *value;
    arena_init(&arena);
    enum status status = value_load_yaml(&arena, "t.yaml", text, size, &value);
    arena_release(&arena);
    return status;
}

static void test_limits(void **state)
{
    (void)state;
    static char deep[5001];
    memset(deep, '[', 5000);
    assert_fails(load(deep, 5000), ERR_USAGE, "nested more than 64 deep");
    struct text bomb = {0};
    text_append(&bomb, "a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 9; i++) {
        text_printf(&bomb, "a%d: &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n", i, i, i - 1,
                    i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
    }
    assert_fails(load(bomb.data, bomb.size), ERR_USAGE, "more than 10000 values");
    text_release(&bomb);
    assert_fails(load("a: 1\na: 2\n", 10), ERR_USAGE, "t.yaml:2:1: the key 'a' is already given");
    assert_fails(load("a: &x [*x]\n", 11), ERR_USAGE, "stands inside what it names");
    assert_fails(load("a: *x\n", 6), ERR_USAGE, "names nothing before it");
    assert_fails(load("a: \"x\\0y\"\n", 10), ERR_USAGE, "NUL");
    assert_fails(load("a: \xff\xfe\n", 6), ERR_USAGE, "not valid YAML");
    assert_fails(load("--- 1\n--- 2\n", 12), ERR_USAGE, "a second document");
    assert_fails(load("a: !python/object x\n", 20), ERR_USAGE, "tag");
    assert_fails(load("<<: {a: 1}\n", 11), ERR_USAGE, "merge key");
    assert_ok(load("", 0));
}

// Thousands of damaged texts: an error or a tree, never a crash (run under the sanitizers).
static void test_mutations(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "runtime: {num_gpus: 2, s: 'x'}\nl: [1, 2]\nnames: &a [x, *a]\n", "a.b=c,d=[1,{x: y}],e='q'",
        "{\"a\": [1, \"\\u0041\", null, true, 1.5e3]}"};
    uint32_t random = 1;
    for (int i = 0; i < 6000; i++) {
        char text[128];
        size_t size = (size_t)snprintf(text, sizeof text, "%s", seeds[i % 3]);
        for (int k = 0; k < 1 + i % 3; k++) {
            random = random * 1664525u + 1013904223u;
            text[(random >> 8) % size] = i % 2 ? "[]{},:='\"&*!|>#-\n"[(random >> 24) % 17]
                                               : (char)((random >> 24) | 1);
        }
        struct config *config = make();
        (void)apply(config, text);
        (void)load(text, size);
        config_free(config);
    }
}

// ---- The YAML test suite ------------------------------------------------------------------------------

// Cases whose outcome differs from the suite's, and why.
static const struct {
    const char *name, *why;
} decisions[] = {
    {"26DV", "an alias as a key: keys are names of options, a clear refusal serves better"},
    {"4MUZ_02", "libyaml (and PyYAML) refuse a colon on the line after its key in a flow mapping"},
    {"DBG4", "libyaml (and PyYAML) refuse a plain scalar that begins with a colon in a flow list"},
    {"SU5Z", "libyaml (and PyYAML) accept a comment that touches a quoted scalar"},
};

static void test_yaml_suite(void **state)
{
    (void)state;
    char path[512];
    if (!test_shared(path, sizeof path, "data/yaml_suite")) {
        SKIP("the YAML test suite is not beside the checkout");
    }
    char **names;
    int count, cases = 0, differ = 0;
    assert_ok(file_list(path, &names, &count));
    for (int i = 0; i < count; i++) {
        char *dot = strrchr(names[i], '.');
        if (!dot || strcmp(dot, ".yaml") != 0) {
            continue;
        }
        char file[1024], json[1024];
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        snprintf(json, sizeof json, "%s/%.*s.json", path, (int)(dot - names[i]), names[i]);
        uint8_t *data;
        size_t size;
        assert_ok(file_read(file, 1 << 20, &data, &size));
        bool accepted = load((const char *)data, size) == STATUS_OK, valid = file_exists(json);
        mem_free(data);
        cases++;
        bool decided = false;
        for (size_t k = 0; k < ARRAY_COUNT(decisions); k++) {
            decided |= strncmp(names[i], decisions[k].name, (size_t)(dot - names[i])) == 0;
        }
        if (accepted != valid && !decided) {
            differ++;
            printf("  %s: %s, the suite says %s (%s)\n", names[i],
                   accepted ? "accepted" : "refused", valid ? "valid" : "invalid",
                   accepted ? "" : error_get()->message);
        }
    }
    file_list_free(names, count);
    printf("  %d cases\n", cases);
    assert_int_equal(differ, 0);
}

// ---- Dumps --------------------------------------------------------------------------------------------

static void test_dump_reads_back(void **state)
{
    (void)state;
    struct config *config = make(), *again = make();
    assert_ok(apply(config, "{runtime: {s: 'yes'}, lr: 1, l: [3, 4], names: ['1e3', '', ' x', 'a: b', "
                            "'#', '[x', 'it''s', \"tab\\there\", '-', 'null'], mp: {any: [{a: {b: "
                            "[1, x]}}, flatten, {c: []}]}}"));
    struct text first = {0}, second = {0};
    config_dump(config, &first);
    assert_ok(apply(again, text_get(&first)));
    config_dump(again, &second);
    assert_string_equal(text_get(&first), text_get(&second));
    assert_string_equal(config_string_at(again, "names", 0), "1e3");
    assert_string_equal(config_string_at(again, "names", 7), "tab\there");
    assert_string_equal(config_string(again, "runtime.s"), "yes");
    assert_true(strstr(text_get(&first), "l: [3, 4]\n") != NULL);
    text_release(&first);
    text_release(&second);
    config_free(config);
    config_free(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),      cmocka_unit_test(test_override_vectors),
        cmocka_unit_test(test_nothing_applied_on_failure),
        cmocka_unit_test(test_limits),       cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_yaml_suite),   cmocka_unit_test(test_dump_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
