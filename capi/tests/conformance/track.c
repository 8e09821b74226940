/* Section D: tracking and untracking. */

#include "check.h"

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

static Pair *untracked(void) {
    Pair *p = PyObject_GC_New(Pair, &Pair_Type);
    MUST(p != NULL);
    return p;
}

struct sought {
    const void *object;
    int times;
};
static int seek(PyObject *object, void *arg) {
    struct sought *sought = arg;
    sought->times += object == sought->object;
    return 1;
}
/* How often VisitObjects sees it. */
static int seen(const void *object) {
    struct sought sought;
    sought.object = object;
    sought.times = 0;
    PyUnstable_GC_VisitObjects(seek, &sought);
    return sought.times;
}

static void s_051_an_untracked_cycle_is_collected_once_it_is_tracked(void) {
    long long before = LIVE();
    Pair *p = untracked();
    set_a(p, p);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(LIVE(), before + 1);
    PyObject_GC_Track(p);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(LIVE(), before);
}

static void s_052_track_makes_an_object_tracked(void) {
    Pair *p = untracked();
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 0);
    PyObject_GC_Track(p);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 1);
    PyGC_Collect();
    CHECK(calls.traversed > 0);
    Py_DECREF(p);
}

static void s_052_track_of_null_is_reported(void) {
    PyObject_GC_Track(NULL);
    EXPECT_MISUSE(STANDSTILL_E_NULL_ARGUMENT, 1);
}

static void s_053_a_constructor_that_tracks_last_is_never_caught(void) {
    standstill_heap_options options;
    standstill_heap *heap;
    int i;
    CHECK_INT(standstill_detach(), 0);
    memset(&options, 0, sizeof options);
    options.checked = check_is_checked;
    options.stress = 1;
    heap = standstill_heap_new(&options);
    CHECK(heap && standstill_attach(heap) == 0);
    for (i = 0; i < 200; i++) {
        Pair *p = untracked(), *q;
        standstill_safepoint();
        q = pair(p, NULL); /* tracked while empty */
        standstill_safepoint();
        set_a(p, q);
        standstill_safepoint();
        PyObject_GC_Track(p);
        standstill_safepoint();
        Py_DECREF(p);
        Py_DECREF(q);
        standstill_safepoint();
    }
    CHECK(calls.traversed > 200);
    PyGC_Collect();
    CHECK_INT(calls.freed, 400);
    CHECK_INT(misuses(0), 0);
    CHECK_INT(standstill_detach(), 0);
    CHECK_INT(standstill_attach(check_heap), 0);
}

static void s_053_a_wild_field_is_reported_and_not_followed(void) {
    Pair *p = pair(NULL, NULL);
    p->a = (PyObject *)((char *)p + 8); /* inside the heap, and no object */
    CHECK_INT(PyGC_Collect(), 0);
    CHECK(misuses(STANDSTILL_E_FOREIGN_POINTER) + misuses(STANDSTILL_E_FREED_POINTER) > 0);
    forget_misuses();
    if (unraisables())
        EXPECT_UNRAISABLE(-1);
    p->a = NULL;
    CHECK_INT(PyGC_Collect(), 0);
    Py_DECREF(p);
}

static void s_053_an_address_outside_the_heap_is_not_followed(void) {
    Pair *p = pair(NULL, NULL), *q = ring(2);
    p->a = (PyObject *)(uintptr_t)0x800000000000; /* nothing can be there */
    Py_DECREF(q);
    CHECK_INT(PyGC_Collect(), 2);
    if (check_is_checked)
        EXPECT_MISUSE(STANDSTILL_E_FOREIGN_POINTER, -1);
    p->a = NULL;
    Py_DECREF(p);
}

static void s_054_track_with_a_dangling_field_is_reported(void) {
    Pair *p = untracked(), *dead = untracked();
    p->a = (PyObject *)dead;
    Py_DECREF(dead);
    PyObject_GC_Track(p);
    CHECK_INT(misuses(STANDSTILL_E_FREED_POINTER) + misuses(STANDSTILL_E_FOREIGN_POINTER), 1);
    forget_misuses();
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 0);
    p->a = NULL;
    PyObject_GC_Track(p);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 1);
    Py_DECREF(p);
}

static void s_055_track_twice_is_reported(void) {
    Pair *p = untracked(), *q = pair(NULL, NULL);
    PyObject_GC_Track(p);
    PyObject_GC_Track(p);
    EXPECT_MISUSE(STANDSTILL_E_ALREADY_TRACKED, 1);
    CHECK(last_misuse.object == p && strstr(last_misuse.type, "Pair"));
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 1);
    CHECK_INT(seen(p), 1);
    PyObject_GC_Track(q); /* from the generic allocator: the first time is silent */
    CHECK_INT(misuses(0), 0);
    PyObject_GC_Track(q);
    EXPECT_MISUSE(STANDSTILL_E_ALREADY_TRACKED, 1);
    CHECK_INT(seen(q), 1);
    Py_DECREF(p);
    Py_DECREF(q);
}

static void s_056_track_of_a_plain_object_is_reported(void) {
    PyObject *number = PyLong_FromLong(7);
    Leaf *l = leaf();
    PyObject_GC_Track(number);
    EXPECT_MISUSE(STANDSTILL_E_NOT_GC_OBJECT, 1);
    PyObject_GC_Track(l);
    EXPECT_MISUSE(STANDSTILL_E_NOT_GC_OBJECT, 1);
    CHECK_INT(PyObject_GC_IsTracked(number), 0);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)l), 0);
    CHECK_INT(PyLong_AsLong(number), 7);
    Py_DECREF(number);
    Py_DECREF(l);
}

/* S-57 */
static int made;
static void making_finalizer(PyObject *self) {
    (void)self;
    ADD(calls.finalized);
    if (!made++)
        garbage_ring(2);
}

static void s_057_objects_that_a_finalizer_makes_are_left_to_the_next_collection(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Maker", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_finalize = making_finalizer};
    long long before = LIVE();
    ready(&type);
    garbage_ring_of(&type, 2);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(LIVE(), before + 2);
    CHECK_INT(calls.freed, 2);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(LIVE(), before);
}

/* S-58 */
static Pair immortal = {.ob_base = PyObject_HEAD_INIT(&Pair_Type) .a = NULL};

static void s_058_immortal_objects_are_roots_and_not_tracked(void) {
    Pair *inside = pair(NULL, NULL);
    Py_ssize_t count = Py_REFCNT((PyObject *)&immortal);
    PyObject *weak = weak_to(inside);
    int i;
    immortal.a = (PyObject *)inside; /* the only reference */
    for (i = 0; i < 100; i++) {
        Py_INCREF(&immortal);
        Py_DECREF(&immortal);
        Py_DECREF(&immortal);
    }
    CHECK_INT(Py_REFCNT((PyObject *)&immortal), count);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)&immortal), 0);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)&Pair_Type), 0);
    CHECK_INT(PyObject_GC_IsTracked(Py_None), 0);
    CHECK(is_alive(weak));
    Py_CLEAR(immortal.a);
    CHECK(!is_alive(weak));
    Py_DECREF(weak);
}

/* S-59 */
static void toggle(void *arg) {
    long i;
    for (i = 0; i < 200000; i++) {
        PyObject_GC_Track(arg);
        PyObject_GC_UnTrack(arg);
        if (i % 1000 == 0)
            standstill_safepoint();
    }
}

static void s_059_two_threads_toggle_one_object(void) {
    thread one, two;
    Pair *p = untracked();
    start(&one, toggle, p);
    start(&two, toggle, p);
    join(&one);
    join(&two);
    /* Both may have tracked it at once: each such call is reported, and changes nothing. */
    if (misuses(0))
        EXPECT_MISUSE(STANDSTILL_E_ALREADY_TRACKED, -1);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 0);
    CHECK_INT(seen(p), 0);
    PyObject_GC_Track(p);
    CHECK_INT(seen(p), 1);
    PyGC_Collect();
    Py_DECREF(p);
}

/* Two threads change two attributes of the same objects at once: no change is lost. */
enum { SHARED_OBJECTS = 20000 };
static Pair *shared_objects[SHARED_OBJECTS];
static int toggling;
static PyTypeObject Ending_Type = {TYPE_HEAD .tp_name = "check.Ending", .tp_basicsize = sizeof(Pair),
                                   .tp_base = &Pair_Type, .tp_finalize = pair_finalize};

static void toggle_each(void *arg) {
    long i, j;
    (void)arg;
    for (i = 0; i < SHARED_OBJECTS; i++) {
        PUT(toggling, (int)i);
        /* The first object is toggled until the other thread has come, which may need a stop. */
        for (j = 0; j < 20 || (i == 0 && !PyObject_GC_IsFinalized((PyObject *)shared_objects[0])); j++) {
            PyObject_GC_Track(shared_objects[i]);
            PyObject_GC_UnTrack(shared_objects[i]);
            if (i == 0)
                standstill_safepoint();
        }
        if (i % 2)
            PyObject_GC_Track(shared_objects[i]);
        if (i % 100 == 0)
            standstill_safepoint();
    }
    PUT(toggling, SHARED_OBJECTS);
}

static void s_059_no_change_of_a_neighbouring_attribute_is_lost(void) {
    thread other;
    long i, finalized_meanwhile = 0;
    ready(&Ending_Type);
    for (i = 0; i < SHARED_OBJECTS; i++) {
        shared_objects[i] = pair_of(&Ending_Type, NULL, NULL);
        PyObject_GC_UnTrack(shared_objects[i]);
    }
    PUT(toggling, -1);
    start(&other, toggle_each, NULL);
    /* The object that the other thread is toggling now is finalized here. */
    for (i = GET(toggling); i < SHARED_OBJECTS; i = GET(toggling)) {
        if (i >= 0 && !PyObject_GC_IsFinalized((PyObject *)shared_objects[i])) {
            PyObject_CallFinalizer((PyObject *)shared_objects[i]);
            finalized_meanwhile++;
        }
        standstill_safepoint();
    }
    join(&other);
    CHECK(finalized_meanwhile > 0);
    CHECK_INT(calls.finalized, finalized_meanwhile);
    for (i = 0; i < SHARED_OBJECTS; i++) {
        finalized_meanwhile -= PyObject_GC_IsFinalized((PyObject *)shared_objects[i]);
        CHECK_INT(PyObject_GC_IsTracked((PyObject *)shared_objects[i]), i % 2);
        Py_DECREF(shared_objects[i]);
    }
    CHECK_INT(finalized_meanwhile, 0);
}

static void s_060_an_untracked_object_is_not_traversed(void) {
    Pair *p = pair(NULL, NULL);
    PyObject_GC_UnTrack(p);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 0);
    PyGC_Collect();
    CHECK_INT(calls.traversed, 0);
    Py_DECREF(p);
}

static void s_060_untrack_of_null_and_of_a_plain_object_is_reported(void) {
    Leaf *l = leaf();
    PyObject_GC_UnTrack(NULL);
    EXPECT_MISUSE(STANDSTILL_E_NULL_ARGUMENT, 1);
    PyObject_GC_UnTrack(l);
    EXPECT_MISUSE(STANDSTILL_E_NOT_GC_OBJECT, 1);
    Py_DECREF(l);
}

static void s_061_an_object_can_be_tracked_again(void) {
    long long before = LIVE();
    Pair *p = ring(2);
    int i;
    for (i = 0; i < 5; i++) {
        PyObject_GC_UnTrack(p);
        PyObject_GC_Track(p);
    }
    PyObject_GC_UnTrack(p);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 0);
    PyObject_GC_Track(p);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(LIVE(), before);
}

static void s_062_untrack_twice_is_silent(void) {
    Pair *p = pair(NULL, NULL);
    PyObject_GC_UnTrack(p);
    PyObject_GC_UnTrack(p);
    CHECK_INT(misuses(0), 0);
    Py_DECREF(p);
}

/* S-63 */
static int tracked_at_clear = -1;
static int watching_clear(PyObject *self) {
    tracked_at_clear = PyObject_GC_IsTracked(self);
    return pair_clear(self);
}

static void s_063_the_generic_dealloc_untracks_before_it_releases(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Watching", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_traverse = pair_traverse, .tp_clear = watching_clear};
    Pair *p;
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 1);
    Py_DECREF(p);
    CHECK_INT(tracked_at_clear, 0);
}

/* S-64 */
static Pair *to_untrack;
static void untracking_finalizer(PyObject *self) {
    (void)self;
    ADD(calls.finalized);
    PyObject_GC_UnTrack(to_untrack);
}

static void s_064_an_object_that_a_finalizer_untracks_is_not_cleared(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Untracker", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_finalize = untracking_finalizer};
    long long before = LIVE();
    Pair *p, *peer;
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    peer = pair(NULL, NULL);
    set_a(p, p);
    set_a(peer, peer); /* two cycles, one of them untracked meanwhile */
    to_untrack = peer;
    Py_DECREF(p);
    Py_DECREF(peer);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(calls.cleared, 1);
    CHECK_INT(calls.freed, 1);
    CHECK(peer->a == (PyObject *)peer);
    CHECK_INT(LIVE(), before + 1);
    PyObject_GC_Track(peer);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(LIVE(), before);
}

static void s_065_a_reference_from_an_untracked_object_keeps_a_cycle(void) {
    long long before = LIVE();
    Pair *holding = untracked(), *p = ring(3);
    set_a(holding, p);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(LIVE(), before + 4);
    CHECK(((Pair *)p->a)->a != NULL);
    Py_DECREF(holding);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(LIVE(), before);
}

const struct test track_tests[] = {
    TEST(s_051_an_untracked_cycle_is_collected_once_it_is_tracked),
    TEST(s_052_track_makes_an_object_tracked),
    TEST(s_052_track_of_null_is_reported),
    TEST(s_053_a_constructor_that_tracks_last_is_never_caught),
    TEST_AS(s_053_a_wild_field_is_reported_and_not_followed, CHECKED_ONLY),
    TEST(s_053_an_address_outside_the_heap_is_not_followed),
    TEST_AS(s_054_track_with_a_dangling_field_is_reported, CHECKED_ONLY),
    TEST(s_055_track_twice_is_reported),
    TEST(s_056_track_of_a_plain_object_is_reported),
    TEST(s_057_objects_that_a_finalizer_makes_are_left_to_the_next_collection),
    TEST(s_058_immortal_objects_are_roots_and_not_tracked),
    TEST(s_059_two_threads_toggle_one_object),
    TEST(s_059_no_change_of_a_neighbouring_attribute_is_lost),
    TEST(s_060_an_untracked_object_is_not_traversed),
    TEST(s_060_untrack_of_null_and_of_a_plain_object_is_reported),
    TEST(s_061_an_object_can_be_tracked_again),
    TEST(s_062_untrack_twice_is_silent),
    TEST(s_063_the_generic_dealloc_untracks_before_it_releases),
    TEST(s_064_an_object_that_a_finalizer_untracks_is_not_cleared),
    TEST(s_065_a_reference_from_an_untracked_object_keeps_a_cycle),
    TESTS_END,
};
