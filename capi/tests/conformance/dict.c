/* Section J: the managed dictionary. */

#include "check.h"

#define WITH_DICT (Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_MANAGED_DICT)

static int last_result;
static int dict_traverse(PyObject *self, visitproc visit, void *arg) {
    int result;
    Py_VISIT(Py_TYPE(self));
    result = PyObject_VisitManagedDict(self, visit, arg);
    last_result = result;
    if (result)
        return result;
    return pair_traverse(self, visit, arg);
}
static int dict_clear(PyObject *self) {
    PyObject_ClearManagedDict(self);
    return pair_clear(self);
}
static void dict_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    PyObject_ClearManagedDict(self);
    heap_pair_dealloc(self);
}

static PyTypeObject *dict_type_with(traverseproc traverse) {
    PyType_Slot slots[] = {{Py_tp_traverse, FN(traverse)}, {Py_tp_clear, FN(dict_clear)},
                           {Py_tp_dealloc, FN(dict_dealloc)}, {0, NULL}};
    PyTypeObject *type = type_of_slots("check.Attributed", sizeof(Pair), 0, WITH_DICT, slots);
    MUST(type != NULL);
    return type;
}

static int stop_at(PyObject *object, void *arg) { return object == *(PyObject **)arg ? 55 : 0; }

static void s_117_a_cycle_through_an_attribute_is_collected(void) {
    long long before = LIVE();
    PyTypeObject *type = dict_type_with(dict_traverse);
    Pair *p = pair_of(type, NULL, NULL), *q = pair_of(type, NULL, NULL);
    CHECK_INT(PyObject_SetAttrString((PyObject *)p, "peer", (PyObject *)q), 0);
    CHECK_INT(PyObject_SetAttrString((PyObject *)q, "peer", (PyObject *)p), 0);
    CHECK_INT(PyObject_HasAttrString((PyObject *)p, "peer"), 1);
    CHECK_INT(PyObject_HasAttrString((PyObject *)p, "other"), 0);
    Py_DECREF(p);
    Py_DECREF(q);
    CHECK(PyGC_Collect() >= 2);
    CHECK_INT(calls.freed, 2);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
}

static void s_117_the_flag_needs_a_container_heap_type(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Static", .tp_basicsize = sizeof(Pair), .tp_flags = WITH_DICT,
                                .tp_traverse = pair_traverse};
    PyType_Slot none[] = {{0, NULL}};
    CHECK_INT(PyType_Ready(&type), -1);
    EXPECT_ERROR(STANDSTILL_E_BAD_FLAGS);
    CHECK(type_of_slots("check.Plain", sizeof(Leaf), 0, Py_TPFLAGS_MANAGED_DICT, none) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_FLAGS);
}

static void s_118_visiting_passes_the_visitors_value_on(void) {
    PyTypeObject *type = dict_type_with(dict_traverse);
    Pair *p = pair_of(type, NULL, NULL), *plain = pair(NULL, NULL);
    PyObject *l = (PyObject *)leaf();
    CHECK_INT(PyObject_VisitManagedDict((PyObject *)p, stop_at, &l), 0); /* no dictionary yet */
    PyObject_SetAttrString((PyObject *)p, "x", l);
    CHECK_INT(PyObject_VisitManagedDict((PyObject *)p, stop_at, &l), 55);
    set_a(plain, l);
    CHECK_INT(PyObject_VisitManagedDict((PyObject *)plain, stop_at, &l), 0); /* a type without the flag */
    Py_DECREF(plain);
    Py_DECREF(p);
    Py_DECREF(l);
    Py_DECREF(type);
}

static void s_119_a_stop_inside_the_dictionary_stops_the_handler(void) {
    PyTypeObject *type = dict_type_with(dict_traverse);
    PyObject *l = (PyObject *)leaf();
    Pair *p = pair_of(type, NULL, NULL);
    PyObject_SetAttrString((PyObject *)p, "x", l);
    calls.traversed = 0;
    CHECK_INT(type->tp_traverse((PyObject *)p, stop_at, &l), 55);
    CHECK_INT(last_result, 55);
    CHECK_INT(calls.traversed, 0); /* what comes after it was not reached */
    Py_DECREF(p);
    Py_DECREF(l);
    Py_DECREF(type);
}

/* PyObject_GC_Del releases the attributes that a deallocator has left. */
static void a_dictionary_ends_with_the_memory_of_its_object(void) {
    PyType_Slot slots[] = {{Py_tp_traverse, FN(dict_traverse)}, {Py_tp_clear, FN(dict_clear)},
                           {Py_tp_dealloc, FN(heap_pair_dealloc)}, {0, NULL}};
    PyTypeObject *type = type_of_slots("check.LeavesAttributes", sizeof(Pair), 0, WITH_DICT, slots);
    PyObject *l = (PyObject *)leaf();
    Pair *p;
    MUST(type != NULL);
    p = pair_of(type, NULL, NULL);
    PyObject_SetAttrString((PyObject *)p, "x", l);
    CHECK_INT(Py_REFCNT(l), 2);
    Py_DECREF(p);
    CHECK_INT(calls.freed, 1);
    CHECK_INT(Py_REFCNT(l), 1);
    Py_DECREF(l);
    Py_DECREF(type);
}

static void s_120_forgetting_the_dictionary_leaks_and_no_more(void) {
    PyTypeObject *type = dict_type_with(heap_pair_traverse);
    Pair *p = pair_of(type, NULL, NULL);
    long long before = LIVE();
    PyObject_SetAttrString((PyObject *)p, "self", (PyObject *)p);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 0);
    if (check_is_checked)
        EXPECT_MISUSE(STANDSTILL_E_MISSING_DICT_VISIT, -1);
    CHECK(LIVE() >= before);
    CHECK_INT(PyObject_HasAttrString((PyObject *)p, "self"), 1);
    CHECK_INT(calls.freed, 0);
    PyObject_SetAttrString((PyObject *)p, "self", NULL);
    CHECK_INT(calls.freed, 1);
    Py_DECREF(type);
}

static void s_121_clearing_drops_the_attributes(void) {
    PyTypeObject *type = dict_type_with(dict_traverse);
    Pair *p = pair_of(type, NULL, NULL), *plain = pair(NULL, NULL);
    PyObject *l = (PyObject *)leaf();
    PyObject_SetAttrString((PyObject *)p, "x", l);
    PyObject_SetAttrString((PyObject *)p, "y", l);
    CHECK_INT(Py_REFCNT(l), 3);
    PyObject_ClearManagedDict((PyObject *)p);
    CHECK_INT(Py_REFCNT(l), 1);
    CHECK_INT(PyObject_HasAttrString((PyObject *)p, "x"), 0);
    PyObject_ClearManagedDict((PyObject *)p);
    PyObject_ClearManagedDict((PyObject *)plain); /* without the flag: nothing */
    PyObject_SetAttrString((PyObject *)p, "x", l);
    CHECK_INT(PyObject_HasAttrString((PyObject *)p, "x"), 1);
    Py_DECREF(p);
    CHECK_INT(Py_REFCNT(l), 1);
    Py_DECREF(plain);
    Py_DECREF(l);
    Py_DECREF(type);
}

/* Two names that are not UTF-8 could not be told apart. */
static void the_name_of_an_attribute_is_utf_8(void) {
    PyTypeObject *type = dict_type_with(dict_traverse);
    PyObject *p = (PyObject *)pair_of(type, NULL, NULL), *l = (PyObject *)leaf();
    CHECK_INT(PyObject_SetAttrString(p, "a\xff", l), -1);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    CHECK(PyObject_GetAttrString(p, "a\xfe") == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    CHECK_INT(PyObject_HasAttrString(p, "a\xfe"), 0);
    EXPECT_MISUSE(STANDSTILL_E_WRONG_TYPE, 1);
    CHECK_INT(PyObject_SetAttrString(p, "\xc3\xa4", l), 0);
    CHECK_INT(PyObject_HasAttrString(p, "\xc3\xa4"), 1);
    Py_DECREF(p);
    Py_DECREF(l);
    Py_DECREF(type);
}

const struct test dict_tests[] = {
    TEST(s_117_a_cycle_through_an_attribute_is_collected),
    TEST(s_117_the_flag_needs_a_container_heap_type),
    TEST(s_118_visiting_passes_the_visitors_value_on),
    TEST(s_119_a_stop_inside_the_dictionary_stops_the_handler),
    TEST(a_dictionary_ends_with_the_memory_of_its_object),
    TEST(s_120_forgetting_the_dictionary_leaks_and_no_more),
    TEST(s_121_clearing_drops_the_attributes),
    TEST(the_name_of_an_attribute_is_utf_8),
    TESTS_END,
};
