/* Section F: queries. */

#include "check.h"

static void s_078_is_gc_answers_1_or_0(void) {
    PyTypeObject *heap_type = heap_pair_type("check.Heap", 0, NULL);
    PyObject *number = PyLong_FromLong(1), *text = PyUnicode_FromString("x"), *tuple = PyTuple_New(0);
    Pair *p = pair(NULL, NULL);
    Leaf *l = leaf();
    CHECK_INT(PyObject_IS_GC((PyObject *)p), 1);
    CHECK_INT(PyObject_IS_GC(tuple), 1);
    CHECK_INT(PyObject_IS_GC((PyObject *)l), 0);
    CHECK_INT(PyObject_IS_GC(number), 0);
    CHECK_INT(PyObject_IS_GC(text), 0);
    CHECK_INT(PyObject_IS_GC((PyObject *)&Pair_Type), 0);
    CHECK_INT(PyObject_IS_GC((PyObject *)&PyTuple_Type), 0);
    CHECK_INT(PyObject_IS_GC((PyObject *)heap_type), 1);
    CHECK_INT(PyObject_IS_GC(NULL), 0);
    EXPECT_MISUSE(STANDSTILL_E_NULL_ARGUMENT, 1);
    Py_DECREF(heap_type);
    Py_DECREF(number);
    Py_DECREF(text);
    Py_DECREF(tuple);
    Py_DECREF(p);
    Py_DECREF(l);
}

static int odd_is_gc(PyObject *self) { return (int)(((Pair *)self)->tag & 1) * 5; }

static void s_078_a_test_of_the_type_decides_for_each_object(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Odd", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_is_gc = odd_is_gc};
    Pair *p;
    ready(&type);
    p = PyObject_GC_New(Pair, &type);
    MUST(p != NULL);
    CHECK_INT(PyObject_IS_GC((PyObject *)p), 0);
    p->tag = 1;
    CHECK_INT(PyObject_IS_GC((PyObject *)p), 1);
    Py_DECREF(p);
}

static void s_079_objects_other_than_containers_are_never_tracked(void) {
    PyObject *objects[3];
    int i;
    objects[0] = PyLong_FromLong(1);
    objects[1] = PyUnicode_FromString("x");
    objects[2] = (PyObject *)leaf();
    for (i = 0; i < 3; i++) {
        CHECK_INT(PyObject_IS_GC(objects[i]), 0);
        PyObject_GC_Track(objects[i]);
        CHECK_INT(PyObject_GC_IsTracked(objects[i]), 0);
        Py_DECREF(objects[i]);
    }
    EXPECT_MISUSE(STANDSTILL_E_NOT_GC_OBJECT, 3);
}

static void s_080_is_tracked_follows_track_and_untrack(void) {
    Pair *p = PyObject_GC_New(Pair, &Pair_Type);
    Leaf *l = leaf();
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 0);
    PyObject_GC_Track(p);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 1);
    CHECK_INT(standstill_gc_is_tracked((PyObject *)p), 1);
    PyObject_GC_UnTrack(p);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 0);
    CHECK_INT(standstill_gc_is_tracked((PyObject *)p), 0);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)l), 0);
    CHECK_INT(PyObject_GC_IsTracked(NULL), 0);
    EXPECT_MISUSE(STANDSTILL_E_NULL_ARGUMENT, 1);
    Py_DECREF(p);
    Py_DECREF(l);
}

/* S-81 */
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

static void s_081_is_finalized_after_a_collection(void) {
    Pair *p;
    ready(&Saving_Type);
    p = ring_of(&Saving_Type, 1);
    CHECK_INT(PyObject_GC_IsFinalized((PyObject *)p), 0);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK(saved == (PyObject *)p);
    CHECK_INT(PyObject_GC_IsFinalized(saved), 1);
    CHECK_INT(standstill_gc_is_finalized(saved), 1);
    set_a(saved, NULL);
    Py_DECREF(saved);
    CHECK_INT(calls.finalized, 1);
    CHECK_INT(calls.freed, 1);
}

static void s_081_is_finalized_after_count_0(void) {
    Pair *p;
    ready(&Saving_Type);
    p = pair_of(&Saving_Type, NULL, NULL);
    CHECK_INT(PyObject_GC_IsFinalized((PyObject *)p), 0);
    Py_DECREF(p);
    CHECK(saved == (PyObject *)p);
    CHECK_INT(PyObject_GC_IsFinalized(saved), 1);
    Py_DECREF(saved);
    CHECK_INT(calls.finalized, 1);
    CHECK_INT(calls.freed, 1);
}

static void s_081_is_finalized_is_0_without_a_finalizer_and_for_null(void) {
    Pair *p = pair(NULL, NULL);
    Leaf *l = leaf();
    PyObject_CallFinalizer((PyObject *)p);
    CHECK_INT(PyObject_GC_IsFinalized((PyObject *)p), 0);
    CHECK_INT(PyObject_GC_IsFinalized((PyObject *)l), 0);
    CHECK_INT(PyObject_GC_IsFinalized(NULL), 0);
    EXPECT_MISUSE(STANDSTILL_E_NULL_ARGUMENT, 1);
    Py_DECREF(p);
    Py_DECREF(l);
}

static void s_082_both_queries_are_exported(void) {
    int (*tracked)(PyObject *) = PyObject_GC_IsTracked;
    int (*finalized)(PyObject *) = PyObject_GC_IsFinalized;
    CHECK(tracked && finalized);
}

const struct test queries_tests[] = {
    TEST(s_078_is_gc_answers_1_or_0),
    TEST(s_078_a_test_of_the_type_decides_for_each_object),
    TEST(s_079_objects_other_than_containers_are_never_tracked),
    TEST(s_080_is_tracked_follows_track_and_untrack),
    TEST(s_081_is_finalized_after_a_collection),
    TEST(s_081_is_finalized_after_count_0),
    TEST(s_081_is_finalized_is_0_without_a_finalizer_and_for_null),
    TEST(s_082_both_queries_are_exported),
    TESTS_END,
};
