// SPDX-License-Identifier: Apache-2.0
// test_yaml.c: YAML to trees of values and back: scalars, places, limits, the YAML test suite,
// damaged texts, and random trees that are written and read again.
#include "test.h"

#include <math.h>

#include "config/config_impl.h"
#include "trainer/file.h"

static enum status load(const char *text, size_t size)
{
    struct arena arena;
    struct value *value;
    arena_init(&arena);
    enum status status = value_load_yaml(&arena, "t.yaml", text, size, &value);
    arena_release(&arena);
    return status;
}

// ---- Scalars as PyYAML resolves them (YAML 1.1), plus numbers it takes for words ----------------

static void test_scalars(void **state)
{
    (void)state;
    // Kinds and values are those of PyYAML 6.0 but where `why` says otherwise.
    static const struct {
        const char *text;
        enum value_kind kind;
        double number;
        const char *why;
    } rows[] = {
        {"8", VALUE_INT, 8, NULL},
        {"0x10", VALUE_INT, 16, NULL},
        {"-0xfF", VALUE_INT, -255, NULL},
        {"010", VALUE_INT, 8, NULL},
        {"-010", VALUE_INT, -8, NULL},
        {"0b101", VALUE_INT, 5, NULL},
        {"1_000", VALUE_INT, 1000, NULL},
        {"0x_1", VALUE_INT, 1, NULL},
        {"1_", VALUE_INT, 1, NULL},
        {"1:30", VALUE_INT, 90, NULL},
        {"-1:30:05", VALUE_INT, -5405, NULL},
        {"1:5", VALUE_INT, 65, NULL},
        {"-5", VALUE_INT, -5, NULL},
        {"+7", VALUE_INT, 7, NULL},
        {"0", VALUE_INT, 0, NULL},
        {"0.1", VALUE_FLOAT, 0.1, NULL},
        {".5", VALUE_FLOAT, 0.5, NULL},
        {"5.", VALUE_FLOAT, 5, NULL},
        {"09.5", VALUE_FLOAT, 9.5, NULL},
        {"1_0.2_5", VALUE_FLOAT, 10.25, NULL},
        {"1.0e-4", VALUE_FLOAT, 1e-4, NULL},
        {"1.5e+3", VALUE_FLOAT, 1500, NULL},
        {"1:30.5", VALUE_FLOAT, 90.5, NULL},
        {"0:1.", VALUE_FLOAT, 1, NULL},
        {"-.inf", VALUE_FLOAT, -INFINITY, NULL},
        {".Inf", VALUE_FLOAT, INFINITY, NULL},
        {"yes", VALUE_BOOL, 1, NULL},
        {"On", VALUE_BOOL, 1, NULL},
        {"True", VALUE_BOOL, 1, NULL},
        {"off", VALUE_BOOL, 0, NULL},
        {"NO", VALUE_BOOL, 0, NULL},
        {"null", VALUE_NULL, 0, NULL},
        {"~", VALUE_NULL, 0, NULL},
        {"", VALUE_NULL, 0, NULL},
        {"None", VALUE_STRING, 0, NULL},
        {"nULL", VALUE_STRING, 0, NULL},
        {"tRue", VALUE_STRING, 0, NULL},
        {"y", VALUE_STRING, 0, NULL},
        {"08", VALUE_STRING, 0, NULL},
        {"1:60", VALUE_STRING, 0, NULL},
        {"1:300", VALUE_STRING, 0, NULL},
        {"01:30", VALUE_STRING, 0, NULL},
        {"1e", VALUE_STRING, 0, NULL},
        {"1e+", VALUE_STRING, 0, NULL},
        {"e5", VALUE_STRING, 0, NULL},
        {".", VALUE_STRING, 0, NULL},
        {"._5", VALUE_STRING, 0, NULL},
        {"1.2.3", VALUE_STRING, 0, NULL},
        {"0x", VALUE_STRING, 0, NULL},
        {"0o17", VALUE_STRING, 0, NULL},
        {"_1", VALUE_STRING, 0, NULL},
        {"+.nan", VALUE_STRING, 0, NULL},
        {"+-5", VALUE_STRING, 0, NULL},
        {"1 2", VALUE_STRING, 0, NULL},
        {"'4'", VALUE_STRING, 0, NULL},
        {"\"4\"", VALUE_STRING, 0, NULL},
        {"!!str 4", VALUE_STRING, 0, NULL},
        {"!!int '4'", VALUE_INT, 4, NULL},
        {"!!float 4", VALUE_FLOAT, 4, NULL},
        {"1e-4", VALUE_FLOAT, 1e-4, "a learning rate as everyone writes it; PyYAML has a string"},
        {"1e4", VALUE_FLOAT, 1e4, "the same"},
        {"-1e-3", VALUE_FLOAT, -1e-3, "the same"},
        {"1.5e3", VALUE_FLOAT, 1500, "the same"},
        {"-.5", VALUE_FLOAT, -0.5, "PyYAML has a number for .5 and a string for -.5"},
        {"2020-01-01", VALUE_STRING, 0, "PyYAML has a date, which the original then refuses"},
        {"=", VALUE_STRING, 0, "PyYAML fails on its own type 'value'"},
        {"0b_", VALUE_STRING, 0, "PyYAML fails to read the number that it takes it for"},
        {"9223372036854775807", VALUE_INT, 9223372036854775807.0, NULL},
        {"-9223372036854775808", VALUE_INT, -9223372036854775808.0, NULL},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        struct arena arena;
        struct value *value;
        char text[64];
        arena_init(&arena);
        snprintf(text, sizeof text, "k: %s", rows[i].text);
        assert_ok(value_load_yaml(&arena, "t", text, strlen(text), &value));
        value = value->map.items[0];
        double number = value->kind == VALUE_INT     ? (double)value->integer
                        : value->kind == VALUE_FLOAT ? value->number
                        : value->kind == VALUE_BOOL  ? value->boolean
                                                     : 0;
        if (value->kind != rows[i].kind || number != rows[i].number) {
            fail_msg("%s became %s %g", rows[i].text, value_kind_name(value->kind), number);
        }
        arena_release(&arena);
    }
    // Exact or refused.
    static const char *const large[] = {"9223372036854775808",
                                        "-9223372036854775809",
                                        "0x10000000000000000",
                                        "02000000000000000000000",
                                        "999999999999999999:59:59",
                                        "1e400",
                                        "-1.0e+400"};
    for (size_t i = 0; i < ARRAY_COUNT(large); i++) {
        assert_fails(load(large[i], strlen(large[i])), ERR_USAGE, "does not fit into 64 bits");
    }
    // More digits than any buffer of the reader has.
    char digits[2000];
    memset(digits, '1', sizeof digits);
    assert_fails(load(digits, sizeof digits), ERR_USAGE, "does not fit into 64 bits");
    digits[1] = '.';
    struct arena arena;
    struct value *value;
    arena_init(&arena);
    assert_ok(value_load_yaml(&arena, "t", digits, sizeof digits, &value));
    assert_true(value->kind == VALUE_FLOAT && fabs(value->number - 10.0 / 9) < 1);
    assert_ok(value_load_yaml(&arena, "t", "seed: 9007199254740993", 22, &value));
    assert_true(value->map.items[0]->integer == INT64_C(9007199254740993));
    assert_ok(value_load_yaml(&arena, "t", ".nan", 4, &value));
    assert_true(value->kind == VALUE_FLOAT && isnan(value->number));
    arena_release(&arena);
}

// ---- What is refused, and where -----------------------------------------------------------------

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"a: 1\na: 2\n", "t.yaml:2:1: the key 'a' is given twice, first in t.yaml:1:1"},
        {"a:\n  b: {c: 1, 'c': 2}", "t.yaml:2:13: the key 'c' is given twice"},
        {"a: &x [*x]", "t.yaml:1:8: the alias *x stands inside what it names"},
        {"a: *x", "t.yaml:1:4: the alias *x names nothing before it"},
        {"a: &x [1]\n*x : 2", "t.yaml:2:1: a key must be a word, not a list"},
        {"{[1]: 2}", "t.yaml:1:2: a key must be a word, not a list"},
        {"? {a: 1}\n: 2", "a key must be a word, not a mapping"},
        {"a: \"x\\0y\"", "t.yaml:1:4: a string holds a NUL byte"},
        {"\"x\\0y\": 1", "t.yaml:1:1: a string holds a NUL byte"},
        {"a: 1\nb: \xff\xfe", "t.yaml:2:4: not valid YAML: invalid leading UTF-8 octet"},
        {"a: 1\nbc: \x01", "t.yaml:2:5: not valid YAML: control characters are not allowed"},
        {"a: \xed\xa0\x80", "not valid YAML: invalid Unicode character"},
        {"a: \xc3", "t.yaml:1:4: not valid YAML: incomplete UTF-8 octet sequence"},
        {"a: [1,\n  b\n",
         "t.yaml:3:1: not valid YAML: did not find expected ',' or ']', while parsing a flow "
         "sequence begun in line 1"},
        {"--- 1\n--- 2", "t.yaml:2:1: a second document begins here"},
        {"a: !python/object x", "t.yaml:1:4: the tag !python/object has no meaning here"},
        {"a: !!set {b}", "the tag tag:yaml.org,2002:set has no meaning here"},
        {"a: !!binary aGk=", "the tag tag:yaml.org,2002:binary has no meaning here"},
        {"a: !!int x", "t.yaml:1:4: x is a string, not an integer as its tag says"},
        {"a: &x {b: 1}\nc:\n  <<: *x", "t.yaml:3:3: the merge key '<<' is not supported"},
    };
    for (size_t i = 0; i < ARRAY_COUNT(rows); i++) {
        assert_fails(load(rows[i].text, strlen(rows[i].text)), ERR_USAGE, rows[i].message);
    }
    assert_fails(load("a: x\0y", 6), ERR_USAGE, "t.yaml:1:5: not valid YAML: control characters");
    assert_ok(load("", 0));
    assert_ok(load("# nothing\n", 10));
    assert_ok(load("\xef\xbb\xbf"
                   "a: 1\r\nb: [1,\r\n 2]\r\n",
                   22));  // BOM, DOS line ends
}

static void test_limits(void **state)
{
    (void)state;
    static char deep[5000], big[VALUE_TEXT_LIMIT + 1];
    double start = time_now();
    memset(deep, '[', sizeof deep);
    assert_fails(load(deep, sizeof deep), ERR_USAGE, "t.yaml:1:65: nested more than 64 deep");
    memset(big, ' ', sizeof big);
    assert_fails(load(big, sizeof big), ERR_USAGE, "more than the limit of 1048576");
    assert_ok(load(big, sizeof big - 1));
    memset(big, '[', sizeof big);
    assert_fails(load(big, sizeof big - 1), ERR_USAGE, "nested more than 64 deep");
    memset(big, ',', sizeof big);
    big[0] = '[';
    for (size_t i = 1; i < sizeof big; i += 2) {
        big[i] = '1';
    }
    assert_fails(load(big, sizeof big - 1), ERR_USAGE, "more than 10000 values");

    struct text bomb = {0};
    text_append(&bomb, "a0: &a0 [x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 9; i++) {
        text_printf(&bomb, "a%d: &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n", i, i, i - 1,
                    i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
    }
    assert_fails(load(bomb.data, bomb.size), ERR_USAGE, "t.yaml:5:");
    assert_non_null(strstr(error_get()->message, "more than 10000 values"));
    text_clear(&bomb);  // few values, many bytes
    text_append(&bomb, "- &a ");
    for (int i = 0; i < 10000; i++) {
        text_append(&bomb, "0123456789");
    }
    for (int i = 0; i < 100; i++) {
        text_append(&bomb, "\n- *a");
    }
    assert_fails(load(bomb.data, bomb.size), ERR_USAGE, "4194304 bytes, counting aliases");
    text_clear(&bomb);  // few values, deep
    text_append(&bomb, "- &a0 [x]\n");
    for (int i = 1; i < 90; i++) {
        text_printf(&bomb, "- &a%d [*a%d]\n", i, i - 1);
    }
    assert_fails(load(bomb.data, bomb.size), ERR_USAGE, "t.yaml:63:9: nested more than 64 deep");
    text_clear(&bomb);  // the longest key
    text_printf(&bomb, "%0200d: 1", 0);
    assert_ok(load(bomb.data, bomb.size));
    text_clear(&bomb);
    text_printf(&bomb, "%0201d: 1", 0);
    assert_fails(load(bomb.data, bomb.size), ERR_USAGE, "a key of 201 bytes; the limit is 200");
    text_release(&bomb);
    assert_true(time_now() - start < 20);  // under the sanitizers, on a busy machine
}

static void test_places(void **state)
{
    (void)state;
    static const char text[] = "a: 1\nb:\n  - x\n  - &n {c: 'y'}\n\xc3\xa9: *n\n";
    struct arena arena;
    struct value *value;
    arena_init(&arena);
    assert_ok(value_load_yaml(&arena, "t.yaml", text, strlen(text), &value));
    const struct value *list = value_find(value, "b"), *c = value_find(list->list.items[1], "c");
    assert_string_equal(c->place.source, "t.yaml");
    assert_int_equal(c->place.line, 4);
    assert_int_equal(c->place.column, 12);
    assert_true(c->quoted);
    assert_int_equal(value->map.key_places[2].line, 5);
    assert_int_equal(value->map.items[2]->place.column, 4);  // of the alias, in characters
    assert_true(value_equal(value->map.items[2], list->list.items[1]));
    assert_null(value_find(value, "c"));
    arena_release(&arena);
}

// ---- The YAML test suite ------------------------------------------------------------------------

// Cases whose outcome differs from the suite's, and why. All are libyaml's reading, and PyYAML's.
static const struct {
    const char *name, *outcome, *why;
} decisions[] = {
    {"4MUZ_02", "refused", "a colon on the line after its key in a flow mapping"},
    {"652Z", "differs", "in a flow mapping ?foo is the key foo (PyYAML likewise)"},
    {"DBG4", "refused", "a plain scalar that begins with a colon in a flow list"},
    {"SU5Z", "accepted", "a comment that touches a quoted scalar: harmless"},
};

// "as said", "refused", "accepted" or "differs".
static const char *suite_outcome(const char *folder, const char *name)
{
    char file[1024];
    uint8_t *data;
    size_t size;
    struct arena arena;
    struct value *value, *wanted;
    arena_init(&arena);
    snprintf(file, sizeof file, "%s/%s.yaml", folder, name);
    assert_ok(file_read(file, 1 << 20, &data, &size));
    bool accepted = value_load_yaml(&arena, name, (char *)data, size, &value) == STATUS_OK;
    mem_free(data);
    snprintf(file, sizeof file, "%s/%s.json", folder, name);
    const char *outcome = "as said";
    if (accepted != file_exists(file)) {
        outcome = accepted ? "accepted" : "refused";
    } else if (accepted) {
        assert_ok(file_read(file, 1 << 20, &data, &size));
        assert_ok(value_load_yaml(&arena, name, (char *)data, size, &wanted));
        mem_free(data);
        outcome = value_equal(value, wanted) ? "as said" : "differs";
    }
    arena_release(&arena);
    return outcome;
}

static void test_yaml_suite(void **state)
{
    (void)state;
    char path[512];
    if (!test_shared(path, sizeof path, "data/yaml_suite")) {
        SKIP("the YAML test suite is not beside the checkout");
    }
    char **names;
    int count, cases = 0, wrong = 0;
    assert_ok(file_list(path, &names, &count));
    for (int i = 0; i < count; i++) {
        char *dot = strrchr(names[i], '.');
        if (!dot || strcmp(dot, ".yaml") != 0) {
            continue;
        }
        *dot = '\0';
        const char *wanted = "as said", *outcome = suite_outcome(path, names[i]);
        for (size_t k = 0; k < ARRAY_COUNT(decisions); k++) {
            wanted = strcmp(names[i], decisions[k].name) == 0 ? decisions[k].outcome : wanted;
        }
        cases++;
        if (strcmp(outcome, wanted) != 0) {
            wrong++;
            printf("  %s: %s, expected: %s (%s)\n", names[i], outcome, wanted,
                   error_get()->message);
        }
    }
    file_list_free(names, count);
    assert_int_equal(cases, 62);
    assert_int_equal(wrong, 0);
}

// ---- Damaged texts ------------------------------------------------------------------------------

static uint32_t random_state = 1;

static uint32_t random_below(uint32_t bound)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % bound;
}

// Thousands of damaged texts: an error with a sentence or a tree that can be written and read,
// never a crash (run under the sanitizers).
static void test_mutations(void **state)
{
    (void)state;
    static const char *const seeds[] = {
        "runtime: {num_gpus: 2, s: 'x'}\nl: [1, 2]\nnames: &a [x, y]\nz: *a\n",
        "a:\n  - b: |\n      text\n    c: >-\n      more\n  - !!str 5\n",
        "{\"a\": [1, \"\\u0041\", null, true, 1.5e3], ? x : 1:30}"};
    static const char marks[] = "[]{},:='\"&*!|>#-?%@`~\n\t \\0";
    for (int i = 0; i < 6000; i++) {
        char text[128];
        size_t size = (size_t)snprintf(text, sizeof text, "%s", seeds[i % 3]);
        for (int k = 0; k < 1 + i % 4; k++) {
            text[random_below((uint32_t)size)] =
                i % 2 ? marks[random_below(sizeof marks - 1)] : (char)random_below(256);
        }
        struct arena arena;
        struct value *value, *again;
        struct text yaml = {0};
        arena_init(&arena);
        error_clear();
        if (value_load_yaml(&arena, "t", text, size, &value) == STATUS_OK) {
            value_dump_yaml(&yaml, value, 0);
            assert_ok(value_load_yaml(&arena, "again", yaml.data, yaml.size, &again));
            assert_true(value_equal(value, again));
        } else {
            assert_true(strlen(error_get()->message) > 10);
        }
        text_release(&yaml);
        arena_release(&arena);
    }
}

// ---- Random trees, written and read -------------------------------------------------------------

static const char *random_string(struct arena *arena)
{
    static const char *const words[] = {"",
                                        "yes",
                                        "off",
                                        "null",
                                        "~",
                                        "1e3",
                                        "1:30",
                                        "0x1",
                                        "1_0",
                                        ".inf",
                                        "-.5",
                                        "2020-01-01",
                                        "x",
                                        " x",
                                        "x ",
                                        "a: b",
                                        "a:",
                                        "a #b",
                                        "#",
                                        "-",
                                        "- a",
                                        "-4:",
                                        "--- a",
                                        "...",
                                        "=",
                                        "<<",
                                        "? a",
                                        "it's",
                                        "\"",
                                        "\\n",
                                        "\n",
                                        "a\n\nb\n",
                                        "\t",
                                        "\r",
                                        "\x01",
                                        "\x7f",
                                        "\xc2\x85",
                                        "\xc2\xa0",
                                        "\xe2\x80\xa8",
                                        "\xef\xbb\xbf"
                                        "x",
                                        "\xef\xbf\xbf",
                                        "\xf0\x9f\x98\x80",
                                        "caf\xc3\xa9",
                                        "[a",
                                        "a]",
                                        "{",
                                        "a,b",
                                        "&a",
                                        "*a",
                                        "!x",
                                        "|",
                                        ">",
                                        "%",
                                        "@",
                                        "`",
                                        "http://x#y",
                                        "a=b",
                                        "99999999999999999999",
                                        "1e999",
                                        "\xe2\x80\xa9z",
                                        "::v",
                                        "?x",
                                        "key?",
                                        "-x"};
    static const char letters[] = "ab01 :#-,[]{}'\"\\\n?&*!|>%.e_~=";
    if (random_below(2)) {
        return words[random_below(ARRAY_COUNT(words))];
    }
    size_t size = random_below(8);
    char *text = arena_alloc(arena, size + 1);
    for (size_t i = 0; i < size; i++) {
        text[i] = letters[random_below(sizeof letters - 1)];
    }
    return text;
}

static struct value *random_tree(struct arena *arena, int depth)
{
    static const double numbers[] = {0.0,
                                     -0.0,
                                     1.0,
                                     0.1,
                                     1e-5,
                                     1e-4,
                                     1e16,
                                     1e22,
                                     1.0 / 3,
                                     5e-324,
                                     1.7976931348623157e308,
                                     -INFINITY,
                                     NAN,
                                     123456789012345.0};
    static const int64_t integers[] = {0, -1, 8, INT64_MAX, INT64_MIN, INT64_C(9007199254740993)};
    struct value_place nowhere = {0};
    uint32_t most = depth > 0 ? VALUE_MAP : VALUE_STRING;
    enum value_kind kind = (enum value_kind)random_below(most + 1);
    struct value *value = value_new(arena, kind, nowhere);
    int count = (int)random_below(5);
    switch (kind) {
    case VALUE_NULL: break;
    case VALUE_BOOL: value->boolean = random_below(2); break;
    case VALUE_INT: value->integer = integers[random_below(ARRAY_COUNT(integers))]; break;
    case VALUE_FLOAT: {
        uint64_t bits = (uint64_t)random_below(1 << 24) << 40 | random_below(1 << 24);
        memcpy(&value->number, &bits, sizeof bits);
        if (random_below(2)) {
            value->number = numbers[random_below(ARRAY_COUNT(numbers))];
        }
        break;
    }
    case VALUE_STRING: value->string = random_string(arena); break;
    case VALUE_LIST:
        while (count-- > 0) {
            value_list_append(arena, value, random_tree(arena, depth - 1));
        }
        break;
    case VALUE_MAP:
        while (count-- > 0) {
            const char *key = random_string(arena);
            if (!value_find(value, key)) {
                value_map_append(arena, value, key, nowhere, random_tree(arena, depth - 1));
            }
        }
    }
    return value;
}

static void test_random_trees(void **state)
{
    (void)state;
    for (int i = 0; i < 5000; i++) {
        struct arena arena;
        arena_init(&arena);
        struct value *tree = random_tree(&arena, 4), *again;
        struct text first = {0}, second = {0};
        value_dump_yaml(&first, tree, 0);
        if (value_load_yaml(&arena, "dump", first.data, first.size, &again) != STATUS_OK ||
            !value_equal(tree, again)) {
            fail_msg("does not read back: %s\n%s", error_get()->message, text_get(&first));
        }
        value_dump_yaml(&second, again, 0);
        assert_string_equal(text_get(&first), text_get(&second));
        assert_true(value_equal(tree, value_copy(&arena, tree)));
        text_release(&first);
        text_release(&second);
        arena_release(&arena);
    }
}

// What people see in params.yaml.
static void test_dump_form(void **state)
{
    (void)state;
    static const char text[] =
        "{z: {b: [1, 0.5, 'yes', null], a: true}, y: [{k: 1, m: [[1, 2], x]}, {}, []], x: 1e-5,\n"
        " w: 1.0, v: '', u: '-4:', t: \"tab\\there\", s: it's, r: 1e-4, q: -x, p: a b, o: "
        "'2020-01-01',\n"
        " n: 1e20, m: .inf, l: caf\xc3\xa9, k: 'a?b'}";
    static const char wanted[] = "k: 'a?b'\n"
                                 "l: caf\xc3\xa9\n"
                                 "m: .inf\n"
                                 "n: 1.0e+20\n"
                                 "o: '2020-01-01'\n"
                                 "p: a b\n"
                                 "q: -x\n"
                                 "r: 0.0001\n"
                                 "s: it's\n"
                                 "t: \"tab\\there\"\n"
                                 "u: '-4:'\n"
                                 "v: ''\n"
                                 "w: 1.0\n"
                                 "x: 1.0e-05\n"
                                 "y:\n"
                                 "  - k: 1\n"
                                 "    m:\n"
                                 "      - [1, 2]\n"
                                 "      - x\n"
                                 "  - {}\n"
                                 "  - []\n"
                                 "z:\n"
                                 "  a: true\n"
                                 "  b: [1, 0.5, 'yes', null]\n";
    struct arena arena;
    struct value *value;
    struct text yaml = {0};
    arena_init(&arena);
    assert_ok(value_load_yaml(&arena, "t", text, strlen(text), &value));
    value_dump_yaml(&yaml, value, 0);
    assert_string_equal(text_get(&yaml), wanted);
    text_clear(&yaml);
    value_dump_json(&yaml, value_find(value, "z"));
    assert_string_equal(text_get(&yaml), "{\"b\": [1, 0.5, \"yes\", null], \"a\": true}");
    text_release(&yaml);
    arena_release(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scalars),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limits),       cmocka_unit_test(test_places),
        cmocka_unit_test(test_yaml_suite),   cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_random_trees), cmocka_unit_test(test_dump_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
