/* Lists the tests, or runs one of them by name.
 *
 * Each test is there with checked mode on and off, the latter with "::unchecked" after its name, unless what it shows is
 * about one of the two. */

#include "check.h"

extern const struct test types_tests[], alloc_tests[], track_tests[], dealloc_tests[], queries_tests[], visit_tests[],
    heaptypes_tests[], dict_tests[], weak_tests[], traversal_tests[], during_gc_tests[], world_tests[], collect_tests[],
    objects_tests[], names_tests[], decisions_tests[], services_tests[], scenarios_tests[], guarantees_tests[],
    sizes_tests[], answers_tests[], memory_tests[], fork_tests[], blocks_tests[],
    diagnose_tests[], coordinator_tests[], weak_map_tests[];

static const struct test *const tables[] = {
    types_tests,     alloc_tests, track_tests, dealloc_tests,   queries_tests,   visit_tests,
    heaptypes_tests, dict_tests,  weak_tests,  traversal_tests, during_gc_tests, world_tests,
    collect_tests,   objects_tests, names_tests, decisions_tests, services_tests, scenarios_tests, guarantees_tests,
    sizes_tests, answers_tests, memory_tests, fork_tests, blocks_tests, diagnose_tests,
    coordinator_tests, weak_map_tests,
};
#define TABLES (sizeof tables / sizeof tables[0])
#define SUFFIX "::unchecked"

void record_misuse(const standstill_misuse *misuse, void *arg);
void record_unraisable(const standstill_unraisable *error, void *arg);

static void run(const struct test *test, int checked) {
    standstill_heap_options options;
    check_is_checked = checked;
    standstill_set_misuse_hook(record_misuse, NULL);
    standstill_set_unraisable_hook(record_unraisable, NULL);
    if (test->how & BARE) {
        test->run();
    } else {
        memset(&options, 0, sizeof options);
        options.checked = checked;
        check_heap = standstill_heap_new(&options);
        CHECK(check_heap != NULL);
        CHECK_INT(standstill_attach(check_heap), 0);
        ready(&Pair_Type);
        ready(&Row_Type);
        ready(&Holder_Type);
        ready(&Leaf_Type);
        /* Checked mode tries the handlers of a type at its first instance: not in the middle of a test. */
        Py_DECREF(pair(NULL, NULL));
        Py_DECREF(row(0));
        memset(&calls, 0, sizeof calls);
        test->run();
        if (PyErr_Occurred())
            check_failed(test->name, 0, "the test left an error behind: %d: %s", standstill_error_code(),
                         standstill_error_message());
        CHECK_INT(standstill_detach(), 0);
    }
    if (misuses(0))
        check_failed(test->name, 0, "%d reports that were not expected, the last: code %d in %s, type %s: %s", misuses(0),
                     last_misuse.code, last_misuse.function, last_misuse.type, last_misuse.text);
    if (unraisables())
        check_failed(test->name, 0, "%d unraisable errors that were not expected, the last: %s: %s", unraisables(),
                     last_unraisable.function, last_unraisable.text);
}

int main(int count, char **words) {
    size_t i;
    const struct test *test;
    char name[256];
    int checked;
    if (count != 2) {
        fprintf(stderr, "usage: %s --list | NAME\n", words[0]);
        return 2;
    }
    name[0] = 0;
    strncat(name, words[1], sizeof name - 1);
    checked = strstr(name, SUFFIX) == NULL;
    if (!checked)
        *strstr(name, SUFFIX) = 0;
    for (i = 0; i < TABLES; i++)
        for (test = tables[i]; test->name; test++) {
            if (strcmp(name, "--list") == 0) {
                if (!(test->how & UNCHECKED_ONLY))
                    printf("%s\n", test->name);
                if (!(test->how & (CHECKED_ONLY | BARE)))
                    printf("%s" SUFFIX "\n", test->name);
            } else if (strcmp(name, test->name) == 0) {
                run(test, checked);
                return 0;
            }
        }
    if (strcmp(name, "--list") == 0)
        return 0;
    fprintf(stderr, "no test %s\n", words[1]);
    return 2;
}
