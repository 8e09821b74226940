/* Where the versions of the page disagree: what was decided. */

#include "check.h"

#include <dlfcn.h>

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

static int visited;
static int answer;
static int answering(PyObject *object, void *arg) {
    (void)object;
    (void)arg;
    visited++;
    return answer;
}

static void d_01_1_goes_on_and_0_stops(void) {
    Pair *p = ring(4);
    answer = 1;
    PyUnstable_GC_VisitObjects(answering, NULL);
    CHECK(visited >= 4);
    visited = 0;
    answer = 0;
    PyUnstable_GC_VisitObjects(answering, NULL);
    CHECK_INT(visited, 1);
    Py_DECREF(p);
    PyGC_Collect();
}

static void d_02_the_name_is_newvar(void) {
    Row *r = PyObject_GC_NewVar(Row, &Row_Type, 2);
    MUST(r != NULL);
    Py_DECREF(r);
#ifdef PyObject_GC_VarNew
    CHECK(0);
#endif
}

static void d_03_a_tracked_object_is_an_error_of_resize(void) {
    Row *r = row(2);
    CHECK(PyObject_GC_Resize(Row, r, 4) == NULL);
    EXPECT_ERROR(STANDSTILL_E_TRACKED_RESIZE);
    PyObject_GC_UnTrack(r);
    r = PyObject_GC_Resize(Row, r, 4);
    MUST(r != NULL);
    CHECK_INT(Py_SIZE(r), 4);
    Py_DECREF(r);
}

static void d_04_resize_takes_objects_of_newvar_and_tp_alloc(void) {
    static PyTypeObject plain = {TYPE_HEAD .tp_name = "check.Plain", .tp_basicsize = sizeof(PyVarObject),
                                 .tp_itemsize = 8};
    Row *made = PyObject_GC_NewVar(Row, &Row_Type, 2), *allocated = row(2);
    PyVarObject *v;
    MUST(made != NULL);
    PyObject_GC_UnTrack(allocated);
    made = PyObject_GC_Resize(Row, made, 9);
    allocated = PyObject_GC_Resize(Row, allocated, 9);
    MUST(made && allocated);
    ready(&plain);
    v = PyObject_NewVar(PyVarObject, &plain, 2);
    MUST(v != NULL);
    CHECK(PyObject_GC_Resize(PyVarObject, v, 9) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_GC_OBJECT);
    Py_DECREF(made);
    Py_DECREF(allocated);
    Py_DECREF(v);
}

static void d_05_heap_types_are_visited_and_static_ones_need_not(void) {
    long long before = LIVE();
    PyTypeObject *type = heap_pair_type("check.Heap", 0, NULL);
    Pair *p = pair_of(type, NULL, NULL), *q = pair(p, NULL);
    set_a(p, q);
    PyObject_SetAttrString((PyObject *)type, "pair", (PyObject *)p);
    Py_DECREF(p);
    Py_DECREF(q);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
}

static PyObject *own_alloc(PyTypeObject *type, Py_ssize_t n) {
    (void)n;
    return (PyObject *)PyObject_GC_New(Pair, type);
}

static void d_06_tp_alloc_is_the_way_and_gc_new_its_building_block(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Own", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_alloc = own_alloc};
    long long before = LIVE();
    Pair *p;
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 0);
    PyObject_GC_Track(p);
    set_a(p, p);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(LIVE(), before);
}

static void d_07_both_styles_of_tracking_work(void) {
    Pair *p = pair(NULL, NULL), *q = PyObject_GC_New(Pair, &Pair_Type);
    MUST(q != NULL);
    PyObject_GC_Track(p);
    PyObject_GC_Track(q);
    CHECK_INT(misuses(0), 0);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p) + PyObject_GC_IsTracked((PyObject *)q), 2);
    Py_DECREF(p);
    Py_DECREF(q);
}

static void d_08_tp_free_ends_in_gc_del(void) {
    long long before = LIVE();
    Pair *p = PyObject_GC_New(Pair, &Pair_Type);
    CHECK(Pair_Type.tp_free == PyObject_GC_Del);
    Pair_Type.tp_free(p);
    CHECK_INT(LIVE(), before);
}

static int visit_null(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(object);
    return 3;
}
static int never(PyObject *object, void *arg) {
    (void)object;
    (void)arg;
    CHECK(0);
    return 1;
}

static void d_09_py_visit_does_nothing_for_null(void) { CHECK_INT(visit_null(NULL, never, NULL), 3); }

static void d_10_py_visit_is_a_macro(void) {
#ifndef Py_VISIT
    CHECK(0);
#endif
    CHECK_INT(visit_null((PyObject *)&Pair_Type, answering, NULL), 3);
    CHECK_INT(visited, 1);
}

static void d_11_allocators_are_macros_over_functions(void) {
#if !defined(PyObject_GC_New) || !defined(PyObject_GC_NewVar) || !defined(PyObject_GC_Resize)
    CHECK(0);
#endif
    CHECK(_PyObject_GC_New != NULL && _PyObject_GC_NewVar != NULL && _PyObject_GC_Resize != NULL);
}

static void d_12_the_macro_forms_of_track_are_not_exported(void) {
    void *program = dlopen(NULL, RTLD_NOW);
    CHECK(program && dlsym(program, "standstill_PyObject_GC_Track"));
    CHECK(!dlsym(program, "standstill__PyObject_GC_TRACK") && !dlsym(program, "standstill__PyObject_GC_UNTRACK"));
    dlclose(program);
}

static void d_13_the_handler_of_a_base_may_be_named(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Sub", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_base = &Pair_Type, .tp_traverse = pair_traverse, .tp_clear = pair_clear};
    long long before = LIVE();
    ready(&type);
    garbage_ring_of(&type, 2);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(LIVE(), before);
}

static void d_14_the_case_in_between_is_an_error(void) {
    static PyTypeObject heir = {TYPE_HEAD .tp_name = "check.Heir", .tp_base = &Pair_Type};
    static PyTypeObject half = {TYPE_HEAD .tp_name = "check.Half", .tp_base = &Pair_Type, .tp_clear = pair_clear};
    ready(&heir);
    CHECK(heir.tp_traverse == pair_traverse && (heir.tp_flags & Py_TPFLAGS_HAVE_GC));
    CHECK_INT(PyType_Ready(&half), -1);
    EXPECT_ERROR(STANDSTILL_E_HANDLERS_WITHOUT_FLAG);
}

static void d_15_the_flag_without_traverse_is_an_error(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Mute", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_clear = pair_clear};
    CHECK_INT(PyType_Ready(&type), -1);
    EXPECT_ERROR(STANDSTILL_E_MISSING_TRAVERSE);
}

static void d_16_clear_is_not_enforced(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.NoClear", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = pair_dealloc, .tp_traverse = pair_traverse};
    CHECK_INT(PyType_Ready(&type), 0);
    CHECK(type.tp_clear == NULL);
    Py_DECREF(pair_of(&type, NULL, NULL));
}

static int tried;
static int allocating_traverse(PyObject *self, visitproc visit, void *arg) {
    if (__atomic_exchange_n(&tried, 1, __ATOMIC_SEQ_CST) == 0)
        CHECK(PyType_GenericAlloc(&Pair_Type, 0) == NULL);
    return pair_traverse(self, visit, arg);
}

static void d_17_the_limits_of_traversal_hold_for_every_handler(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Old", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = pair_dealloc, .tp_traverse = allocating_traverse, .tp_clear = pair_clear};
    ready(&type);
    garbage_ring_of(&type, 2);
    CHECK_INT(PyGC_Collect(), 2);
    EXPECT_MISUSE(STANDSTILL_E_IN_TRAVERSAL, 1);
    CHECK(!PyErr_Occurred());
}

static int with_dict_traverse(PyObject *self, visitproc visit, void *arg) {
    int result = PyObject_VisitManagedDict(self, visit, arg);
    return result ? result : heap_pair_traverse(self, visit, arg);
}
static int with_dict_clear(PyObject *self) {
    PyObject_ClearManagedDict(self);
    return pair_clear(self);
}
static void with_dict_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    PyObject_ClearManagedDict(self);
    heap_pair_dealloc(self);
}

static void d_18_the_managed_dictionary_is_to_be_visited(void) {
    PyType_Slot slots[] = {{Py_tp_traverse, FN(with_dict_traverse)}, {Py_tp_clear, FN(with_dict_clear)},
                           {Py_tp_dealloc, FN(with_dict_dealloc)}, {0, NULL}};
    PyTypeObject *type = heap_pair_type("check.Dict", Py_TPFLAGS_MANAGED_DICT, slots);
    Pair *p = pair_of(type, NULL, NULL);
    PyObject_SetAttrString((PyObject *)p, "me", (PyObject *)p);
    Py_DECREF(p);
    CHECK(PyGC_Collect() >= 1);
    CHECK_INT(calls.freed, 1);
    Py_DECREF(type);
}

static void d_19_weak_references_to_a_type_and_to_an_instance_are_not_visited(void) {
    long long before = LIVE();
    PyTypeObject *type = heap_pair_type("check.Weakly", 0, NULL);
    Pair *p = pair_of(type, NULL, NULL);
    PyObject *to_type = weak_to(type), *to_instance = weak_to(p);
    set_a(p, p);
    Py_DECREF(p);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK(!is_alive(to_type) && !is_alive(to_instance));
    Py_DECREF(to_type);
    Py_DECREF(to_instance);
    CHECK_INT(LIVE(), before);
}

static void d_20_a_disabled_collector_gives_0(void) {
    garbage_ring(2);
    PyGC_Disable();
    CHECK_INT(PyGC_Collect(), 0);
    PyGC_Enable();
    CHECK_INT(PyGC_Collect(), 2);
}

static void d_21_frozen_objects_are_visited(void) {
    int all;
    Pair *p = ring(3);
    answer = 1;
    PyUnstable_GC_VisitObjects(answering, NULL);
    all = visited;
    visited = 0;
    standstill_gc_freeze();
    PyUnstable_GC_VisitObjects(answering, NULL);
    CHECK_INT(visited, all);
    standstill_gc_unfreeze();
    Py_DECREF(p);
    PyGC_Collect();
}

static int toggling(PyObject *object, void *arg) {
    (void)object;
    *(int *)arg = PyGC_Disable();
    return 0;
}

static void d_22_the_flag_belongs_to_the_user(void) {
    Pair *p = pair(NULL, NULL);
    int was = -1;
    PyUnstable_GC_VisitObjects(toggling, &was);
    CHECK_INT(was, 1);
    CHECK_INT(PyGC_IsEnabled(), 0);
    PyGC_Enable();
    Py_DECREF(p);
}

static void d_23_all_three_take_void_pointers(void) {
    void (*functions[3])(void *);
    functions[0] = PyObject_GC_Track;
    functions[1] = PyObject_GC_UnTrack;
    functions[2] = PyObject_GC_Del;
    CHECK(functions[0] && functions[1] && functions[2]);
}

static void d_24_objects_other_than_containers_are_not_tracked(void) {
    PyObject *number = PyLong_FromLong(1);
    Leaf *l = leaf();
    CHECK_INT(PyObject_GC_IsTracked(number), 0);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)l), 0);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)&Pair_Type), 0);
    Py_DECREF(number);
    Py_DECREF(l);
}

static void d_25_traverse_is_called_for_garbage_collected_objects(void) {
    Pair *p = pair(NULL, NULL);
    PyGC_Collect();
    CHECK(calls.traversed > 0);
    Py_DECREF(p);
}

static PyObject *with_callback, *without_callback;
static int order[2] = {-1, -1};
static void reading_finalizer(PyObject *self) {
    (void)self;
    order[0] = is_alive(with_callback);
    order[1] = is_alive(without_callback);
}

static void d_26_weak_references_without_callback_are_cleared_after_finalizers(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Reading", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_finalize = reading_finalizer};
    long called = 0;
    Pair *p;
    ready(&type);
    p = ring_of(&type, 1);
    with_callback = counting_weak(p, &called);
    without_callback = weak_to(p);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(called, 1);
    CHECK_INT(order[0], 0);
    CHECK_INT(order[1], 1);
    CHECK(!is_alive(without_callback));
    Py_DECREF(with_callback);
    Py_DECREF(without_callback);
}

static void d_27_the_lost_words_name_the_flag(void) {
    CHECK(Pair_Type.tp_flags & Py_TPFLAGS_HAVE_GC);
    CHECK(!(Leaf_Type.tp_flags & Py_TPFLAGS_HAVE_GC));
}

const struct test decisions_tests[] = {
    TEST(d_01_1_goes_on_and_0_stops),
    TEST(d_02_the_name_is_newvar),
    TEST(d_03_a_tracked_object_is_an_error_of_resize),
    TEST(d_04_resize_takes_objects_of_newvar_and_tp_alloc),
    TEST(d_05_heap_types_are_visited_and_static_ones_need_not),
    TEST(d_06_tp_alloc_is_the_way_and_gc_new_its_building_block),
    TEST(d_07_both_styles_of_tracking_work),
    TEST(d_08_tp_free_ends_in_gc_del),
    TEST(d_09_py_visit_does_nothing_for_null),
    TEST(d_10_py_visit_is_a_macro),
    TEST(d_11_allocators_are_macros_over_functions),
    TEST(d_12_the_macro_forms_of_track_are_not_exported),
    TEST(d_13_the_handler_of_a_base_may_be_named),
    TEST(d_14_the_case_in_between_is_an_error),
    TEST(d_15_the_flag_without_traverse_is_an_error),
    TEST(d_16_clear_is_not_enforced),
    TEST(d_17_the_limits_of_traversal_hold_for_every_handler),
    TEST(d_18_the_managed_dictionary_is_to_be_visited),
    TEST(d_19_weak_references_to_a_type_and_to_an_instance_are_not_visited),
    TEST(d_20_a_disabled_collector_gives_0),
    TEST(d_21_frozen_objects_are_visited),
    TEST(d_22_the_flag_belongs_to_the_user),
    TEST(d_23_all_three_take_void_pointers),
    TEST(d_24_objects_other_than_containers_are_not_tracked),
    TEST(d_25_traverse_is_called_for_garbage_collected_objects),
    TEST(d_26_weak_references_without_callback_are_cleared_after_finalizers),
    TEST(d_27_the_lost_words_name_the_flag),
    TESTS_END,
};
