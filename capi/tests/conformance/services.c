/* What users of the page also expect: the services of the gc module, finalizers, weak references. */

#include "allocator.h"
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)
#define FINALIZED(variable, name, finalizer)                                                                          \
    static PyTypeObject variable = {TYPE_HEAD .tp_name = name, .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,   \
                                    .tp_finalize = finalizer}

static int contains(PyObject *tuple, const void *object) {
    Py_ssize_t i;
    int n = 0;
    for (i = 0; i < PyTuple_Size(tuple); i++)
        n += PyTuple_GetItem(tuple, i) == (const PyObject *)object;
    return n;
}

static void u_01_collect_takes_a_generation(void) {
    long long before = LIVE();
    CHECK_INT(standstill_gc_collect(3), -1);
    EXPECT_ERROR(STANDSTILL_E_BAD_GENERATION);
    CHECK_INT(standstill_gc_collect(-2), -1);
    CHECK(PyErr_ExceptionMatches(PyExc_ValueError));
    EXPECT_ERROR(STANDSTILL_E_BAD_GENERATION);
    garbage_ring(3);
    PyGC_Disable();
    CHECK_INT(standstill_gc_collect(2), 3);
    garbage_ring(2);
    CHECK_INT(standstill_gc_collect(0), 2); /* young ones */
    garbage_ring(2);
    CHECK_INT(standstill_gc_collect(1), 2);
    PyGC_Enable();
    CHECK_INT(LIVE(), before);
}

static void u_02_everything_comes_in_three_generations(void) {
    int thresholds[3] = {-1, -1, -1};
    Py_ssize_t counts[3] = {-1, -1, -1};
    standstill_gc_stats stats[3];
    memset(stats, 0xff, sizeof stats);
    CHECK_INT(standstill_gc_get_threshold(thresholds), 0);
    CHECK_INT(standstill_gc_get_count(counts), 0);
    CHECK_INT(standstill_gc_get_stats(stats), 0);
    CHECK(thresholds[2] >= 0 && counts[2] >= 0 && stats[2].collections != UINT64_MAX);
}

static void u_03_both_views_of_the_switch_agree(void) {
    CHECK_INT(standstill_gc_disable(), 1);
    CHECK_INT(PyGC_IsEnabled(), 0);
    CHECK_INT(PyGC_Enable(), 0);
    CHECK_INT(standstill_gc_isenabled(), 1);
    CHECK_INT(PyGC_Disable(), 1);
    CHECK_INT(standstill_gc_enable(), 0);
    CHECK_INT(PyGC_IsEnabled(), 1);
}

static void u_04_thresholds_are_kept(void) {
    int out[3];
    CHECK_INT(standstill_gc_get_threshold(out), 0);
    CHECK(out[0] == 2000 && out[1] == 10 && out[2] == 0);
    CHECK_INT(standstill_gc_set_threshold(5, 6, 7), 0);
    CHECK_INT(standstill_gc_get_threshold(out), 0);
    CHECK(out[0] == 5 && out[1] == 6 && out[2] == 7);
    CHECK_INT(standstill_gc_set_threshold(-1, 6, 7), -1);
    EXPECT_ERROR(STANDSTILL_E_BAD_THRESHOLD);
    CHECK_INT(standstill_gc_get_threshold(out), 0);
    CHECK_INT(out[0], 5);
}

static void u_04_threshold_0_starts_nothing(void) {
    int i;
    CHECK_INT(standstill_gc_set_threshold(0, 0, 0), 0);
    for (i = 0; i < 1000000; i++) {
        Py_DECREF(pair(NULL, NULL));
        if (i % 100 == 0) {
            garbage_ring(1);
            standstill_safepoint();
        }
    }
    CHECK_INT(calls.traversed, 0);
}

static void memory_outside_the_heap_makes_a_collection_due(void) {
    long long before = LIVE();
    Py_ssize_t bytes = 17 << 20;
    garbage_ring(3);
    standstill_safepoint();
    CHECK_INT(LIVE(), before + 3);
    CHECK_INT(standstill_adjust_external_bytes(bytes), 0);
    standstill_safepoint();
    CHECK_INT(LIVE(), before);
    CHECK_INT(standstill_adjust_external_bytes(-bytes), 0);
}

/* U-05 */
static uint64_t collections(int generation) {
    standstill_gc_stats stats[3];
    CHECK_INT(standstill_gc_get_stats(stats), 0);
    return stats[generation].collections;
}
static uint64_t all_collections(void) { return collections(0) + collections(1) + collections(2); }

static void u_04_the_first_run_comes_at_the_threshold_that_is_said(void) {
    int made = 0;
    while (all_collections() == 0 && made < 100000) {
        garbage_ring(1);
        made++;
        standstill_safepoint();
    }
    /* Cells are counted when a thread fetches them, some dozens at a time. */
    CHECK(made > 1500 && made < 2500);
}

static void u_05_a_run_starts_at_the_threshold(void) {
    Pair *kept = ring(1), *next;
    int i;
    CHECK_INT(standstill_gc_set_threshold(500, 0, 0), 0);
    PyGC_Collect();
    i = (int)all_collections();
    for (; kept->tag < 400; kept->tag++) {
        next = pair(kept->b, NULL);
        set_b(kept, next);
        Py_DECREF(next);
        standstill_safepoint();
    }
    CHECK_INT(all_collections(), i);
    for (; kept->tag < 3000; kept->tag++) {
        next = pair(kept->b, NULL);
        set_b(kept, next);
        Py_DECREF(next);
        standstill_safepoint();
    }
    CHECK(all_collections() > (uint64_t)i);
    Py_DECREF(kept);
    PyGC_Collect();
}

static void u_05_full_runs_wait_for_a_quarter_of_the_survivors(void) {
    Row *kept = row(100000);
    uint64_t full;
    int i;
    CHECK_INT(standstill_gc_set_threshold(0, 10, 0), 0);
    for (i = 0; i < 100000; i++)
        kept->items[i] = (PyObject *)pair(NULL, NULL);
    PyGC_Collect();
    full = collections(2);
    CHECK_INT(standstill_gc_set_threshold(2000, 10, 0), 0);
    for (i = 0; i < 20000; i++) {
        Py_SETREF(kept->items[i], (PyObject *)pair(NULL, NULL));
        standstill_safepoint();
    }
    CHECK_INT(collections(2), full);
    Py_DECREF(kept);
    PyGC_Collect();
}

/* U-07 */
static void allocate_100(void *arg) {
    Row *kept = arg;
    int i, from = Py_SIZE(kept) > 100 && kept->items[0] ? 100 : 0;
    for (i = 0; i < 100; i++)
        kept->items[from + i] = (PyObject *)pair(NULL, NULL);
}

static void u_07_counts_are_exact_over_threads(void) {
    Row *kept = row(200);
    Py_ssize_t before[3], after[3];
    CHECK_INT(standstill_gc_set_threshold(0, 0, 0), 0);
    CHECK_INT(standstill_gc_get_count(before), 0);
    allocate_100(kept);
    CHECK_INT(standstill_gc_get_count(after), 0);
    CHECK_INT(after[0] - before[0], 100);
    run_on_thread(allocate_100, kept);
    CHECK_INT(standstill_gc_get_count(after), 0);
    CHECK_INT(after[0] - before[0], 200);
    Py_DECREF(kept);
}

static void u_08_statistics_are_the_sums_of_the_results(void) {
    standstill_gc_stats before[3], after[3];
    Py_ssize_t sum = 0;
    CHECK_INT(standstill_gc_get_stats(before), 0);
    garbage_ring(3);
    sum += standstill_gc_collect(2);
    garbage_ring(4);
    sum += PyGC_Collect();
    CHECK_INT(standstill_gc_get_stats(after), 0);
    CHECK_INT(after[2].collections - before[2].collections, 2);
    CHECK_INT(after[2].collected - before[2].collected, sum);
    CHECK_INT(sum, 7);
    CHECK_INT(after[2].uncollectable, before[2].uncollectable);
    CHECK(after[2].candidates - before[2].candidates >= 7);
    CHECK(after[2].duration > before[2].duration);
    CHECK(after[2].stopped > before[2].stopped && after[2].stopped <= after[2].duration);
}

/* U-09 */
static char phases[64];
static standstill_gc_info at_stop;
static void note_phase(const char *phase, const standstill_gc_info *info, void *arg) {
    CHECK(strcmp(phase, "start") == 0 || strcmp(phase, "stop") == 0);
    CHECK(strlen(phases) + 2 < sizeof phases);
    strcat(phases, phase[2] == 'a' ? "s" : "e");
    strcat(phases, (const char *)arg);
    if (phase[2] != 'a')
        at_stop = *info;
    else
        CHECK_INT(info->collected, 0);
}
static void failing_phase(const char *phase, const standstill_gc_info *info, void *arg) {
    (void)info;
    (void)arg;
    (void)phase;
    CHECK_INT(PyGC_Collect(), 0);
    PyErr_SetString(PyExc_ValueError, "phase failed");
}

static void u_09_callbacks_run_before_and_after(void) {
    int first = standstill_gc_add_callback(note_phase, (void *)(uintptr_t)"1");
    int failing = standstill_gc_add_callback(failing_phase, NULL);
    int second = standstill_gc_add_callback(note_phase, (void *)(uintptr_t)"2");
    CHECK(first >= 0 && failing >= 0 && second >= 0 && first != second);
    garbage_ring(3);
    CHECK_INT(standstill_gc_collect(2), 3);
    CHECK(strcmp(phases, "s1s2e1e2") == 0);
    EXPECT_UNRAISABLE(2);
    forget_misuses(); /* the collection inside */
    CHECK_INT(at_stop.generation, 2);
    CHECK_INT(at_stop.collected, 3);
    CHECK_INT(at_stop.uncollectable, 0);
    CHECK(at_stop.duration > 0);
    CHECK_INT(standstill_gc_remove_callback(failing), 0);
    CHECK_INT(standstill_gc_remove_callback(first), 0);
    phases[0] = 0;
    standstill_gc_collect(2);
    CHECK(strcmp(phases, "s2e2") == 0);
    CHECK_INT(standstill_gc_remove_callback(second), 0);
    CHECK_INT(standstill_gc_remove_callback(second), -1);
    PyErr_Clear();
}

static int added = -1;
static void adding_phase(const char *phase, const standstill_gc_info *info, void *arg) {
    (void)info;
    (void)arg;
    if (phase[2] == 'a' && added < 0)
        added = standstill_gc_add_callback(note_phase, (void *)(uintptr_t)"n");
}

static void u_09_a_change_takes_effect_in_the_next_phase(void) {
    CHECK(standstill_gc_add_callback(adding_phase, NULL) >= 0);
    standstill_gc_collect(2);
    CHECK(strcmp(phases, "en") == 0);
}

static void u_10_debug_flags_make_the_round(void) {
    CHECK_INT(standstill_gc_get_debug(), 0);
    CHECK_INT(standstill_gc_set_debug(STANDSTILL_GC_DEBUG_STATS | STANDSTILL_GC_DEBUG_SAVEALL), 0);
    CHECK_INT(standstill_gc_get_debug(), 33);
    CHECK_INT(standstill_gc_set_debug(64), -1);
    EXPECT_ERROR(STANDSTILL_E_BAD_DEBUG_FLAGS);
    CHECK_INT(standstill_gc_get_debug(), 33);
    CHECK_INT(standstill_gc_set_debug(0), 0);
}

/* U-11, U-12, U-13 */
static int lines;
static char all_lines[8192];
static void note_line(const char *line, void *arg) {
    (void)arg;
    lines++;
    CHECK(strlen(all_lines) + strlen(line) + 2 < sizeof all_lines);
    strcat(all_lines, line);
    strcat(all_lines, "\n");
}
static int count_text(const char *text) {
    const char *at;
    int n = 0;
    for (at = all_lines; (at = strstr(at, text)); at += strlen(text))
        n++;
    return n;
}

static void u_11_stats_are_two_lines(void) {
    standstill_gc_set_debug_sink(note_line, NULL);
    CHECK_INT(standstill_gc_set_debug(STANDSTILL_GC_DEBUG_STATS), 0);
    garbage_ring(2);
    PyGC_Collect();
    CHECK_INT(lines, 2);
    CHECK_INT(standstill_gc_set_debug(0), 0);
    PyGC_Collect();
    CHECK_INT(lines, 2);
}

static void u_12_collectable_objects_are_one_line_each(void) {
    char address[32];
    Pair *p;
    standstill_gc_set_debug_sink(note_line, NULL);
    CHECK_INT(standstill_gc_set_debug(STANDSTILL_GC_DEBUG_COLLECTABLE), 0);
    p = garbage_ring(3);
    snprintf(address, sizeof address, "%p", (void *)p);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(lines, 3);
    CHECK_INT(count_text("check.Pair"), 3);
    CHECK_INT(count_text(address), 1);
    CHECK_INT(standstill_gc_set_debug(0), 0);
}

static long legacy_finalized;
static void legacy_del(PyObject *self) {
    (void)self;
    ADD(legacy_finalized);
}
static PyTypeObject Legacy_Type = {
    TYPE_HEAD
    .tp_name = "check.Legacy",
    .tp_basicsize = sizeof(Pair),
    .tp_base = &Pair_Type,
    .tp_del = legacy_del,
};

static void u_13_uncollectable_objects_are_printed_and_kept(void) {
    Pair *p;
    ready(&Legacy_Type);
    standstill_gc_set_debug_sink(note_line, NULL);
    CHECK_INT(standstill_gc_set_debug(STANDSTILL_GC_DEBUG_UNCOLLECTABLE), 0);
    p = garbage_ring_of(&Legacy_Type, 1);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(count_text("check.Legacy"), 1);
    CHECK_INT(standstill_gc_garbage_size(), 1);
    CHECK_INT(standstill_gc_set_debug(0), 0);
    set_a(p, NULL);
    CHECK_INT(standstill_gc_garbage_clear(), 0);
    CHECK_INT(calls.freed, 1);
}

/* U-14 */
FINALIZED(Finalized_Type, "check.Finalized", pair_finalize);

static void u_14_saveall_keeps_everything_whole(void) {
    Pair *p;
    PyObject *saved;
    long long before = LIVE();
    ready(&Finalized_Type);
    CHECK_INT(standstill_gc_set_debug(STANDSTILL_GC_DEBUG_SAVEALL), 0);
    p = garbage_ring_of(&Finalized_Type, 2);
    PyGC_Collect();
    CHECK_INT(standstill_gc_garbage_size(), 2);
    CHECK_INT(calls.finalized, 2);
    CHECK_INT(calls.cleared, 0);
    saved = standstill_gc_garbage_get(0);
    CHECK(saved == (PyObject *)p || saved == p->a);
    CHECK(((Pair *)((Pair *)saved)->a)->a == saved);
    Py_DECREF(saved);
    CHECK(standstill_gc_garbage_get(2) == NULL);
    PyErr_Clear();
    CHECK_INT(standstill_gc_set_debug(0), 0);
    CHECK_INT(standstill_gc_garbage_clear(), 0);
    CHECK_INT(standstill_gc_garbage_size(), 0);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
    CHECK_INT(calls.finalized, 2);
}

static void u_15_leak_is_the_three_of_them(void) {
    CHECK_INT(STANDSTILL_GC_DEBUG_LEAK, STANDSTILL_GC_DEBUG_COLLECTABLE | STANDSTILL_GC_DEBUG_UNCOLLECTABLE |
                                            STANDSTILL_GC_DEBUG_SAVEALL);
    CHECK_INT(standstill_gc_set_debug(STANDSTILL_GC_DEBUG_LEAK), 0);
    CHECK_INT(standstill_gc_get_debug(), 38);
}

static void u_16_an_object_with_a_legacy_finalizer_ends_up_in_garbage(void) {
    Pair *p, *got;
    ready(&Legacy_Type);
    p = garbage_ring_of(&Legacy_Type, 1);
    garbage_ring(2);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(calls.freed, 2);
    CHECK_INT(standstill_gc_garbage_size(), 1);
    got = (Pair *)standstill_gc_garbage_get(0);
    CHECK(got == p && got->a == (PyObject *)p);
    CHECK_INT(Py_REFCNT((PyObject *)got), 3); /* its own, the list's, ours */
    Py_DECREF(got);
    CHECK_INT(legacy_finalized, 0);
    set_a(p, NULL);
    CHECK_INT(standstill_gc_garbage_clear(), 0);
    CHECK_INT(calls.freed, 3);
}

static void u_17_objects_that_a_legacy_finalizer_reaches_are_kept_and_counted(void) {
    Pair *legacy, *plain, *reached;
    ready(&Legacy_Type);
    reached = pair(NULL, NULL);
    plain = pair(reached, NULL);
    legacy = pair_of(&Legacy_Type, plain, NULL);
    set_b(plain, legacy);
    set_a(reached, reached);
    Py_DECREF(reached);
    Py_DECREF(plain);
    Py_DECREF(legacy);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(calls.freed, 0);
    CHECK_INT(calls.cleared, 0);
    CHECK_INT(standstill_gc_garbage_size(), 1);
    CHECK(plain->a == (PyObject *)reached);
    set_b(plain, NULL);
    CHECK_INT(standstill_gc_garbage_clear(), 0);
    PyGC_Collect();
    CHECK_INT(calls.freed, 3);
}

static void u_18_frozen_garbage_survives(void) {
    long long before = LIVE();
    garbage_ring(2);
    CHECK_INT(standstill_gc_freeze(), 0);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(LIVE(), before + 2);
    garbage_ring(3); /* later objects are collected as ever */
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(standstill_gc_unfreeze(), 0);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(LIVE(), before);
}

static void u_18_frozen_objects_are_roots(void) {
    Pair *frozen = ring(1);
    PyObject *weak;
    Py_INCREF(frozen);
    standstill_gc_freeze();
    set_b(frozen, (PyObject *)pair(NULL, NULL));
    Py_DECREF(frozen->b);
    weak = weak_to(frozen->b);
    Py_DECREF(frozen);
    Py_DECREF(frozen); /* garbage, but frozen */
    PyGC_Collect();
    CHECK(is_alive(weak));
    Py_DECREF(weak);
    standstill_gc_unfreeze();
    PyGC_Collect();
    CHECK_INT(calls.freed, 2);
}

static void u_19_unfrozen_garbage_is_collected(void) {
    long long before = LIVE();
    CHECK_INT(standstill_gc_unfreeze(), 0); /* nothing frozen: nothing happens */
    garbage_ring(2);
    standstill_gc_freeze();
    standstill_gc_unfreeze();
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(LIVE(), before);
}

static void u_20_the_number_of_frozen_objects(void) {
    Pair *p = pair(NULL, NULL), *q = pair(NULL, NULL);
    Py_ssize_t n;
    CHECK_INT(standstill_gc_get_freeze_count(), 0);
    standstill_gc_freeze();
    n = standstill_gc_get_freeze_count();
    CHECK(n >= 2);
    Py_DECREF(q); /* freed by its count while frozen */
    CHECK_INT(standstill_gc_get_freeze_count(), n - 1);
    standstill_gc_unfreeze();
    CHECK_INT(standstill_gc_get_freeze_count(), 0);
    Py_DECREF(p);
}

/* U-21 */
static int quit;
static void churn(void *arg) {
    (void)arg;
    while (!GET(quit)) {
        garbage_ring(3);
        standstill_safepoint();
    }
}

static void u_21_the_child_of_a_fork_collects(void) {
    thread threads[3];
    Pair *kept = ring(2);
    int i, round;
    for (i = 0; i < 3; i++)
        start(&threads[i], churn, NULL);
    for (round = 0; round < 5; round++) {
        pid_t child;
        int status;
        PyGC_Collect();
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            long freed;
            alarm(20);
            PyGC_Collect(); /* what the lost threads left */
            freed = GET(calls.freed);
            garbage_ring(5);
            CHECK_INT(PyGC_Collect(), 5);
            CHECK_INT(GET(calls.freed), freed + 5);
            CHECK(kept->a != NULL && ((Pair *)kept->a)->a == (PyObject *)kept);
            _Exit(misuses(0) != 0);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status));
        CHECK_INT(WEXITSTATUS(status), 0);
    }
    PUT(quit, 1);
    for (i = 0; i < 3; i++)
        join(&threads[i]);
    Py_DECREF(kept);
    PyGC_Collect();
}

static void u_22_get_objects_lists_tracked_objects(void) {
    Pair *p = pair(NULL, NULL), *garbage = garbage_ring(1), *frozen;
    PyObject *number = PyLong_FromLong(5), *found = standstill_gc_get_objects(-1), *young;
    MUST(found != NULL);
    CHECK_INT(contains(found, p), 1);
    CHECK_INT(contains(found, garbage), 1);
    CHECK_INT(contains(found, number), 0);
    CHECK_INT(contains(found, found), 0);
    Py_DECREF(found);
    young = standstill_gc_get_objects(0);
    MUST(young != NULL);
    CHECK_INT(contains(young, p), 1);
    Py_DECREF(young);
    CHECK(standstill_gc_get_objects(3) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_GENERATION);
    CHECK(standstill_gc_get_objects(-2) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_GENERATION);
    frozen = p;
    standstill_gc_freeze();
    found = standstill_gc_get_objects(-1);
    MUST(found != NULL);
    CHECK_INT(contains(found, frozen), 0);
    Py_DECREF(found);
    standstill_gc_unfreeze();
    Py_DECREF(number);
    Py_DECREF(p);
    PyGC_Collect();
}

static void u_23_get_referrers_finds_the_containers(void) {
    Leaf *x = leaf();
    Pair *holding = pair(x, x), *other = pair(NULL, NULL), *frozen;
    PyObject *objects[1], *found;
    objects[0] = (PyObject *)x;
    found = standstill_gc_get_referrers(objects, 1);
    MUST(found != NULL);
    CHECK_INT(contains(found, holding), 1);
    CHECK_INT(contains(found, other), 0);
    CHECK_INT(PyTuple_Size(found), 1);
    CHECK_INT(Py_REFCNT((PyObject *)holding), 2);
    Py_DECREF(found);
    frozen = holding;
    standstill_gc_freeze();
    found = standstill_gc_get_referrers(objects, 1);
    MUST(found != NULL);
    CHECK_INT(contains(found, frozen), 0);
    Py_DECREF(found);
    standstill_gc_unfreeze();
    Py_DECREF(holding);
    Py_DECREF(other);
    Py_DECREF(x);
}

static void u_24_get_referents_lists_members(void) {
    PyObject *text = PyUnicode_FromString("text"), *objects[3], *found;
    Leaf *l = leaf();
    Pair *p = pair(l, text), *untracked = PyObject_GC_New(Pair, &Pair_Type);
    MUST(text && untracked);
    set_a(untracked, l);
    objects[0] = (PyObject *)p;
    objects[1] = text; /* skipped */
    objects[2] = (PyObject *)untracked;
    found = standstill_gc_get_referents(objects, 3);
    MUST(found != NULL);
    CHECK_INT(PyTuple_Size(found), 3);
    CHECK_INT(contains(found, l), 2);
    CHECK_INT(contains(found, text), 1);
    CHECK_INT(Py_REFCNT(text), 3);
    Py_DECREF(found);
    CHECK_INT(Py_REFCNT(text), 2);
    Py_DECREF(p);
    Py_DECREF(untracked);
    Py_DECREF(l);
    Py_DECREF(text);
}

static void u_25_both_views_of_an_object_agree(void) {
    Pair *p = pair(NULL, NULL);
    PyObject *number = PyLong_FromLong(3);
    CHECK_INT(standstill_gc_is_tracked((PyObject *)p), PyObject_GC_IsTracked((PyObject *)p));
    CHECK_INT(standstill_gc_is_tracked((PyObject *)p), 1);
    CHECK_INT(standstill_gc_is_tracked(number), 0);
    CHECK_INT(standstill_gc_is_finalized((PyObject *)p), 0);
    CHECK_INT(standstill_gc_is_finalized(number), 0);
    Py_DECREF(p);
    Py_DECREF(number);
}

/* U-26 */
static PyObject *saved;
static void saving_finalizer(PyObject *self) {
    ADD(calls.finalized);
    saved = Py_NewRef(self);
}
FINALIZED(Saving_Type, "check.Saving", saving_finalizer);

static void u_26_a_finalizer_runs_once_in_a_life(void) {
    ready(&Saving_Type);
    garbage_ring_of(&Saving_Type, 1);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(calls.finalized, 1);
    CHECK(saved != NULL);
    Py_DECREF(saved);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(calls.finalized, 1);
    CHECK_INT(calls.freed, 1);
}

static void u_26_of_plain_objects_too(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.PlainSaving", .tp_basicsize = sizeof(Leaf),
                                .tp_flags = Py_TPFLAGS_DEFAULT, .tp_finalize = saving_finalizer};
    long long before = LIVE();
    PyObject *object;
    ready(&type);
    object = type.tp_alloc(&type, 0);
    MUST(object != NULL);
    Py_DECREF(object);
    CHECK(saved == object);
    CHECK_INT(calls.finalized, 1);
    Py_DECREF(saved);
    CHECK_INT(calls.finalized, 1);
    CHECK_INT(LIVE(), before);
}

/* U-27 */
static int broken_peers;
static void peeking_finalizer(PyObject *self) {
    Pair *peer = (Pair *)((Pair *)self)->a;
    ADD(calls.finalized);
    if (!peer || Py_TYPE(peer) != Py_TYPE(self) || !peer->a || peer->tag != 27)
        ADD(broken_peers);
}
FINALIZED(Peeking_Type, "check.Peeking", peeking_finalizer);

static void u_27_finalizers_see_whole_objects(void) {
    Pair *p, *q;
    int i;
    ready(&Peeking_Type);
    p = q = ring_of(&Peeking_Type, 10);
    for (i = 0; i < 10; i++, q = (Pair *)q->a)
        q->tag = 27;
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 10);
    CHECK_INT(calls.finalized, 10);
    CHECK_INT(broken_peers, 0);
}

/* U-28 */
static int let_go, went_on;
static void other_progress(void *arg) {
    (void)arg;
    while (!GET(let_go))
        standstill_safepoint();
    garbage_ring(1);
    PUT(went_on, 1);
}
static void blocking_finalizer(PyObject *self) {
    (void)self;
    PUT(let_go, 1);
    block_for(&went_on);
}
FINALIZED(Blocking_Type, "check.Blocking", blocking_finalizer);

static void u_28_finalizers_run_with_the_world_running(void) {
    thread t;
    ready(&Blocking_Type);
    garbage_ring_of(&Blocking_Type, 2);
    start(&t, other_progress, NULL);
    CHECK_INT(PyGC_Collect(), 2);
    join(&t);
    CHECK_INT(PyGC_Collect(), 1);
}

static void u_29_only_resurrected_objects_survive(void) {
    Pair *p, *inner;
    ready(&Saving_Type);
    inner = pair(NULL, NULL);
    p = pair_of(&Saving_Type, inner, NULL);
    set_a(inner, p);
    inner->tag = 29;
    Py_DECREF(p);
    Py_DECREF(inner);
    garbage_ring(3); /* another cycle */
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(calls.freed, 3);
    CHECK(saved == (PyObject *)p && p->a == (PyObject *)inner && inner->a == saved);
    CHECK_INT(inner->tag, 29);
    CHECK_INT(PyObject_GC_IsTracked(saved), 1);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)inner), 1);
    CHECK_INT(PyObject_GC_IsFinalized(saved), 1);
    Py_DECREF(saved);
    CHECK_INT(PyGC_Collect(), 2);
}

/* U-30 */
static int tracked_in_finalizer = -1;
static void tracked_saving_finalizer(PyObject *self) {
    tracked_in_finalizer = PyObject_GC_IsTracked(self);
    saving_finalizer(self);
}
FINALIZED(TrackedSaving_Type, "check.TrackedSaving", tracked_saving_finalizer);

static void u_30_resurrection_from_count_0(void) {
    Pair *p;
    ready(&TrackedSaving_Type);
    p = pair_of(&TrackedSaving_Type, NULL, NULL);
    p->tag = 30;
    Py_DECREF(p);
    CHECK(saved == (PyObject *)p);
    CHECK_INT(tracked_in_finalizer, 1);
    CHECK_INT(p->tag, 30);
    CHECK_INT(calls.freed, 0);
    CHECK_INT(Py_REFCNT(saved), 1);
    CHECK_INT(PyObject_GC_IsFinalized(saved), 1);
    set_a(p, p);
    Py_DECREF(saved);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(calls.finalized, 1);
}

/* U-31 */
static void failing_finalizer(PyObject *self) {
    (void)self;
    ADD(calls.finalized);
    PyErr_SetString(PyExc_RuntimeError, "finalizer failed");
}
FINALIZED(Failing_Type, "check.Failing", failing_finalizer);

static void u_31_a_failing_finalizer_stops_nothing(void) {
    ready(&Failing_Type);
    garbage_ring_of(&Failing_Type, 3);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(calls.freed, 3);
    CHECK(!PyErr_Occurred());
    EXPECT_UNRAISABLE(3);
    Py_DECREF(pair_of(&Failing_Type, NULL, NULL)); /* and from count 0 */
    CHECK_INT(calls.freed, 4);
    CHECK(!PyErr_Occurred());
    EXPECT_UNRAISABLE(1);
}

/* U-32 */
static PyObject *shared_weak[16];
static pthread_mutex_t weak_lock = PTHREAD_MUTEX_INITIALIZER;
static int cleared_seen;
static void read_weak(void *arg) {
    (void)arg;
    while (!GET(quit)) {
        int i;
        for (i = 0; i < 16; i++) {
            PyObject *weak, *target = NULL;
            pthread_mutex_lock(&weak_lock);
            weak = Py_XNewRef(shared_weak[i]);
            pthread_mutex_unlock(&weak_lock);
            if (weak && PyWeakref_GetRef(weak, &target) == 1) {
                if (((Pair *)target)->a == NULL)
                    ADD(cleared_seen);
                Py_DECREF(target);
            }
            Py_XDECREF(weak);
        }
        standstill_safepoint();
    }
}

static void u_32_a_weak_reference_never_gives_a_cleared_object(void) {
    thread threads[2];
    int i, round;
    for (i = 0; i < 2; i++)
        start(&threads[i], read_weak, NULL);
    for (round = 0; round < 60; round++) {
        for (i = 0; i < 16; i++) {
            Pair *p = ring(2);
            PyObject *weak = weak_to(p), *old;
            pthread_mutex_lock(&weak_lock);
            old = shared_weak[i];
            shared_weak[i] = weak;
            pthread_mutex_unlock(&weak_lock);
            Py_XDECREF(old);
            Py_DECREF(p);
        }
        PyGC_Collect();
    }
    PUT(quit, 1);
    for (i = 0; i < 2; i++)
        join(&threads[i]);
    CHECK_INT(cleared_seen, 0);
    for (i = 0; i < 16; i++)
        Py_CLEAR(shared_weak[i]);
    PyGC_Collect();
    CHECK_INT(calls.freed, 60 * 16 * 2);
}

static void u_33_only_callbacks_of_reachable_weak_references_run(void) {
    long outside = 0, inside = 0;
    Pair *p = ring(2);
    PyObject *out = counting_weak(p, &outside), *in = counting_weak(p, &inside);
    set_b(p, in);
    Py_DECREF(in);
    Py_DECREF(p);
    PyGC_Collect();
    CHECK_INT(calls.freed, 2);
    CHECK_INT(outside, 1);
    CHECK_INT(inside, 0);
    CHECK(!is_alive(out));
    PyGC_Collect();
    CHECK_INT(outside, 1);
    Py_DECREF(out);
}

static void failing_callback(PyObject *self, PyObject *weak) {
    (void)self;
    (void)weak;
    PyErr_SetString(PyExc_RuntimeError, "callback failed");
}

static void u_33_an_error_in_a_callback_stops_nothing(void) {
    PyObject *callback = standstill_Callback_New(failing_callback, NULL), *weak;
    Pair *p = ring(2);
    MUST(callback != NULL);
    weak = PyWeakref_NewRef((PyObject *)p, callback);
    MUST(weak != NULL);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 2);
    EXPECT_UNRAISABLE(1);
    CHECK_INT(calls.freed, 2);
    Py_DECREF(weak);
    Py_DECREF(callback);
}

/* U-34 */
static PyObject *plain_weak, *called_weak, *made_by_finalizer;
static int plain_was_alive = -1, called_was_alive = -1;
static void reading_finalizer(PyObject *self) {
    ADD(calls.finalized);
    if (plain_was_alive < 0) {
        plain_was_alive = is_alive(plain_weak);
        called_was_alive = is_alive(called_weak);
        made_by_finalizer = weak_to(((Pair *)self)->a);
    }
}
static int alive_at_clear = -1;
static int reading_clear(PyObject *self) {
    if (alive_at_clear < 0)
        alive_at_clear = is_alive(plain_weak) + is_alive(made_by_finalizer);
    return pair_clear(self);
}

static void u_34_weak_references_without_callback_last_longer(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.ReadingClear", .tp_basicsize = sizeof(Pair),
                                .tp_flags = GC_TYPE, .tp_dealloc = pair_dealloc, .tp_traverse = pair_traverse,
                                .tp_clear = reading_clear, .tp_finalize = reading_finalizer};
    long called = 0;
    Pair *p;
    ready(&type);
    p = ring_of(&type, 2);
    plain_weak = weak_to(p->a);
    called_weak = counting_weak(p->a, &called);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(plain_was_alive, 1);
    CHECK_INT(called_was_alive, 0);
    CHECK_INT(called, 1);
    CHECK_INT(alive_at_clear, 0);
    CHECK(!is_alive(plain_weak) && !is_alive(made_by_finalizer));
    Py_DECREF(plain_weak);
    Py_DECREF(called_weak);
    Py_DECREF(made_by_finalizer);
}

/* U-35 */
static int alive_in_callback = -1, content_in_callback = -1;
static Leaf *content;
static void checking_callback(PyObject *self, PyObject *weak) {
    (void)self;
    alive_in_callback = is_alive(weak);
    content_in_callback = Py_REFCNT((PyObject *)content) == 2; /* the field is not released yet */
}

static void u_35_a_callback_sees_the_weak_reference_empty(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Generic", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_traverse = pair_traverse, .tp_clear = pair_clear};
    PyObject *callback = standstill_Callback_New(checking_callback, NULL), *weak;
    Pair *p;
    MUST(callback != NULL);
    ready(&type);
    content = leaf();
    p = pair_of(&type, content, NULL);
    weak = PyWeakref_NewRef((PyObject *)p, callback);
    MUST(weak != NULL);
    Py_DECREF(p);
    CHECK_INT(alive_in_callback, 0);
    CHECK_INT(content_in_callback, 1);
    CHECK_INT(Py_REFCNT((PyObject *)content), 1);
    Py_DECREF(content);
    Py_DECREF(weak);
    Py_DECREF(callback);
}

/* U-36 */
static int hooked;
static void own_hook(const standstill_unraisable *error, void *arg) {
    CHECK(arg == &hooked);
    CHECK(strcmp(error->message, "by hand") == 0 || strstr(error->message, "by hand"));
    hooked++;
}

static void u_36_the_unraisable_hook_can_be_replaced(void) {
    Pair *p = pair(NULL, NULL);
    standstill_set_unraisable_hook(own_hook, &hooked);
    PyErr_SetString(PyExc_ValueError, "by hand");
    PyErr_WriteUnraisable((PyObject *)p);
    CHECK_INT(hooked, 1);
    CHECK(!PyErr_Occurred());
    Py_DECREF(p);
}

/* U-37 */
static int without_memory(int garbage, long after, int lasting) {
    long long before = LIVE();
    int live = garbage / 2;
    Pair *kept = ring(live);
    PyObject *weak = weak_to(kept);
    Py_ssize_t n;
    int refused;
    garbage_ring(garbage);
    refuse_memory(after, lasting);
    n = PyGC_Collect();
    refused = grant_memory();
    if (unraisables()) { /* given up: all is as before */
        CHECK(refused);
        EXPECT_UNRAISABLE(1);
        CHECK(strstr(last_unraisable.text, "memory"));
        CHECK_INT(n, 0);
        CHECK_INT(LIVE(), before + live + garbage + 1);
        CHECK_INT(PyGC_Collect(), garbage);
    } else {
        CHECK_INT(n, garbage);
    }
    CHECK_INT(LIVE(), before + live + 1);
    CHECK(is_alive(weak));
    Py_DECREF(weak);
    Py_DECREF(kept);
    CHECK_INT(PyGC_Collect(), live);
    CHECK_INT(LIVE(), before);
    return refused;
}

static void u_37_a_collection_without_memory_changes_nothing(void) {
    int lasting;
    long after;
    /* Each allocation of a collection is refused, until one needs no more. */
    for (lasting = 0; lasting < 2; lasting++) {
        for (after = 0; without_memory(50, after, lasting); after++) {
        }
        CHECK(after >= 3);
        /* Of a larger collection, one in 43. */
        for (after = 0; without_memory(500, after, lasting); after += 43) {
        }
        CHECK(after >= 3);
    }
}

static void u_38_a_cycle_at_exit_is_finalized(void) {
    int id;
    PyTypeObject *type = &Finalized_Type;
    Py_Initialize();
    CHECK_INT(Py_IsInitialized(), 1);
    check_heap = standstill_default_heap();
    ready(&Pair_Type);
    ready(type);
    id = standstill_gc_add_callback(note_phase, (void *)(uintptr_t)"x");
    CHECK(id >= 0);
    garbage_ring_of(type, 2);
    Py_Finalize();
    CHECK_INT(calls.finalized, 2);
    CHECK_INT(calls.freed, 2);
    CHECK(phases[0] == 0); /* without progress callbacks */
    CHECK_INT(Py_IsInitialized(), 0);
    CHECK_INT(standstill_is_attached(), 0);
}

/* U-39 */
static void drop(void *arg) { Py_DECREF((PyObject *)arg); }

static void u_39_a_drop_of_another_thread_counts_at_once(void) {
    long long before = LIVE();
    Pair *p = ring(3);
    run_on_thread(drop, p);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(LIVE(), before);
    p = pair(NULL, NULL);
    run_on_thread(drop, p);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
}

/* U-40 is about an optional speed-up, which is shown on random graphs in Rust. */

static void u_41_immortal_objects_are_never_collected(void) {
    PyTypeObject *type = heap_pair_type("check.Immortal", 0, NULL);
    PyObject_SetAttrString((PyObject *)type, "static", (PyObject *)&Pair_Type);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK(Pair_Type.tp_traverse == pair_traverse);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)&Pair_Type), 0);
    CHECK_INT(PyObject_GC_IsTracked(Py_None), 0);
    Py_DECREF(pair(NULL, NULL));
}

/* U-44 */
static Pair *owner;
static int field_seen = -1;
static void looking_finalizer(PyObject *self) {
    (void)self;
    field_seen = owner->a != NULL;
}
FINALIZED(Looking_Type, "check.Looking", looking_finalizer);

static void u_44_py_clear_sets_the_field_first(void) {
    Pair *p, *fields[2], **next = fields;
    ready(&Looking_Type);
    p = pair_of(&Looking_Type, NULL, NULL);
    owner = pair(p, NULL);
    Py_DECREF(p);
    Py_CLEAR(owner->a);
    CHECK_INT(field_seen, 0);
    CHECK_INT(calls.freed, 1);
    fields[0] = owner;
    fields[1] = NULL;
    Py_CLEAR(*next++); /* once */
    CHECK(next == fields + 1 && fields[0] == NULL);
    Py_CLEAR(*next);
}

static void u_45_a_deep_drop_returns(void) {
    Pair *head = NULL;
    long i;
    for (i = 0; i < 300000; i++) {
        Pair *next = pair(NULL, NULL);
        next->a = (PyObject *)head;
        head = next;
    }
    Py_DECREF(head);
    CHECK_INT(calls.freed, 300000);
}

/* U-46 */
static char events[256];
static void note_event(const char *event, void *arg) {
    (void)arg;
    strcat(events, event);
    strcat(events, " ");
}

static void u_46_three_services_announce_themselves(void) {
    Pair *p = pair(NULL, NULL);
    PyObject *objects[1];
    objects[0] = (PyObject *)p;
    standstill_gc_set_audit_hook(note_event, NULL);
    Py_XDECREF(standstill_gc_get_objects(-1));
    Py_XDECREF(standstill_gc_get_referrers(objects, 1));
    Py_XDECREF(standstill_gc_get_referents(objects, 1));
    CHECK(strcmp(events, "gc.get_objects gc.get_referrers gc.get_referents ") == 0);
    Py_DECREF(p);
}

/* U-47 */
static int take(PyObject *object, void *arg) {
    (void)object;
    (void)arg;
    return 1;
}
static void no_phase(const char *phase, const standstill_gc_info *info, void *arg) {
    (void)phase;
    (void)info;
    (void)arg;
}
static void everything(void *arg) {
    unsigned state = *(unsigned *)arg;
    Py_ssize_t counts[3];
    standstill_gc_stats stats[3];
    int thresholds[3], i;
    for (i = 0; i < 120; i++) {
        Pair *p = ring(3);
        PyObject *objects[1], *found = NULL, *weak = weak_to(p);
        objects[0] = (PyObject *)p;
        state = state * 1103515245u + 12345u;
        switch ((state >> 16) % 18) {
        case 0: PyGC_Collect(); break;
        case 1: standstill_gc_collect((int)(state % 3)); break;
        case 2: PyGC_Disable(); break;
        case 3: PyGC_Enable(); break;
        case 4: PyGC_IsEnabled(); break;
        case 5: standstill_gc_set_threshold((int)(state % 3000), 10, 0); break;
        case 6: standstill_gc_get_threshold(thresholds); break;
        case 7: standstill_gc_get_count(counts); break;
        case 8: standstill_gc_get_stats(stats); break;
        case 9: found = standstill_gc_get_objects(-1); break;
        case 10: found = standstill_gc_get_referrers(objects, 1); break;
        case 11: found = standstill_gc_get_referents(objects, 1); break;
        case 12: standstill_gc_freeze(); break;
        case 13: standstill_gc_unfreeze(); break;
        case 14: standstill_gc_get_freeze_count(); break;
        case 15: PyUnstable_GC_VisitObjects(take, NULL); break;
        case 16: standstill_gc_remove_callback(standstill_gc_add_callback(no_phase, NULL)); break;
        case 17: is_alive(weak); break;
        }
        PyErr_Clear();
        Py_XDECREF(found);
        Py_DECREF(weak);
        CHECK(((Pair *)((Pair *)p->a)->a)->a == (PyObject *)p);
        Py_DECREF(p);
        standstill_safepoint();
    }
}

static void u_47_eight_threads_call_everything(void) {
    thread threads[8];
    unsigned seeds[8], i;
    for (i = 0; i < 8; i++) {
        seeds[i] = i * 7919 + 1;
        start(&threads[i], everything, &seeds[i]);
    }
    for (i = 0; i < 8; i++)
        join(&threads[i]);
    standstill_gc_unfreeze();
    PyGC_Enable();
    PyGC_Collect();
    CHECK_INT(calls.freed, 8 * 120 * 3);
}

const struct test services_tests[] = {
    TEST(u_01_collect_takes_a_generation),
    TEST(u_02_everything_comes_in_three_generations),
    TEST(u_03_both_views_of_the_switch_agree),
    TEST(u_04_thresholds_are_kept),
    TEST(u_04_threshold_0_starts_nothing),
    TEST(memory_outside_the_heap_makes_a_collection_due),
    TEST(u_04_the_first_run_comes_at_the_threshold_that_is_said),
    TEST(u_05_a_run_starts_at_the_threshold),
    TEST(u_05_full_runs_wait_for_a_quarter_of_the_survivors),
    TEST(u_07_counts_are_exact_over_threads),
    TEST(u_08_statistics_are_the_sums_of_the_results),
    TEST(u_09_callbacks_run_before_and_after),
    TEST(u_09_a_change_takes_effect_in_the_next_phase),
    TEST(u_10_debug_flags_make_the_round),
    TEST(u_11_stats_are_two_lines),
    TEST(u_12_collectable_objects_are_one_line_each),
    TEST(u_13_uncollectable_objects_are_printed_and_kept),
    TEST(u_14_saveall_keeps_everything_whole),
    TEST(u_15_leak_is_the_three_of_them),
    TEST(u_16_an_object_with_a_legacy_finalizer_ends_up_in_garbage),
    TEST(u_17_objects_that_a_legacy_finalizer_reaches_are_kept_and_counted),
    TEST(u_18_frozen_garbage_survives),
    TEST(u_18_frozen_objects_are_roots),
    TEST(u_19_unfrozen_garbage_is_collected),
    TEST(u_20_the_number_of_frozen_objects),
    TEST(u_21_the_child_of_a_fork_collects),
    TEST(u_22_get_objects_lists_tracked_objects),
    TEST(u_23_get_referrers_finds_the_containers),
    TEST(u_24_get_referents_lists_members),
    TEST(u_25_both_views_of_an_object_agree),
    TEST(u_26_a_finalizer_runs_once_in_a_life),
    TEST(u_26_of_plain_objects_too),
    TEST(u_27_finalizers_see_whole_objects),
    TEST(u_28_finalizers_run_with_the_world_running),
    TEST(u_29_only_resurrected_objects_survive),
    TEST(u_30_resurrection_from_count_0),
    TEST(u_31_a_failing_finalizer_stops_nothing),
    TEST(u_32_a_weak_reference_never_gives_a_cleared_object),
    TEST(u_33_only_callbacks_of_reachable_weak_references_run),
    TEST(u_33_an_error_in_a_callback_stops_nothing),
    TEST(u_34_weak_references_without_callback_last_longer),
    TEST(u_35_a_callback_sees_the_weak_reference_empty),
    TEST(u_36_the_unraisable_hook_can_be_replaced),
    TEST(u_37_a_collection_without_memory_changes_nothing),
    TEST_AS(u_38_a_cycle_at_exit_is_finalized, BARE),
    TEST(u_39_a_drop_of_another_thread_counts_at_once),
    TEST(u_41_immortal_objects_are_never_collected),
    TEST(u_44_py_clear_sets_the_field_first),
    TEST(u_45_a_deep_drop_returns),
    TEST(u_46_three_services_announce_themselves),
    TEST(u_47_eight_threads_call_everything),
    TESTS_END,
};
