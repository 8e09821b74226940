/* Section K: only owned references are visited; weak references. */

#include "check.h"

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

/* S-122: b is borrowed. */
static int owned_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Pair *)self)->a);
    return 0;
}
static int owned_clear(PyObject *self) {
    ADD(calls.cleared);
    Py_CLEAR(((Pair *)self)->a);
    return 0;
}
static void owned_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((Pair *)self)->a);
    ADD(calls.freed);
    Py_TYPE(self)->tp_free(self);
}

static void s_122_a_borrowed_field_is_not_visited(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Borrower", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = owned_dealloc, .tp_traverse = owned_traverse, .tp_clear = owned_clear};
    long long before = LIVE();
    Pair *p, *lent = pair(NULL, NULL);
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    p->b = (PyObject *)lent;
    set_a(p, p);
    Py_DECREF(p);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(Py_REFCNT((PyObject *)lent), 1);
    Py_DECREF(lent);
    CHECK_INT(LIVE(), before);
}

static void s_122_a_borrowed_field_that_is_visited_does_no_damage(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Overeager", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = owned_dealloc, .tp_traverse = pair_traverse, .tp_clear = owned_clear};
    long long before = LIVE();
    Pair *p, *lent = pair(NULL, NULL);
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    p->b = (PyObject *)lent;
    PyGC_Collect();
    set_a(p, p);
    Py_DECREF(p);
    PyGC_Collect();
    CHECK_INT(Py_REFCNT((PyObject *)lent), 1);
    set_a(lent, lent);
    set_a(lent, NULL);
    Py_DECREF(lent);
    CHECK_INT(LIVE(), before);
    forget_misuses();
}

static void s_123_an_object_with_weak_references_is_collected(void) {
    long long before = LIVE();
    long counter = 0;
    Pair *p = ring(2);
    PyObject *weak[3];
    int i;
    weak[0] = weak_to(p);
    weak[1] = weak_to(p);
    weak[2] = counting_weak(p, &counter);
    Py_DECREF(p);
    for (i = 0; i < 3; i++)
        CHECK(is_alive(weak[i]));
    CHECK_INT(PyGC_Collect(), 2);
    for (i = 0; i < 3; i++) {
        CHECK(!is_alive(weak[i]));
        Py_DECREF(weak[i]);
    }
    CHECK_INT(counter, 1);
    CHECK_INT(LIVE(), before);
}

/* S-124 */
static long called;
static void callback(PyObject *self, PyObject *weak) {
    (void)self;
    (void)weak;
    ADD(called);
}

static void s_124_a_weak_reference_visits_its_callback_and_not_its_target(void) {
    long long before = LIVE();
    Pair *p = pair(NULL, NULL);
    PyObject *cb = standstill_Callback_New(callback, (PyObject *)p), *weak, *objects[1], *found;
    MUST(cb != NULL);
    weak = PyWeakref_NewRef((PyObject *)p, cb);
    MUST(weak != NULL);
    CHECK_INT(PyWeakref_Check(weak), 1);
    objects[0] = weak;
    found = standstill_gc_get_referents(objects, 1);
    MUST(found != NULL);
    CHECK_INT(PyTuple_Size(found), 1);
    CHECK(PyTuple_GetItem(found, 0) == cb);
    Py_DECREF(found);
    set_a(p, weak); /* p -> weak -> cb -> p */
    Py_DECREF(weak);
    Py_DECREF(cb);
    Py_DECREF(p);
    CHECK(PyGC_Collect() >= 3);
    CHECK_INT(calls.freed, 1);
    CHECK_INT(called, 0);
    CHECK_INT(LIVE(), before);
}

static void s_124_a_weak_reference_does_not_keep_its_target(void) {
    Pair *p = pair(NULL, NULL);
    PyObject *weak = weak_to(p);
    Py_DECREF(p);
    CHECK_INT(calls.freed, 1);
    CHECK(!is_alive(weak));
    Py_DECREF(weak);
}

const struct test weak_tests[] = {
    TEST(s_122_a_borrowed_field_is_not_visited),
    TEST(s_122_a_borrowed_field_that_is_visited_does_no_damage),
    TEST(s_123_an_object_with_weak_references_is_collected),
    TEST(s_124_a_weak_reference_visits_its_callback_and_not_its_target),
    TEST(s_124_a_weak_reference_does_not_keep_its_target),
    TESTS_END,
};
