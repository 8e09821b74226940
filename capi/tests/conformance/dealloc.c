/* Section E: deallocation. */

#include "check.h"


#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

static Pair *untracked(void) {
    Pair *p = PyObject_GC_New(Pair, &Pair_Type);
    MUST(p != NULL);
    return p;
}

/* S-66 */
static int dying, traversed_dying;
static int dying_traverse(PyObject *self, visitproc visit, void *arg) {
    if (GET(dying))
        ADD(traversed_dying);
    return pair_traverse(self, visit, arg);
}

static int started;
static void collect_elsewhere(void *arg) {
    PUT(started, 1);
    PyGC_Collect();
    PUT(*(int *)arg, 1);
}

/* Forgets UnTrack, and lets a collection happen in its middle. */
static thread collector;
static int collected;
static void careless_dealloc(PyObject *self) {
    int i;
    PUT(dying, 1);
    start(&collector, collect_elsewhere, &collected);
    block_for(&started);
    for (i = 0; i < 100; i++)
        standstill_safepoint(); /* refused: a destructor runs */
    Py_CLEAR(((Pair *)self)->a);
    Py_TYPE(self)->tp_free(self);
}

static void s_066_a_dying_object_is_not_traversed(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Careless", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = careless_dealloc, .tp_traverse = dying_traverse, .tp_clear = pair_clear};
    Pair *p;
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    Py_DECREF(p);
    wait_for(&collected);
    join(&collector);
    CHECK_INT(traversed_dying, 0);
    CHECK(misuses(0) > 0); /* the safe point, or the object still tracked at its end */
    CHECK(misuses(STANDSTILL_E_STILL_TRACKED) + misuses(STANDSTILL_E_NOT_ALLOWED_HERE) > 0);
    forget_misuses();
    CHECK_INT(PyGC_Collect(), 0);
}

static void forgetful_dealloc(PyObject *self) {
    Py_CLEAR(((Pair *)self)->a);
    Py_TYPE(self)->tp_free(self);
}

static void s_066_a_dealloc_without_untrack_is_reported(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Forgetful", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = forgetful_dealloc, .tp_traverse = pair_traverse, .tp_clear = pair_clear};
    long long before = LIVE();
    ready(&type);
    Py_DECREF(pair_of(&type, NULL, NULL));
    EXPECT_MISUSE(STANDSTILL_E_STILL_TRACKED, 1);
    CHECK(strstr(last_misuse.type, "Forgetful") != NULL);
    calls.traversed = 0;
    CHECK_INT(LIVE(), before);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(calls.traversed, 0);
}

static void s_067_nothing_is_left_of_100000_objects(void) {
    long long before = LIVE();
    size_t bytes;
    int i;
    Py_DECREF(pair(NULL, NULL));
    bytes = standstill_live_bytes();
    for (i = 0; i < 100000; i++)
        Py_DECREF(pair(NULL, NULL));
    CHECK_INT(LIVE(), before);
    CHECK_INT(standstill_live_bytes(), bytes);
    CHECK_INT(calls.freed, 100001);
}

static void s_068_the_count_of_the_type_is_as_before(void) {
    PyTypeObject *type = heap_pair_type("check.Counted", 0, NULL);
    Py_ssize_t before = Py_REFCNT((PyObject *)type);
    int i;
    for (i = 0; i < 1000; i++) {
        if (i % 2)
            garbage_ring_of(type, 2);
        else
            Py_DECREF(pair_of(type, NULL, NULL));
    }
    PyGC_Collect();
    CHECK_INT(Py_REFCNT((PyObject *)type), before);
    Py_DECREF(type);
}

static void type_leaking_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    Py_TYPE(self)->tp_free(self);
}

static void s_068_a_forgotten_type_reference_leaks_the_type_only(void) {
    PyType_Slot slots[] = {{Py_tp_dealloc, FN(type_leaking_dealloc)}, {0, NULL}};
    PyTypeObject *type = heap_pair_type("check.Leaked", 0, slots);
    PyObject *weak = weak_to(type);
    long long before = LIVE();
    Py_DECREF(pair_of(type, NULL, NULL));
    CHECK_INT(LIVE(), before);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK(is_alive(weak));
    Py_DECREF(weak);
}

static void s_069_del_gives_memory_back_and_does_nothing_else(void) {
    Leaf *l = leaf();
    size_t bytes = standstill_live_bytes();
    Pair *p = untracked();
    p->a = (PyObject *)l; /* lent */
    PyObject_GC_Del(p);
    CHECK_INT(standstill_live_bytes(), bytes);
    CHECK_INT(Py_REFCNT((PyObject *)l), 1);
    CHECK_INT(calls.freed + calls.cleared + calls.finalized, 0);
    Py_DECREF(l);
}

static void s_069_del_of_null_is_reported(void) {
    PyObject_GC_Del(NULL);
    EXPECT_MISUSE(STANDSTILL_E_NULL_ARGUMENT, 1);
}

/* S-70 */
static long freed_here;
static void counting_free(void *object) {
    ADD(freed_here);
    PyObject_GC_Del(object);
}
static void direct_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    PyObject_GC_Del(self);
}

static void s_070_both_ways_free_the_object_once(void) {
    static PyTypeObject direct = {TYPE_HEAD .tp_name = "check.Direct", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                  .tp_dealloc = direct_dealloc, .tp_traverse = pair_traverse};
    long long before = LIVE();
    ready(&direct);
    Py_DECREF(pair_of(&direct, NULL, NULL));
    Py_DECREF(pair(NULL, NULL));
    CHECK_INT(LIVE(), before);
}

/* That the slot was passed over cannot be seen: to the library both calls of PyObject_GC_Del look alike. */
static void s_070_del_past_a_free_slot_of_its_own_frees_once_too(void) {
    static PyTypeObject own = {TYPE_HEAD .tp_name = "check.OwnFree", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                               .tp_dealloc = direct_dealloc, .tp_traverse = pair_traverse, .tp_free = counting_free};
    static PyTypeObject proper = {TYPE_HEAD .tp_name = "check.Proper", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                  .tp_dealloc = pair_dealloc, .tp_traverse = pair_traverse, .tp_free = counting_free};
    long long before = LIVE();
    ready(&own);
    ready(&proper);
    Py_DECREF(pair_of(&proper, NULL, NULL));
    CHECK_INT(freed_here, 1);
    Py_DECREF(pair_of(&own, NULL, NULL));
    CHECK_INT(freed_here, 1);
    CHECK_INT(LIVE(), before);
}

static void s_071_del_of_a_plain_object_is_reported(void) {
    Leaf *l = leaf();
    l->number = 71;
    PyObject_GC_Del(l);
    EXPECT_MISUSE(STANDSTILL_E_WRONG_ALLOCATOR, 1);
    CHECK_INT(l->number, 71);
    CHECK_INT(Py_REFCNT((PyObject *)l), 1);
    Py_DECREF(l);
}

static void s_072_the_plain_free_of_a_container_is_reported(void) {
    Pair *p = untracked();
    p->tag = 72;
    PyObject_Free(p);
    EXPECT_MISUSE(STANDSTILL_E_WRONG_ALLOCATOR, 1);
    CHECK_INT(p->tag, 72);
    CHECK_INT(Py_REFCNT((PyObject *)p), 1);
    Py_DECREF(p);
}

static void s_073_del_of_a_tracked_object_is_reported_and_done(void) {
    long long before = LIVE();
    Pair *p = pair(NULL, NULL);
    PyObject_GC_Del(p);
    EXPECT_MISUSE(STANDSTILL_E_STILL_TRACKED, 1);
    CHECK(strstr(last_misuse.type, "check.Pair") != NULL);
    CHECK_INT(LIVE(), before);
    PyGC_Collect();
    CHECK_INT(calls.traversed, 0);
}

static void s_074_del_with_references_left_is_reported(void) {
    long long before = LIVE();
    Pair *p = untracked();
    Py_INCREF(p);
    PyObject_GC_Del(p);
    EXPECT_MISUSE(STANDSTILL_E_REFERENCES_LEFT, 1);
    CHECK_INT(Py_REFCNT((PyObject *)p), 2);
    Py_DECREF(p);
    PyObject_GC_Del(p); /* a constructor that failed: allowed */
    CHECK_INT(misuses(0), 0);
    CHECK_INT(LIVE(), before);
}

static void s_074_del_twice_is_reported(void) {
    long long before = LIVE();
    Pair *p = untracked();
    PyObject_GC_Del(p);
    PyObject_GC_Del(p);
    EXPECT_MISUSE(STANDSTILL_E_DOUBLE_FREE, 1);
    CHECK_INT(LIVE(), before);
    PyGC_Collect();
    Py_DECREF(pair(NULL, NULL));
}

/* S-75 */
static char order[32];
static void note(char what) {
    size_t n = strlen(order);
    CHECK(n + 1 < sizeof order);
    order[n] = what;
}
static void noting_finalizer(PyObject *self) {
    (void)self;
    note('F');
}
static void noting_callback(PyObject *self, PyObject *weak) {
    (void)self;
    (void)weak;
    note('W');
}
static int noting_clear(PyObject *self) {
    note('C');
    return pair_clear(self);
}
static void noting_free(void *object) {
    note('M');
    PyObject_GC_Del(object);
}

static void s_075_finalizer_weak_references_fields_memory(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Noting", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_traverse = pair_traverse, .tp_clear = noting_clear, .tp_free = noting_free,
                                .tp_finalize = noting_finalizer};
    PyObject *callback = standstill_Callback_New(noting_callback, NULL), *weak;
    Pair *p;
    ready(&type);
    MUST(callback != NULL);
    p = pair_of(&type, NULL, NULL);
    weak = PyWeakref_NewRef((PyObject *)p, callback);
    MUST(weak != NULL);
    Py_DECREF(p);
    CHECK(strcmp(order, "FWCM") == 0);
    Py_DECREF(weak);
    Py_DECREF(callback);
}

/* S-76 */
static void drop_a_long_chain(void *arg) {
    long i, n = *(long *)arg;
    Pair *head = NULL;
    for (i = 0; i < n; i++) {
        Pair *next = pair(NULL, NULL);
        next->a = (PyObject *)head;
        head = next;
    }
    Py_DECREF(head);
    CHECK_INT(calls.freed, n);
}

static void *small_stack_main(void *arg) {
    CHECK_INT(standstill_attach(check_heap), 0);
    drop_a_long_chain(arg);
    CHECK_INT(standstill_detach(), 0);
    return NULL;
}

static void s_076_a_long_chain_is_freed_on_a_small_stack(void) {
    long n = 1000000;
    pthread_attr_t attributes;
    pthread_t id;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, 256 * 1024) == 0);
    CHECK(pthread_create(&id, &attributes, small_stack_main, &n) == 0);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(id, NULL);
    Py_END_ALLOW_THREADS
}

/* S-77 */
static void drop(void *arg) {
    Py_DECREF((PyObject *)arg);
    standstill_safepoint();
}

static void s_077_the_last_reference_may_be_dropped_elsewhere(void) {
    long long before = LIVE();
    Pair *p = pair(NULL, NULL);
    run_on_thread(drop, p);
    PyGC_Collect(); /* counts are merged at the latest here */
    CHECK_INT(calls.freed, 1);
    CHECK_INT(LIVE(), before);
}

static void drop_without_attachment(void *arg) { Py_DECREF((PyObject *)arg); }

static void s_077_a_drop_on_a_thread_that_is_not_attached_is_done_later(void) {
    long long before = LIVE();
    Pair *p = pair(NULL, NULL);
    thread t;
    start_raw(&t, drop_without_attachment, p);
    join(&t);
    standstill_safepoint();
    PyGC_Collect();
    CHECK_INT(calls.freed, 1);
    CHECK_INT(LIVE(), before);
}

const struct test dealloc_tests[] = {
    TEST(s_066_a_dying_object_is_not_traversed),
    TEST(s_066_a_dealloc_without_untrack_is_reported),
    TEST(s_067_nothing_is_left_of_100000_objects),
    TEST(s_068_the_count_of_the_type_is_as_before),
    TEST(s_068_a_forgotten_type_reference_leaks_the_type_only),
    TEST(s_069_del_gives_memory_back_and_does_nothing_else),
    TEST(s_069_del_of_null_is_reported),
    TEST(s_070_both_ways_free_the_object_once),
    TEST(s_070_del_past_a_free_slot_of_its_own_frees_once_too),
    TEST(s_071_del_of_a_plain_object_is_reported),
    TEST(s_072_the_plain_free_of_a_container_is_reported),
    TEST(s_073_del_of_a_tracked_object_is_reported_and_done),
    TEST(s_074_del_with_references_left_is_reported),
    TEST_AS(s_074_del_twice_is_reported, CHECKED_ONLY),
    TEST(s_075_finalizer_weak_references_fields_memory),
    TEST(s_076_a_long_chain_is_freed_on_a_small_stack),
    TEST(s_077_the_last_reference_may_be_dropped_elsewhere),
    TEST(s_077_a_drop_on_a_thread_that_is_not_attached_is_done_later),
    TESTS_END,
};
