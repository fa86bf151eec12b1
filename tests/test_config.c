// SPDX-License-Identifier: Apache-2.0
// test_config.c: the three syntaxes of an option, strict tables, messages with their places,
// params.yaml and --help.
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
    {"runtime.loss_scale", CONFIG_SCALAR, CONFIG_NULLABLE, "null", 0, 0, NULL, "Or dynamic."},
    {"mp.num_classes", CONFIG_INT, 0, "10", 0, 0, NULL, "Classes."},
    {"mp.deep.any", CONFIG_ANY, CONFIG_NULLABLE, "null", 0, 0, NULL, "Anything."},
    {"model_dir", CONFIG_STRING, CONFIG_NULLABLE, "null", 0, 0, NULL, "Folder."},
    {"steps", CONFIG_INT, 0, "0", -1e19, 1e19, NULL, "Steps."},
    {"train.epochs", CONFIG_INT, 0, "1", 1, INFINITY, NULL, "Epochs."},
    {"lr", CONFIG_FLOAT, 0, "0.1", 0, 10, NULL, "Rate."},
    {"l", CONFIG_INT_LIST, CONFIG_NULLABLE, "null", 0, 9, NULL, "A list."},
    {"rates", CONFIG_FLOAT_LIST, 0, "[1, 1e-3]", 0, 0, NULL, "Numbers."},
    {"names", CONFIG_STRING_LIST, 0, "[a]", 0, 0, NULL, "Names."},
    {"flag", CONFIG_BOOL, 0, "false", 0, 0, NULL, "A switch."},
    {"kind", CONFIG_STRING, 0, "sgd", 0, 0, kinds, "A choice."},
    {"model.model_name", CONFIG_STRING, CONFIG_NULLABLE | CONFIG_IGNORED, "null", 0, 0, NULL,
     "Old."},
    {"old", CONFIG_INT, CONFIG_IGNORED, "0", 0, 0, NULL, "Old."},
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

// ---- Golden vectors of the original's parser, and what else people write ------------------------

static void test_accepted(void **state)
{
    (void)state;
    // `why`: where the original is wrong by accident, and this program differs on purpose.
    static const struct {
        const char *text, *path, *json, *why;
    } rows[] = {
        {"runtime.num_gpus = 8, model_dir = /tmp/x", "runtime.num_gpus", "8", NULL},
        {"runtime.num_gpus = 8, model_dir = /tmp/x", "model_dir", "\"/tmp/x\"", NULL},
        {"model_dir=gs://b/x,steps=5", "model_dir", "\"gs://b/x\"", NULL},
        {"model_dir=gs://b/x,steps=5", "steps", "5", NULL},
        {"model_dir=\"a,b\"", "model_dir", "\"a,b\"", NULL},
        {"model_dir='a,''b'", "model_dir", "\"a,'b\"", NULL},
        {"model_dir=\"a\\\",b\"", "model_dir", "\"a\\\",b\"", "the escaped quote ends the value"},
        {"model_dir=a=b", "model_dir", "\"a=b\"", NULL},
        {"model_dir=http://x", "model_dir", "\"http://x\"", NULL},
        {"l=[1,2,3],steps=2", "l", "[1, 2, 3]", NULL},
        {"l=[1,2,3],steps=2", "steps", "2", NULL},
        {"{\"runtime\": {\"num_gpus\": 2}}", "runtime.num_gpus", "2", NULL},
        {"{\"runtime\":{\"num_gpus\":2}}", "runtime.num_gpus", "2", NULL},
        {"{runtime: {num_gpus: 2}}", "runtime.num_gpus", "2", NULL},
        {"runtime:\n  num_gpus: 2\n", "runtime.num_gpus", "2", NULL},
        {"steps: 2", "steps", "2", NULL},
        {"runtime.num_gpus=", "runtime.num_gpus", "null", NULL},
        {"runtime.num_gpus=,steps=2", "steps", "2", NULL},
        {"runtime.num_gpus=8,", "runtime.num_gpus", "8", NULL},
        {"steps=1 ", "steps", "1", NULL},
        {"steps=010", "steps", "8", NULL},
        {"runtime.s=a b", "runtime.s", "\"a b\"", NULL},
        {"runtime.s='4'", "runtime.s", "\"4\"", NULL},
        {"runtime.num_gpus=8,steps=3,runtime.s=x", "runtime.s", "\"x\"", NULL},
        {"mp={num_classes: 3}", "mp.num_classes", "3", NULL},
        {"lr=1", "lr", "1", NULL},
        {"", "steps", "0", NULL},
        {"runtime:", "runtime.num_gpus", "1", NULL},
        {"runtime=,steps=3", "steps", "3", NULL},
        {"lr=1e-4", "lr", "0.0001", "a string up to 2.4"},
        {" steps=1", "steps", "1", "the leading blank makes it a file name"},
        {"steps=1,\n  lr=2\n", "lr", "2", NULL},
        {"l=[1 , 2 ]", "l", "[1, 2]", NULL},
        {"mp.deep.any=[[1,2],{a: 'x]'}]", "mp.deep.any", "[[1, 2], {\"a\": \"x]\"}]",
         "lists cannot be nested"},
        {"mp.deep.any=[it's, \"it's\"]", "mp.deep.any", "[\"it's\", \"it's\"]", NULL},
        {"mp.deep.any.x.y=1", "mp.deep.any", "{\"x\": {\"y\": 1}}", NULL},
        {"mp.deep.any={a.b: 1}", "mp.deep.any", "{\"a.b\": 1}", NULL},
        {"{mp.num_classes: 3}", "mp.num_classes", "3", "an unknown key: dots are for pairs only"},
        {"model_dir=a[1]", "model_dir", "\"a[1]\"", "a bracket makes it a file name"},
        {"model_dir=*.x", "model_dir", "\"*.x\"", "the value is taken for a YAML alias"},
        {"model_dir=a: b", "model_dir", "\"a: b\"", "the value is taken for a mapping"},
        {"runtime.strategy=off", "runtime.strategy", "\"off\"", "False, which then fails"},
        {"{runtime: {strategy: off}}", "runtime.strategy", "\"off\"", "the same"},
        {"names=a", "names", "\"a\"", NULL},
        {"runtime.loss_scale=dynamic", "runtime.loss_scale", "\"dynamic\"", NULL},
        {"runtime.loss_scale=128.", "runtime.loss_scale", "128", NULL},
        {"runtime.s=caf\xc3\xa9", "runtime.s", "\"caf\xc3\xa9\"", NULL},
        {"steps=9007199254740993", "steps", "9007199254740993", NULL},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct config *config = make();
        struct text json = {0};
        assert_ok(apply(config, rows[i].text));
        value_dump_json(&json, config_value(config, rows[i].path));
        if (strcmp(text_get(&json), rows[i].json) != 0) {
            fail_msg("%s gave %s = %s", rows[i].text, rows[i].path, text_get(&json));
        }
        text_release(&json);
        config_free(config);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message, *why;
    } rows[] = {
        // The original refuses these too.
        {"runtime.bogus=1",
         "--params_override, at 1: unknown key 'runtime.bogus'. Known in "
         "'runtime': loss_scale, num_gpus, s, strategy",
         NULL},
        {"mp.foo=1", "unknown key 'mp.foo'. Known in 'mp': deep, num_classes", NULL},
        {"steps=1,mp={a: 1}", "--params_override, at 13: unknown key 'mp.a'", NULL},
        {"runtime.num_gpu=1",
         "unknown key 'runtime.num_gpu'; did you mean 'runtime.num_gpus'? Known", NULL},
        {"rutime.num_gpus=1",
         "unknown key 'rutime'; did you mean 'runtime'? Known: flag, kind, l, lr,", NULL},
        {"epochs=1", "unknown key 'epochs'; did you mean 'train.epochs'?", NULL},
        {"mp.dep.any=1", "unknown key 'mp.dep'; did you mean 'mp.deep'?", NULL},
        {"steps.x=1", "steps is a mapping, expected an integer", NULL},
        {"[1, 2]", "expected sections and keys (a mapping), got a list", NULL},
        {"runtime.s='a", "--params_override, at 11: the quote ' is not closed", NULL},
        {"l=[1,2", "at 3: the bracket [ is not closed", NULL},
        {"l=[1,2}", "at 7: not valid YAML: did not find expected ',' or ']'", NULL},
        {"{steps: 1, steps: 2}", "--params_override, at 12: the key 'steps' is given twice",
         "takes the last"},
        {"steps=99999999999999999999", "at 7: 99999999999999999999 does not fit into 64 bits",
         NULL},
        {"mp.deep.any=[1, \"\\q\"]", "at 18: not valid YAML: found unknown escape character", NULL},
        // Where it stores something wrong without a word.
        {"runtime=5", "at 9: 'runtime' is a section with keys of its own, got an integer",
         "replaces the section by 5"},
        {"mp=[1,2]", "'mp' is a section with keys of its own, got a list", "the same"},
        {"steps=abc", "at 7: steps is a string (abc), expected an integer", "stores the string"},
        {"runtime.num_gpus=\"4\"",
         "at 18: runtime.num_gpus is a string (4), expected an integer from "
         "0 to 64, or null; leave out the quotes",
         "stores the string"},
        {"steps=1,steps=2", "at 9: 'steps' is given twice", "takes the last"},
        {"mp.num_classes=1,mp={num_classes: 2}", "at 18: 'mp' is given twice", NULL},
        {"mp={num_classes: 2},mp.num_classes=1", "at 21: 'mp.num_classes' is given twice", NULL},
        {"steps=1,steps.x=2", "at 9: 'steps.x' is given twice", NULL},
        {"{mp: {num_classes: 1}, mp.num_classes: 2}", "at 24: 'mp.num_classes' is given twice",
         NULL},
        {"runtime.num_gpus=$NUM_GPUS",
         "runtime.num_gpus is '$NUM_GPUS': the shell did not expand the "
         "variable; single quotes keep it",
         "stores the string"},
        {"model_dir=/x/${NAME}", "the shell did not expand", "stores it"},
        {"mp.deep.any=[a, {b: $X}]", "at 21: mp.deep.any is '$X': the shell", NULL},
        {"runtime.num_gpus=65", "is 65, expected an integer from 0 to 64, or null", "stores it"},
        {"train.epochs=0", "train.epochs is 0, expected an integer of at least 1", "stores it"},
        {"l=[1, 10]", "at 7: l[1] is 10, expected an integer from 0 to 9", "stores it"},
        {"l=[1, x]", "at 7: l[1] is a string (x), expected an integer from 0 to 9", "stores it"},
        {"l=[[1,2]]", "at 4: l[0] is a list, expected an integer", "looks for a file"},
        {"l=1", "l is an integer (1), expected a list of integers", "stores it"},
        {"lr=.nan", "lr is .nan, expected a number from 0 to 10", "stores it"},
        {"lr=yes", "lr is true or false (yes), expected a number", "stores it"},
        {"flag=1", "flag is an integer (1), expected true or false", "stores it"},
        {"kind=sdg", "kind is 'sdg', expected one of: momentum, sgd; did you mean 'sgd'?", NULL},
        {"model_dir=5", "model_dir is an integer (5), expected a string, or null; put it in quotes",
         "stores the number"},
        {"names=[a, 5]", "names[1] is an integer (5), expected a string; put it in quotes",
         "stores the number"},
        {"steps=null", "steps is null, expected an integer", "stores it"},
        {"steps=", "steps is null, expected an integer", "stores it"},
        {"rates=[.nan]", "rates[0] is .nan, expected a number", "stores it"},
        {"rates=[null]", "rates[0] is null, expected a number", "stores it"},
        {"runtime.loss_scale=[1]", "runtime.loss_scale is a list, expected a number or a word",
         NULL},
        // Where it looks for a file of this name and reports that.
        {"runtime.num_gpus=8,,steps=2", "at 20: expected key=value", "file not found"},
        {"=5", "at 1: expected key=value, as in train.epochs=3, got '=5'", "file not found"},
        {"a..b=1", "at 1: expected key=value", "file not found"},
        {"1a=1", "at 1: expected key=value", "file not found"},
        {"steps=1,lr", "at 9: expected key=value", "file not found"},
        {"steps=1 \n lr=2", "at 11: expected a comma before 'lr=2'", "stores the string 1 lr=2"},
        {"runtime.s='a' b", "at 15: expected a comma before 'b'", "a YAML error without a place"},
        {"caf\xc3\xa9=1,x", "at 1: expected key=value", "file not found"},
        {"runtime.s=\xc3\xa9,l=[x", "at 15: the bracket [ is not closed", "file not found"},
        {"runtime.s=\xff", "at 11: the byte 0xff is not valid UTF-8", NULL},
        {"runtime.s=\xc3\xa9\xed\xa0\x80", "at 12: the byte 0xed is not valid UTF-8", NULL},
        {"runtime.s=\xc0\xaf", "at 11: the byte 0xc0 is not valid UTF-8", NULL},
        {"no_such_file.yaml",
         "'no_such_file.yaml' is neither key=value pairs nor a YAML or JSON "
         "mapping, and there is no such file",
         NULL},
        {"~/no_such_file", "there is no such file; the shell did not expand ~", NULL},
        {"/", "--params_override: ", NULL},
        {"./a=b", "there is no such file", NULL},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct config *config = make();
        struct text before = {0}, after = {0};
        config_dump(config, &before);
        assert_fails(apply(config, rows[i].text), ERR_USAGE, rows[i].message);
        config_dump(config, &after);
        assert_string_equal(text_get(&before), text_get(&after));
        text_release(&before);
        text_release(&after);
        config_free(config);
    }
    static char huge[(1 << 20) + 2];
    struct config *config = make();
    memset(huge, '[', 5000);
    assert_fails(apply(config, huge), ERR_USAGE, "at 65: nested more than 64 deep");
    memset(huge, 'a', sizeof huge - 1);
    assert_fails(apply(config, huge), ERR_USAGE, "more than the limit of 1048576");
    huge[sizeof huge - 2] = '\0';
    assert_fails(apply(config, huge), ERR_USAGE, "--params_override");
    huge[4] = '=';
    assert_fails(apply(config, huge), ERR_USAGE, "at 1: unknown key 'aaaa'");
    huge[4] = 'a';
    huge[201] = '=';
    assert_fails(apply(config, huge), ERR_USAGE, "at 1: a key of 201 bytes; the limit is 200");
    memcpy(huge + 1000, "b=1", 4);
    memset(huge, '.', 1000);
    assert_fails(apply(config, huge), ERR_USAGE, "at 1: expected key=value");
    config_free(config);
}

// Dots nest as brackets do: what is accepted can be read again from params.yaml.
static void test_depth_of_pairs(void **state)
{
    (void)state;
    for (int dots = 50; dots < 64; dots++) {
        for (int brackets = 0; brackets < 12; brackets++) {
            struct config *config = make(), *again = make();
            struct text pairs = {0}, yaml = {0};
            text_append(&pairs, "mp.deep.any");
            for (int i = 2; i < dots; i++) {
                text_append(&pairs, ".a");
            }
            text_printf(&pairs, "=%.*s1%.*s", brackets, "[[[[[[[[[[[[", brackets, "]]]]]]]]]]]]");
            enum status status = apply(config, text_get(&pairs));
            // The mapping that holds all, one more a dot, one a bracket, and the number.
            assert_int_equal(status == STATUS_OK, 1 + dots + brackets + 1 <= 64);
            if (status == STATUS_OK) {
                config_dump(config, &yaml);
                assert_ok(apply(again, text_get(&yaml)));
            } else {
                assert_non_null(strstr(error_get()->message, "nested more than 64 deep"));
            }
            text_release(&pairs);
            text_release(&yaml);
            config_free(config);
            config_free(again);
        }
    }
}

// Many pairs and many small aliases cost little: they are counted together.
static void test_many_pairs(void **state)
{
    (void)state;
    struct config *config = make();
    struct text text = {0};
    double start = time_now();
    for (int i = 0; i < 12000; i++) {
        text_printf(&text, "mp.deep.any.k%d=%d,", i, i);
    }
    assert_fails(apply(config, text_get(&text)), ERR_USAGE, "more than 10000 values");
    text_clear(&text);
    for (int i = 0; i < 500; i++) {
        text_printf(&text, "mp.deep.any.k%d=[&a [1,1,1,1,1,1,1,1,1], &b [*a,*a,*a,*a], *b,*b,*b],",
                    i);
    }
    assert_fails(apply(config, text_get(&text)), ERR_USAGE, "more than 10000 values");
    text_clear(&text);
    for (int i = 0; i < 9000; i++) {
        text_printf(&text, "mp.deep.any.k%d=%d,", i, i);
    }
    assert_ok(apply(config, text_get(&text)));
    assert_int_equal(config_value(config, "mp.deep.any")->map.count, 9000);
    text_release(&text);
    config_free(config);
    assert_true(time_now() - start < 20);  // under the sanitizers, on a busy machine
}

// ---- Files, precedence, places ------------------------------------------------------------------

static void write_file(char *path, size_t size, const char *content)
{
    snprintf(path, size, "/tmp/test_config_%d.yaml", (int)getpid());
    assert_ok(file_write(path, content, strlen(content)));
}

static void test_files(void **state)
{
    (void)state;
    char path[64], message[256], place[128];
    struct config *config = make();
    write_file(path, sizeof path,
               "# A comment.\nruntime:\n  num_gpus: 2\n  strategy: off\nrates: [1, 0.5]\n"
               "train:\nlr: 1\n");
    assert_ok(apply(config, path));
    assert_true(config_is_given(config, "lr"));
    assert_false(config_is_given(config, "train.epochs"));
    assert_int_equal(config_int(config, "runtime.num_gpus"), 2);
    assert_string_equal(config_string(config, "runtime.strategy"), "off");
    assert_int_equal(config_count(config, "rates"), 2);
    assert_true(config_float_at(config, "rates", 0) == 1 && config_float(config, "lr") == 1);
    snprintf(message, sizeof message, "%s:3:13", path);
    assert_string_equal(config_place(config, "runtime.num_gpus", place, sizeof place), message);
    assert_string_equal(config_place(config, "train.epochs", place, sizeof place), "default");

    // Later wins: file, override, flag.
    assert_ok(apply(config, "runtime.num_gpus=3,l=[4],mp.deep.any={k: 1}"));
    assert_int_equal(config_int(config, "runtime.num_gpus"), 3);
    assert_string_equal(config_place(config, "runtime.num_gpus", place, sizeof place),
                        "--params_override, at 18");
    assert_ok(config_set(config, "runtime.num_gpus", "--num_gpus", "4"));
    assert_int_equal(config_int(config, "runtime.num_gpus"), 4);
    assert_string_equal(config_place(config, "runtime.num_gpus", place, sizeof place),
                        "--num_gpus");
    assert_int_equal(config_int_at(config, "l", 0), 4);
    // Trees are the config's own: the arena they were read into is gone.
    const struct value *any = config_value(config, "mp.deep.any");
    assert_string_equal(any->map.key_places[0].source, "--params_override");
    assert_int_equal(any->map.key_places[0].column, 39);
    assert_string_equal(config_string_at(config, "names", 0), "a");

    write_file(path, sizeof path, "runtime:\n  s: x\n  num_gpu: 2\n");
    snprintf(message, sizeof message, "%s:3:3: unknown key 'runtime.num_gpu'; did you mean", path);
    assert_fails(apply(config, path), ERR_USAGE, message);
    write_file(path, sizeof path, "runtime: {num_gpus: $N}\n");
    assert_fails(apply(config, path), ERR_USAGE, "are not expanded in files; write the value");
    write_file(path, sizeof path, "runtime:\n  num_gpus: 2\n  num_gpus: 3\n");
    assert_fails(apply(config, path), ERR_USAGE, ":3:3: the key 'num_gpus' is given twice");
    write_file(path, sizeof path, "- a\n");
    assert_fails(apply(config, path), ERR_USAGE,
                 ":1:1: expected sections and keys (a mapping), got");
    write_file(path, sizeof path, "word\n");
    assert_fails(apply(config, path), ERR_USAGE, "got a string");
    write_file(path, sizeof path, "\n# nothing\n");
    assert_ok(apply(config, path));
    write_file(path, sizeof path, "---\n");
    assert_ok(apply(config, path));
    unlink(path);
    config_free(config);
}

static void test_defaults(void **state)
{
    (void)state;
    struct config *config = make();
    config_default(config, "lr", "2");
    assert_true(config_float(config, "lr") == 2);
    assert_false(config_is_given(config, "lr"));
    assert_true(config_is_null(config, "model_dir"));
    assert_null(config_string(config, "model_dir"));
    assert_int_equal(config_count(config, "l"), 0);
    assert_false(config_bool(config, "flag"));
    assert_string_equal(config_find(config, "lr")->help, "Rate.");
    assert_null(config_find(config, "nothing"));
    config_free(config);
    config_free(NULL);
}

static void test_flags(void **state)
{
    (void)state;
    struct config *config = make();
    // A flag's text needs no quotes.
    assert_ok(config_set(config, "model_dir", "--model_dir", "5"));
    assert_string_equal(config_string(config, "model_dir"), "5");
    assert_ok(config_set(config, "runtime.strategy", "--ds", "off"));
    assert_ok(config_set(config, "runtime.num_gpus", "--num_gpus", "null"));
    assert_true(config_is_null(config, "runtime.num_gpus"));
    assert_ok(config_set(config, "rates", "--rates", "[1, 2]"));
    assert_true(config_float_at(config, "rates", 1) == 2);
    assert_ok(config_set(config, "flag", "--flag", "true"));
    assert_fails(config_set(config, "steps", "--steps", "x"), ERR_USAGE,
                 "--steps: steps is a string (x), expected an integer");
    assert_fails(config_set(config, "rates", "--rates", "[1"), ERR_USAGE,
                 "--rates, at 3: not valid");
    assert_fails(config_set(config, "rates", "--rates", "[x]"), ERR_USAGE,
                 "--rates, at 2: rates[0]");
    assert_fails(config_set(config, "model_dir", "--model_dir", "$HOME/x"), ERR_USAGE,
                 "shell did not");
    assert_fails(config_set(config, "model_dir", "--model_dir", "a\xff"), ERR_USAGE,
                 "--model_dir, at 2: the byte 0xff is not valid UTF-8");
    assert_fails(config_set(config, "steps", "--steps", "99999999999999999999"), ERR_USAGE,
                 "64 bits");
    config_free(config);
}

// ---- Keys without effect ------------------------------------------------------------------------

// What apply writes to stderr. Caller frees with mem_free.
static char *warnings_of(struct config *config, const char *text)
{
    char path[64];
    uint8_t *data;
    size_t size;
    snprintf(path, sizeof path, "/tmp/test_config_%d.log", (int)getpid());
    FILE *file = fopen(path, "w");
    int saved = dup(2);
    assert_true(file && dup2(fileno(file), 2) == 2);
    enum status status = apply(config, text);
    dup2(saved, 2);
    close(saved);
    fclose(file);
    assert_ok(status);
    assert_ok(file_read(path, 1 << 16, &data, &size));
    unlink(path);
    return (char *)data;
}

static void test_without_effect(void **state)
{
    (void)state;
    struct config *config = make();
    struct text yaml = {0};
    char *said = warnings_of(config, "{model: {model_name: resnet}, old: 1, steps: 3}");
    const char *line = strstr(said, "--params_override: accepted, without effect here: "
                                    "model.model_name, old\n");
    assert_non_null(line);
    assert_null(strchr(said, '\n')[1] ? said : NULL);  // one line
    mem_free(said);
    // The same again, and params.yaml, which has every key, are read without a word.
    said = warnings_of(config, "old=1");
    assert_string_equal(said, "");
    mem_free(said);
    config_dump(config, &yaml);
    said = warnings_of(config, text_get(&yaml));
    assert_string_equal(said, "");
    mem_free(said);
    assert_fails(apply(config, "old=x"), ERR_USAGE, "old is a string (x), expected an integer");
    text_release(&yaml);
    config_free(config);
}

// ---- params.yaml and --help ---------------------------------------------------------------------

static void test_dump(void **state)
{
    (void)state;
    struct config *config = make(), *again = make();
    assert_ok(apply(config,
                    "{runtime: {s: 'yes', strategy: off}, lr: 1, l: [3, 4], rates: [1e-5, 2],"
                    " names: ['1e3', '', ' x', 'a: b', it's],"
                    " mp: {deep: {any: [{a: {b: [1, x]}}, flatten, {c: []}]}}}"));
    struct text first = {0}, second = {0};
    config_dump(config, &first);
    assert_string_equal(text_get(&first), "flag: false\n"
                                          "kind: sgd\n"
                                          "l: [3, 4]\n"
                                          "lr: 1.0\n"
                                          "model:\n"
                                          "  model_name: null\n"
                                          "model_dir: null\n"
                                          "mp:\n"
                                          "  deep:\n"
                                          "    any:\n"
                                          "      - a:\n"
                                          "          b: [1, x]\n"
                                          "      - flatten\n"
                                          "      - c: []\n"
                                          "  num_classes: 10\n"
                                          "names: ['1e3', '', ' x', 'a: b', it's]\n"
                                          "old: 0\n"
                                          "rates: [1.0e-05, 2.0]\n"
                                          "runtime:\n"
                                          "  loss_scale: null\n"
                                          "  num_gpus: 1\n"
                                          "  s: 'yes'\n"
                                          "  strategy: 'off'\n"
                                          "steps: 0\n"
                                          "train:\n"
                                          "  epochs: 1\n");
    assert_ok(apply(again, text_get(&first)));
    config_dump(again, &second);
    assert_string_equal(text_get(&first), text_get(&second));
    text_release(&first);
    text_release(&second);
    config_free(config);
    config_free(again);
}

#define INDENT "                                            "  // 44 columns

static void test_help(void **state)
{
    (void)state;
    static const char wanted[] =
        "  b                                         "
        "A sentence of so many words that it has to go on in a\n" INDENT
        "new line, below its own start and nowhere else. (one of:\n" INDENT
        "momentum, sgd, or null; default null)\n"
        "  c                                         "
        "[no effect] Old. (an integer of at least 0; default 1)\n"
        "  train.callbacks.enable_checkpoint_and_export_of_all\n" INDENT
        "A path that is longer than its column. (true or false;\n" INDENT "default true)\n"
        "  train.epochs                              "
        "Passes over the data. (an integer from 1 to 100000;\n" INDENT "default 12)\n";
    static const struct config_field rows[] = {
        {"train.callbacks.enable_checkpoint_and_export_of_all", CONFIG_BOOL, 0, "true", 0, 0, NULL,
         "A path that is longer than its column."},
        {"train.epochs", CONFIG_INT, 0, "90", 1, 100000, NULL, "Passes over the data."},
        {"b", CONFIG_STRING, CONFIG_NULLABLE, "null", 0, 0, kinds,
         "A sentence of so many words that it has to go on in a new line, below its own "
         "start and nowhere else."},
        {"c", CONFIG_INT, CONFIG_IGNORED, "1", 0, INFINITY, NULL, "Old."},
    };
    struct config *config = config_new();
    struct text help = {0};
    config_declare(config, rows, ARRAY_COUNT(rows));
    config_default(config, "train.epochs", "12");
    config_help(config, &help);
    assert_string_equal(text_get(&help), wanted);
    text_release(&help);
    config_free(config);
}

// ---- Damaged options ----------------------------------------------------------------------------

// An error with a sentence, or a configuration whose dump reads back (run under the sanitizers).
static void test_mutations(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "runtime.num_gpus = 8, model_dir = /tmp/x,lr=1e-4",
        "steps=5,mp.deep.any=[1,{x: y},'z'],runtime.s=\"q\\\"q\"",
        "mp={num_classes: 3, deep: {any: [a, 'b,c', \"d\"]}},kind=sgd",
        "{\"runtime\": {\"num_gpus\": 2}, \"names\": [\"a\", \"b\"]}",
        "runtime:\n  s: &a x\n  strategy: off\nmodel_dir: *a\n"};
    static const char marks[] = "[]{},:='\"&*!|>#-?.$\n\t \\/~";
    uint32_t random = 7;
    int accepted = 0;
    log_set_level(LOG_ERROR);
    for (int i = 0; i < 5000; i++) {
        char text[128];
        size_t size = (size_t)snprintf(text, sizeof text, "%s", seeds[i % 5]);
        for (int k = 0; k < 1 + i % 3; k++) {
            random = random * 1664525u + 1013904223u;
            char c =
                i % 2 ? marks[(random >> 24) % (sizeof marks - 1)] : (char)((random >> 24) | 1);
            text[(random >> 8) % size] = c;
        }
        struct config *config = make(), *again = make();
        struct text yaml = {0}, second = {0};
        error_clear();
        if (apply(config, text) == STATUS_OK) {
            accepted++;
            config_dump(config, &yaml);
            assert_ok(apply(again, text_get(&yaml)));
            config_dump(again, &second);
            assert_string_equal(text_get(&yaml), text_get(&second));
        } else {
            assert_true(strlen(error_get()->message) > 10);
        }
        text_release(&yaml);
        text_release(&second);
        config_free(config);
        config_free(again);
    }
    assert_true(accepted > 100 && accepted < 4900);
    log_set_level(LOG_WARNING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_many_pairs), cmocka_unit_test(test_depth_of_pairs),
        cmocka_unit_test(test_files),      cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_flags),      cmocka_unit_test(test_without_effect),
        cmocka_unit_test(test_dump),       cmocka_unit_test(test_help),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
