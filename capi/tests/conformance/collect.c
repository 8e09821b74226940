/* Section O: collect, enable, disable, query. */

#include "check.h"

static PyTypeObject Unclearable_Type = {
    TYPE_HEAD
    .tp_name = "check.Unclearable",
    .tp_basicsize = sizeof(Pair),
    .tp_dealloc = pair_dealloc,
    .tp_flags = Py_TPFLAGS_HAVE_GC,
    .tp_traverse = pair_traverse,
};

static void s_165_a_garbage_cycle_of_three_gives_3(void) {
    long long before = LIVE();
    Pair *kept = ring(2);
    garbage_ring(3);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(LIVE(), before + 2);
    Py_DECREF(kept);
    CHECK_INT(PyGC_Collect(), 2);
}

static void collect_raw(void *arg) {
    (void)arg;
    CHECK_INT(PyGC_Collect(), 0);
}

static void s_165_a_thread_that_is_not_attached_gets_0(void) {
    thread t;
    start_raw(&t, collect_raw, NULL);
    join(&t);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ATTACHED, 1);
}

/* S-166 */
static PyObject *saved;
static void saving_finalizer(PyObject *self) {
    ADD(calls.finalized);
    saved = Py_NewRef(self);
}
static PyTypeObject Saving_Type = {
    TYPE_HEAD
    .tp_name = "check.Saving",
    .tp_basicsize = sizeof(Pair),
    .tp_base = &Pair_Type,
    .tp_finalize = saving_finalizer,
};

static void s_166_the_result_counts_collectable_and_uncollectable(void) {
    long long before = LIVE();
    Pair *stuck;
    ready(&Unclearable_Type);
    stuck = garbage_ring_of(&Unclearable_Type, 1);
    garbage_ring(2);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(LIVE(), before + 1);
    CHECK_INT(PyGC_Collect(), 1);
    set_a(stuck, NULL);
    CHECK_INT(LIVE(), before);
}

static void s_166_resurrected_objects_do_not_count(void) {
    ready(&Saving_Type);
    garbage_ring_of(&Saving_Type, 1);
    garbage_ring(2);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK(saved != NULL);
    Py_DECREF(saved);
    CHECK_INT(PyGC_Collect(), 1);
}

/* S-167 */
static int phases;
static void count_phase(const char *phase, const standstill_gc_info *info, void *arg) {
    (void)phase;
    (void)info;
    (void)arg;
    ADD(phases);
}

static void s_167_a_disabled_collector_does_nothing(void) {
    long long live;
    standstill_gc_stats stats[3], later[3];
    int id = standstill_gc_add_callback(count_phase, NULL);
    MUST(id >= 0);
    garbage_ring(3);
    live = LIVE();
    PyGC_Disable();
    CHECK_INT(standstill_gc_get_stats(stats), 0);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(standstill_gc_get_stats(later), 0);
    CHECK_INT(LIVE(), live);
    CHECK_INT(phases, 0);
    CHECK_INT(calls.traversed, 0);
    CHECK_INT(later[2].collections, stats[2].collections);
    PyGC_Enable();
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(phases, 2);
    CHECK_INT(standstill_gc_remove_callback(id), 0);
}

/* S-168 */
static Py_ssize_t inner = -1, inner_service = -1;
static void collecting_finalizer(PyObject *self) {
    (void)self;
    inner = PyGC_Collect();
    inner_service = standstill_gc_collect(2);
}

static void s_168_a_collection_in_a_finalizer_gives_0(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Collecting", .tp_basicsize = sizeof(Pair),
                                .tp_base = &Pair_Type, .tp_finalize = collecting_finalizer};
    ready(&type);
    garbage_ring_of(&type, 2);
    garbage_ring(2);
    CHECK_INT(PyGC_Collect(), 4);
    CHECK_INT(inner, 0);
    CHECK_INT(inner_service, 0);
    forget_misuses(); /* whether it is reported is said elsewhere */
}

static int collecting_clear(PyObject *self) {
    inner = PyGC_Collect();
    return pair_clear(self);
}
static void collecting_callback(PyObject *self, PyObject *weak) {
    (void)self;
    (void)weak;
    inner_service = PyGC_Collect();
}

static void s_168_nor_in_a_clear_handler_or_callback(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Collecting", .tp_basicsize = sizeof(Pair),
                                .tp_flags = Py_TPFLAGS_HAVE_GC, .tp_dealloc = pair_dealloc, .tp_traverse = pair_traverse,
                                .tp_clear = collecting_clear};
    PyObject *callback = standstill_Callback_New(collecting_callback, NULL), *weak;
    Pair *p;
    MUST(callback != NULL);
    ready(&type);
    p = ring_of(&type, 2);
    weak = PyWeakref_NewRef((PyObject *)p, callback);
    MUST(weak != NULL);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(inner, 0);
    CHECK_INT(inner_service, 0);
    Py_DECREF(weak);
    Py_DECREF(callback);
    forget_misuses();
}

static int inside, second_done;
static Py_ssize_t second = -1;
static void collect_second(void *arg) {
    (void)arg;
    while (!GET(inside))
        standstill_safepoint();
    second = PyGC_Collect();
    PUT(second_done, 1);
}
static void meeting_finalizer(PyObject *self) {
    (void)self;
    PUT(inside, 1);
    block_for(&second_done); /* the second does not wait for us to end */
}

static void s_168_of_two_threads_at_once_one_gets_0(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Meeting", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_finalize = meeting_finalizer};
    thread t;
    ready(&type);
    garbage_ring_of(&type, 1);
    start(&t, collect_second, NULL);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(second, 0);
    join(&t);
}

/* S-169 */
static void failing_finalizer(PyObject *self) {
    (void)self;
    PyErr_SetString(PyExc_ValueError, "finalizer failed");
}

static void s_169_errors_go_to_the_unraisable_hook(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Failing", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_finalize = failing_finalizer};
    Pair *p;
    ready(&type);
    p = garbage_ring_of(&type, 1);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK(!PyErr_Occurred());
    EXPECT_UNRAISABLE(1);
    CHECK(strstr(last_unraisable.text, "finalizer failed") != NULL);
    CHECK(last_unraisable.object == p);
    CHECK(last_unraisable.function[0] != 0);
}

static void s_170_a_pending_error_stays(void) {
    garbage_ring(2);
    PyErr_SetString(PyExc_ValueError, "before");
    CHECK_INT(PyGC_Collect(), 2);
    CHECK(PyErr_ExceptionMatches(PyExc_ValueError));
    CHECK(strcmp(standstill_error_message(), "before") == 0);
    EXPECT_ERROR(STANDSTILL_E_CUSTOM);
}

static void s_171_the_module_function_collects_while_disabled(void) {
    long long before = LIVE();
    garbage_ring(3);
    PyGC_Disable();
    CHECK_INT(standstill_gc_collect(2), 3);
    CHECK_INT(LIVE(), before);
    CHECK_INT(PyGC_IsEnabled(), 0);
    PyGC_Enable();
}

static void s_172_enable_gives_the_state_before(void) {
    PyGC_Disable();
    CHECK_INT(PyGC_Enable(), 0);
    CHECK_INT(PyGC_Enable(), 1);
}
static void s_173_disable_gives_the_state_before(void) {
    PyGC_Enable();
    CHECK_INT(PyGC_Disable(), 1);
    CHECK_INT(PyGC_Disable(), 0);
}
/* Switches in a callback: what each phase found, and what it sets. */
static int found_at_start, found_at_stop;
static void switching(const char *phase, const standstill_gc_info *info, void *arg) {
    (void)info;
    (void)arg;
    if (strcmp(phase, "start") == 0)
        found_at_start = PyGC_Disable();
    else
        found_at_stop = PyGC_Enable();
}

static void s_172_s_173_the_switch_works_in_callbacks_and_a_running_collection_finishes(void) {
    long long before = LIVE();
    int id = standstill_gc_add_callback(switching, NULL);
    CHECK(id >= 0);
    garbage_ring(7);
    PyGC_Enable();
    found_at_start = found_at_stop = -1;
    CHECK_INT(PyGC_Collect(), 7); /* disabled at its start, it collects all the same */
    CHECK_INT(found_at_start, 1);
    CHECK_INT(found_at_stop, 0);
    CHECK_INT(PyGC_IsEnabled(), 1);
    CHECK_INT(LIVE(), before);
    CHECK_INT(standstill_gc_remove_callback(id), 0);
}

/* Exactly one caller learns of each change of state. */
static long turned_on, turned_off;
static void flip(void *arg) {
    long i;
    (void)arg;
    for (i = 0; i < 20000; i++) {
        if (i % 2) {
            if (PyGC_Enable() == 0)
                ADD(turned_on);
        } else if (PyGC_Disable() == 1)
            ADD(turned_off);
    }
}

static void s_172_s_173_the_switch_is_atomic(void) {
    thread threads[3];
    int i;
    PyGC_Enable();
    for (i = 0; i < 3; i++)
        start(&threads[i], flip, NULL);
    for (i = 0; i < 3; i++)
        join(&threads[i]);
    CHECK(turned_off > 0);
    CHECK_INT(turned_off - turned_on, !PyGC_IsEnabled());
    PyGC_Enable();
}

static void s_174_is_enabled_follows(void) {
    CHECK_INT(PyGC_IsEnabled(), 1);
    PyGC_Disable();
    CHECK_INT(PyGC_IsEnabled(), 0);
    CHECK_INT(standstill_gc_isenabled(), 0);
    PyGC_Enable();
    CHECK_INT(PyGC_IsEnabled(), 1);
}
static int state_in_callback(PyObject *object, void *arg) {
    (void)object;
    *(int *)arg = PyGC_IsEnabled();
    return 0;
}
static void s_174_a_suspension_does_not_show(void) {
    Pair *p = pair(NULL, NULL);
    int state = -1;
    PyUnstable_GC_VisitObjects(state_in_callback, &state);
    CHECK_INT(state, 1);
    Py_DECREF(p);
}

static void s_175_all_three_are_exported(void) {
    int (*functions[3])(void);
    functions[0] = PyGC_Enable;
    functions[1] = PyGC_Disable;
    functions[2] = PyGC_IsEnabled;
    CHECK(functions[0] && functions[1] && functions[2]);
}

const struct test collect_tests[] = {
    TEST(s_165_a_garbage_cycle_of_three_gives_3),
    TEST(s_165_a_thread_that_is_not_attached_gets_0),
    TEST(s_166_the_result_counts_collectable_and_uncollectable),
    TEST(s_166_resurrected_objects_do_not_count),
    TEST(s_167_a_disabled_collector_does_nothing),
    TEST(s_168_a_collection_in_a_finalizer_gives_0),
    TEST(s_168_nor_in_a_clear_handler_or_callback),
    TEST(s_168_of_two_threads_at_once_one_gets_0),
    TEST(s_169_errors_go_to_the_unraisable_hook),
    TEST(s_170_a_pending_error_stays),
    TEST(s_171_the_module_function_collects_while_disabled),
    TEST(s_172_enable_gives_the_state_before),
    TEST(s_173_disable_gives_the_state_before),
    TEST(s_172_s_173_the_switch_works_in_callbacks_and_a_running_collection_finishes),
    TEST(s_172_s_173_the_switch_is_atomic),
    TEST(s_174_is_enabled_follows),
    TEST(s_174_a_suspension_does_not_show),
    TEST(s_175_all_three_are_exported),
    TESTS_END,
};
