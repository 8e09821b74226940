/* Section P: visiting all objects. */

#include "allocator.h"
#include "check.h"

struct walk {
    int n, stop_at, answer, hits;
    const void *sought;
    PyObject *drop;
};

static int walk_on(PyObject *object, void *arg) {
    struct walk *walk = arg;
    walk->n++;
    walk->hits += object == walk->sought;
    return walk->n == walk->stop_at ? walk->answer : 1;
}

static struct walk walk_to(const void *sought) {
    struct walk walk;
    memset(&walk, 0, sizeof walk);
    walk.sought = sought;
    PyUnstable_GC_VisitObjects(walk_on, &walk);
    return walk;
}

static void s_176_a_tracked_object_is_visited_once(void) {
    Pair *p = pair(NULL, NULL);
    CHECK_INT(walk_to(p).hits, 1);
    Py_DECREF(p);
}

static void visit_raw(void *arg) { PyUnstable_GC_VisitObjects(walk_on, arg); }

static void s_176_null_and_a_detached_thread_are_reported(void) {
    struct walk walk;
    thread t;
    memset(&walk, 0, sizeof walk);
    PyUnstable_GC_VisitObjects(NULL, NULL);
    EXPECT_MISUSE(STANDSTILL_E_NULL_ARGUMENT, 1);
    start_raw(&t, visit_raw, &walk);
    join(&t);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ATTACHED, 1);
    CHECK_INT(walk.n, 0);
}

static void s_177_frozen_and_unreachable_objects_are_visited(void) {
    Pair *frozen = pair(NULL, NULL), *garbage, *untracked = PyObject_GC_New(Pair, &Pair_Type);
    MUST(untracked != NULL);
    CHECK_INT(standstill_gc_freeze(), 0);
    CHECK_INT(walk_to(frozen).hits, 1);
    CHECK_INT(walk_to(untracked).hits, 0);
    CHECK_INT(standstill_gc_unfreeze(), 0);
    CHECK_INT(walk_to(frozen).hits, 1);
    garbage = garbage_ring(2);
    CHECK_INT(walk_to(garbage).hits, 1);
    CHECK_INT(walk_to(garbage->a).hits, 1);
    PyGC_Collect();
    Py_DECREF(frozen);
    Py_DECREF(untracked);
}

static struct walk from_elsewhere;
static int found_garbage, tracked_in_finalizer = -1;
static void look(void *arg) {
    while (!GET(found_garbage))
        standstill_safepoint();
    /* The world stops for this when the finalizer is done. */
    from_elsewhere = walk_to(arg);
}
static void telling_finalizer(PyObject *self) {
    tracked_in_finalizer = PyObject_GC_IsTracked(self);
    PUT(found_garbage, 1);
}

static void s_177_objects_that_a_running_collection_found_are_left_out(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Telling", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_finalize = telling_finalizer};
    Pair *kept = pair(NULL, NULL);
    thread t;
    ready(&type);
    start(&t, look, garbage_ring_of(&type, 1));
    CHECK_INT(PyGC_Collect(), 1);
    join(&t);
    CHECK(from_elsewhere.n >= 1);
    CHECK_INT(from_elsewhere.hits, 0);
    CHECK_INT(tracked_in_finalizer, 1);
    Py_DECREF(kept);
}

/* The set is the same in any order. */
static void s_178_two_walks_visit_the_same_number_of_objects(void) {
    Pair *p = ring(10);
    struct walk first = walk_to(p), again = walk_to(p);
    CHECK_INT(first.n, again.n);
    CHECK(first.n >= 10);
    Py_DECREF(p);
    PyGC_Collect();
}

/* S-179 */
static int making(PyObject *object, void *arg) {
    struct walk *walk = arg;
    (void)object;
    walk->n++;
    garbage_ring(1);
    return 1;
}

static void s_179_objects_made_by_the_callback_are_not_visited(void) {
    Pair *p = ring(20);
    struct walk walk = walk_to(p), makes;
    memset(&makes, 0, sizeof makes);
    PyUnstable_GC_VisitObjects(making, &makes);
    CHECK_INT(makes.n, walk.n);
    CHECK_INT(walk_to(p).n, 2 * walk.n);
    Py_DECREF(p);
    PyGC_Collect();
}

static long freed_at_visit;
static PyObject *to_drop[2];
static int dropping(PyObject *object, void *arg) {
    struct walk *walk = arg;
    if (to_drop[0] && (object == to_drop[0] || object == to_drop[1])) {
        PyObject *later = object == to_drop[0] ? to_drop[1] : to_drop[0];
        to_drop[0] = to_drop[1] = NULL;
        walk->sought = later;
        Py_DECREF(later); /* its last outside reference */
        freed_at_visit = GET(calls.freed);
    } else if (object == walk->sought) {
        walk->hits++;
        CHECK(Py_TYPE(object) == &Pair_Type && ((Pair *)object)->tag == 179);
    }
    return 1;
}

static void s_179_an_object_released_by_the_callback_is_still_visited(void) {
    struct walk walk;
    Pair *p = pair(NULL, NULL), *q = pair(NULL, NULL);
    p->tag = q->tag = 179;
    memset(&walk, 0, sizeof walk);
    to_drop[0] = (PyObject *)p;
    to_drop[1] = (PyObject *)q;
    PyUnstable_GC_VisitObjects(dropping, &walk);
    CHECK_INT(freed_at_visit, 0);
    CHECK_INT(walk.hits, 1);
    CHECK_INT(calls.freed, 1);
    Py_DECREF(walk.sought == p ? q : p);
    CHECK_INT(calls.freed, 2);
}

/* S-180 */
static int allocating(PyObject *object, void *arg) {
    int i;
    (void)object;
    (void)arg;
    for (i = 0; i < 200; i++)
        garbage_ring(1);
    return 1;
}

static void s_180_nothing_is_collected_meanwhile(void) {
    Pair *p = ring(3);
    int i;
    CHECK_INT(standstill_gc_set_threshold(1, 0, 0), 0);
    PyUnstable_GC_VisitObjects(allocating, NULL);
    CHECK_INT(calls.freed, 0);
    for (i = 0; i < 3000 && GET(calls.freed) == 0; i++) {
        garbage_ring(1);
        standstill_safepoint();
    }
    CHECK(calls.freed > 0);
    Py_DECREF(p);
    PyGC_Collect();
}

static int disabling(PyObject *object, void *arg) {
    (void)object;
    (void)arg;
    PyGC_Disable();
    return 0;
}

static void s_180_a_change_of_the_flag_by_the_callback_stays(void) {
    Pair *p = pair(NULL, NULL);
    PyUnstable_GC_VisitObjects(disabling, NULL);
    CHECK_INT(PyGC_IsEnabled(), 0);
    PyGC_Enable();
    CHECK_INT(PyGC_IsEnabled(), 1);
    Py_DECREF(p);
}

/* S-181 */
static int collecting(PyObject *object, void *arg) {
    struct walk *walk = arg;
    walk->n++;
    walk->hits += object == walk->sought;
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(standstill_gc_collect(2), 0);
    return 1;
}

static void s_181_a_collection_in_the_callback_gives_0(void) {
    Pair *p = ring(3);
    int n = walk_to(p).n;
    struct walk walk;
    memset(&walk, 0, sizeof walk);
    walk.sought = p;
    PyUnstable_GC_VisitObjects(collecting, &walk);
    CHECK_INT(walk.n, n);
    CHECK_INT(walk.hits, 1);
    CHECK_INT(calls.traversed, 0);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, 2 * n);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 3);
}

/* S-182 */
static int nested_counts[64];
static int nesting(PyObject *object, void *arg) {
    struct walk *walk = arg;
    (void)object;
    garbage_ring(1);
    CHECK(walk->n < 64);
    nested_counts[walk->n++] = walk_to(NULL).n;
    return 1;
}

static void s_182_a_visit_in_the_callback_has_its_own_set(void) {
    Pair *p = ring(3);
    int n = walk_to(p).n, i;
    struct walk walk;
    memset(&walk, 0, sizeof walk);
    PyUnstable_GC_VisitObjects(nesting, &walk);
    CHECK_INT(walk.n, n);
    for (i = 0; i < n; i++)
        CHECK_INT(nested_counts[i], n + i + 1);
    Py_DECREF(p);
    PyGC_Collect();
}

/* S-183 */
static int asked, answered;
static void answer(void *arg) {
    (void)arg;
    while (!GET(asked))
        standstill_safepoint();
    Py_DECREF(pair(NULL, NULL));
    PUT(answered, 1);
}
static int waiting(PyObject *object, void *arg) {
    (void)object;
    (void)arg;
    PUT(asked, 1);
    block_for(&answered);
    return 0;
}

static void s_183_the_callback_may_wait_for_another_thread(void) {
    Pair *p = pair(NULL, NULL);
    thread t;
    start(&t, answer, NULL);
    PyUnstable_GC_VisitObjects(waiting, NULL);
    CHECK_INT(answered, 1);
    join(&t);
    Py_DECREF(p);
}

static void s_185_without_memory_nothing_is_visited(void) {
    Pair *p = ring(1000);
    struct walk walk;
    memset(&walk, 0, sizeof walk);
    refuse_memory(0, 1);
    PyUnstable_GC_VisitObjects(walk_on, &walk);
    CHECK_INT(grant_memory(), 1);
    CHECK_INT(walk.n, 0);
    EXPECT_UNRAISABLE(1);
    CHECK(walk_to(p).n >= 1000);
    Py_DECREF(p);
    PyGC_Collect();
}

static void s_186_the_answer_0_stops(void) {
    Pair *p = ring(5);
    struct walk walk;
    memset(&walk, 0, sizeof walk);
    walk.stop_at = 2;
    PyUnstable_GC_VisitObjects(walk_on, &walk);
    CHECK_INT(walk.n, 2);
    Py_DECREF(p);
    PyGC_Collect();
}

static void *expected_arg;
static int check_arg(PyObject *object, void *arg) {
    CHECK(arg == expected_arg && object != NULL);
    return 1;
}

static void s_186_the_argument_is_handed_on(void) {
    Pair *p = ring(5);
    expected_arg = &expected_arg;
    PyUnstable_GC_VisitObjects(check_arg, &expected_arg);
    Py_DECREF(p);
    PyGC_Collect();
}

static void s_187_function_and_type_are_there(void) {
    void (*visit)(gcvisitobjects_t, void *) = PyUnstable_GC_VisitObjects;
    gcvisitobjects_t callback = check_arg;
    int (*as)(PyObject *, void *) = callback;
    CHECK(visit && as);
}

static void s_188_another_answer_stops_and_is_reported(void) {
    static const int answers[] = {2, -1, 1000};
    Pair *p = ring(5);
    int i;
    for (i = 0; i < 3; i++) {
        struct walk walk;
        memset(&walk, 0, sizeof walk);
        walk.stop_at = 3;
        walk.answer = answers[i];
        PyUnstable_GC_VisitObjects(walk_on, &walk);
        CHECK_INT(walk.n, 3);
        EXPECT_MISUSE(STANDSTILL_E_BAD_CALLBACK_RESULT, 1);
    }
    Py_DECREF(p);
    PyGC_Collect();
}

const struct test objects_tests[] = {
    TEST(s_176_a_tracked_object_is_visited_once),
    TEST(s_176_null_and_a_detached_thread_are_reported),
    TEST(s_177_frozen_and_unreachable_objects_are_visited),
    TEST(s_177_objects_that_a_running_collection_found_are_left_out),
    TEST(s_178_two_walks_visit_the_same_number_of_objects),
    TEST(s_179_objects_made_by_the_callback_are_not_visited),
    TEST(s_179_an_object_released_by_the_callback_is_still_visited),
    TEST(s_180_nothing_is_collected_meanwhile),
    TEST(s_180_a_change_of_the_flag_by_the_callback_stays),
    TEST(s_181_a_collection_in_the_callback_gives_0),
    TEST(s_182_a_visit_in_the_callback_has_its_own_set),
    TEST(s_183_the_callback_may_wait_for_another_thread),
    TEST(s_185_without_memory_nothing_is_visited),
    TEST(s_186_the_answer_0_stops),
    TEST(s_186_the_argument_is_handed_on),
    TEST(s_187_function_and_type_are_there),
    TEST(s_188_another_answer_stops_and_is_reported),
    TESTS_END,
};
