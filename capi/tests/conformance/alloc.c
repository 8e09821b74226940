/* Section C: allocation. */

#include "check.h"

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

static int is_zero(const void *from, size_t size) {
    const unsigned char *bytes = from;
    while (size--)
        if (bytes[size])
            return 0;
    return 1;
}

/* Bytes of an object after its header. */
static int body_is_zero(void *object, size_t size) {
    return is_zero((char *)object + sizeof(PyObject), size - sizeof(PyObject));
}

static Row *gc_row(Py_ssize_t n) {
    Row *r = PyObject_GC_NewVar(Row, &Row_Type, n);
    MUST(r != NULL);
    return r;
}

static void s_020_memory_from_elsewhere_is_reported_and_not_tracked(void) {
    long long before = LIVE();
    Pair *foreign = calloc(1, sizeof(Pair) + 64);
    CHECK(foreign != NULL);
    PyObject_GC_Track((char *)foreign + 32);
    EXPECT_MISUSE(STANDSTILL_E_FOREIGN_POINTER, 1);
    CHECK(strstr(last_misuse.function, "PyObject_GC_Track") != NULL);
    CHECK_INT(LIVE(), before);
    PyGC_Collect();
    free(foreign);
}

static void s_021_gc_new_gives_an_object_of_the_type(void) {
    long long before = LIVE();
    PyTypeObject *heap_type = heap_pair_type("check.Heap", 0, NULL);
    Pair *p = PyObject_GC_New(Pair, &Pair_Type);
    Pair *q = PyObject_GC_New(Pair, heap_type);
    PyObject *weak = weak_to(heap_type);
    CHECK(p != NULL && q != NULL);
    CHECK_INT(Py_REFCNT((PyObject *)p), 1);
    CHECK(Py_TYPE(p) == &Pair_Type && Py_TYPE(q) == heap_type);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 0);
    Py_DECREF(heap_type);
    PyGC_Collect();
    CHECK(is_alive(weak)); /* q has gained a reference to it */
    Py_DECREF(q);
    PyGC_Collect();
    CHECK(!is_alive(weak));
    Py_DECREF(weak);
    Py_DECREF(p);
    CHECK_INT(LIVE(), before);
}

static void fill_and_be_refused(void) {
    Pair *all = NULL, *one;
    while ((one = PyObject_GC_New(Pair, &Pair_Type)) != NULL) {
        one->a = (PyObject *)all;
        all = one;
    }
    CHECK(PyErr_ExceptionMatches(PyExc_MemoryError));
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    Py_XDECREF(all);
    CHECK_INT(LIVE(), 0);
    all = PyObject_GC_New(Pair, &Pair_Type);
    CHECK(all != NULL);
    Py_DECREF(all);
}

static void s_021_gc_new_fails_with_an_error(void) {
    CHECK(PyObject_GC_New(Pair, (PyTypeObject *)NULL) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    in_small_heap(fill_and_be_refused);
}

static void s_021_gc_new_evaluates_its_arguments_once(void) {
    PyTypeObject *types[2], **next = types;
    Py_ssize_t sizes[2] = {3, 9}, *size = sizes;
    Pair *p;
    Row *r;
    types[0] = &Pair_Type;
    types[1] = &Row_Type;
    p = PyObject_GC_New(Pair, *next++);
    CHECK(next == types + 1);
    r = PyObject_GC_NewVar(Row, *next++, *size++);
    CHECK(next == types + 2 && size == sizes + 1);
    CHECK_INT(Py_SIZE(r), 3);
    Py_DECREF(p);
    Py_DECREF(r);
}

static void s_022_the_body_is_zero(void) {
    int round;
    for (round = 0; round < 3; round++) { /* in memory that was used before, too */
        Pair *p = PyObject_GC_New(Pair, &Pair_Type);
        MUST(p != NULL);
        CHECK(body_is_zero(p, sizeof(Pair)));
        p->tag = -1;
        p->a = Py_NewRef((PyObject *)&Pair_Type);
        Py_DECREF(p);
    }
}

static void s_023_an_object_starts_untracked_and_can_be_dropped(void) {
    long long before = LIVE();
    Pair *p = PyObject_GC_New(Pair, &Pair_Type);
    Row *r = gc_row(2);
    PyObject *extra = PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, 8);
    MUST(p && extra);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 0);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)r), 0);
    CHECK_INT(PyObject_GC_IsTracked(extra), 0);
    Py_DECREF(p);
    Py_DECREF(r);
    Py_DECREF(extra);
    CHECK_INT(LIVE(), before);
}

static void s_024_each_allocator_is_for_its_kind_of_type(void) {
    long long before = LIVE();
    CHECK(PyObject_GC_New(Leaf, &Leaf_Type) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_GC_TYPE);
    CHECK(PyUnstable_Object_GC_NewWithExtraData(&Leaf_Type, 8) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_GC_TYPE);
    CHECK(PyObject_New(Pair, &Pair_Type) == NULL);
    EXPECT_ERROR(STANDSTILL_E_GC_TYPE);
    CHECK(PyObject_NewVar(Row, &Row_Type, 2) == NULL);
    EXPECT_ERROR(STANDSTILL_E_GC_TYPE);
    CHECK_INT(LIVE(), before);
}

/* S-25 */
static long allocated_here;
static PyObject *counting_alloc(PyTypeObject *type, Py_ssize_t n) {
    ADD(allocated_here);
    return PyType_GenericAlloc(type, n);
}
static PyTypeObject Counting_Type = {
    TYPE_HEAD
    .tp_name = "check.Counting",
    .tp_basicsize = sizeof(Pair),
    .tp_base = &Pair_Type,
    .tp_alloc = counting_alloc,
};

static void s_025_a_constructor_through_the_slot_honours_a_subclass(void) {
    Pair *p;
    ready(&Counting_Type);
    p = pair_of(&Counting_Type, NULL, NULL); /* the constructor of the base */
    CHECK_INT(allocated_here, 1);
    Py_DECREF(p);
}

static void s_026_an_empty_slot_works_without_an_allocator_of_ones_own(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Plain", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_traverse = pair_traverse, .tp_clear = pair_clear};
    long long before = LIVE();
    ready(&type);
    garbage_ring_of(&type, 3);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(LIVE(), before);
}

static void s_027_objects_of_all_allocators_are_freed(void) {
    long long before;
    size_t bytes;
    int i;
    Py_DECREF(pair(NULL, NULL));
    before = LIVE();
    bytes = standstill_live_bytes();
    for (i = 0; i < 1000; i++) {
        Pair *p = PyObject_GC_New(Pair, &Pair_Type);
        Row *r = gc_row(i % 7);
        PyObject *extra = PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, (size_t)i);
        MUST(p && extra);
        Py_DECREF(p);
        PyObject_GC_Del(r);
        Py_DECREF(extra);
    }
    CHECK_INT(LIVE(), before);
    CHECK_INT(standstill_live_bytes(), bytes);
}

static void s_028_generic_alloc_zeroes_and_sets_the_sizes(void) {
    Pair *p = (Pair *)PyType_GenericAlloc(&Pair_Type, 0);
    Row *r = (Row *)PyType_GenericAlloc(&Row_Type, 6);
    Leaf *l = (Leaf *)PyType_GenericAlloc(&Leaf_Type, 0);
    MUST(p && r && l);
    CHECK(body_is_zero(p, sizeof(Pair)) && body_is_zero(l, sizeof(Leaf)));
    CHECK_INT(Py_SIZE(r), 6);
    CHECK(is_zero(r->items, 6 * sizeof(PyObject *)));
    CHECK_INT(PyObject_IS_GC((PyObject *)p), 1);
    CHECK_INT(PyObject_IS_GC((PyObject *)l), 0);
    CHECK_INT(Py_REFCNT((PyObject *)r), 1);
    Py_DECREF(p);
    Py_DECREF(r);
    Py_DECREF(l);
}

static void s_028_generic_alloc_refuses_bad_sizes(void) {
    long long before = LIVE();
    CHECK(PyType_GenericAlloc(&Row_Type, -1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    CHECK(PyType_GenericAlloc(&Pair_Type, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    CHECK(PyType_GenericAlloc(&Row_Type, PTRDIFF_MAX) == NULL);
    CHECK(PyErr_Occurred());
    PyErr_Clear();
    CHECK_INT(LIVE(), before);
}

static void s_029_generic_alloc_tracks_and_survives_a_collection_while_empty(void) {
    Pair *p = (Pair *)Pair_Type.tp_alloc(&Pair_Type, 0);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 1);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK(calls.traversed > 0);
    PyObject_GC_Track(p); /* the constructor's own: silent */
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)p), 1);
    Py_DECREF(p);
}

static void s_030_a_custom_slot_is_called_once_for_each_construction(void) {
    int i;
    ready(&Counting_Type);
    for (i = 1; i <= 3; i++) {
        Py_DECREF(pair_of(&Counting_Type, NULL, NULL));
        CHECK_INT(allocated_here, i);
    }
}

/* S-31 */
static long freed_here;
static void counting_free(void *object) {
    ADD(freed_here);
    PyObject_GC_Del(object);
}
static PyTypeObject Freeing_Type = {
    TYPE_HEAD
    .tp_name = "check.Freeing",
    .tp_basicsize = sizeof(Pair),
    .tp_base = &Pair_Type,
    .tp_free = counting_free,
};

static void s_031_a_custom_free_is_called_once_for_each_object(void) {
    long long before = LIVE();
    ready(&Freeing_Type);
    Py_DECREF(pair_of(&Freeing_Type, NULL, NULL));
    CHECK_INT(freed_here, 1);
    garbage_ring_of(&Freeing_Type, 3);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(freed_here, 4);
    CHECK_INT(LIVE(), before);
}

static void s_032_gc_newvar_has_room_for_the_items(void) {
    static const Py_ssize_t sizes[] = {0, 1, 1000};
    size_t i;
    for (i = 0; i < 3; i++) {
        Row *r = gc_row(sizes[i]), *other = gc_row(sizes[i]);
        CHECK_INT(Py_SIZE(r), sizes[i]);
        CHECK(is_zero(r->items, (size_t)sizes[i] * sizeof(PyObject *)));
        memset(r->items, 0xff, (size_t)sizes[i] * sizeof(PyObject *));
        CHECK(is_zero(other->items, (size_t)sizes[i] * sizeof(PyObject *)));
        CHECK_INT(Py_SIZE(other), sizes[i]);
        memset(r->items, 0, (size_t)sizes[i] * sizeof(PyObject *));
        Py_DECREF(r);
        Py_DECREF(other);
    }
}

static void s_032_the_size_is_rounded_up_to_pointers(void) {
    static PyTypeObject bytes = {TYPE_HEAD .tp_name = "check.Bytes", .tp_basicsize = sizeof(PyVarObject), .tp_itemsize = 1,
                                 .tp_flags = GC_TYPE, .tp_traverse = nothing_traverse};
    enum { MOST = 130, EACH = 4 };
    static PyVarObject *all[MOST][EACH];
    Py_ssize_t n, rounded;
    size_t at;
    int i;
    ready(&bytes);
    /* Every byte up to the next pointer is the object's own: it is zero at first, and a write there damages no
     * neighbour. */
    for (n = 0; n < MOST; n++)
        for (i = 0; i < EACH; i++) {
            all[n][i] = PyObject_GC_NewVar(PyVarObject, &bytes, n);
            MUST(all[n][i] != NULL);
        }
    for (n = 0; n < MOST; n++)
        for (i = 0; i < EACH; i++) {
            rounded = (n + 7) / 8 * 8;
            CHECK(is_zero(all[n][i] + 1, (size_t)rounded));
            memset(all[n][i] + 1, (int)(n + i) % 255 + 1, (size_t)rounded);
        }
    for (n = 0; n < MOST; n++)
        for (i = 0; i < EACH; i++) {
            rounded = (n + 7) / 8 * 8;
            CHECK_INT(Py_SIZE(all[n][i]), n);
            CHECK(Py_TYPE(all[n][i]) == &bytes);
            CHECK_INT(Py_REFCNT((PyObject *)all[n][i]), 1);
            for (at = 0; at < (size_t)rounded; at++)
                CHECK_INT(((unsigned char *)(all[n][i] + 1))[at], (n + i) % 255 + 1);
            memset(all[n][i] + 1, 0, (size_t)rounded);
            Py_DECREF(all[n][i]);
        }
}

static void s_033_gc_newvar_refuses_bad_sizes(void) {
    long long before = LIVE();
    size_t bytes = standstill_live_bytes();
    CHECK(PyObject_GC_NewVar(Row, &Row_Type, -1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    CHECK(PyObject_GC_NewVar(Row, &Row_Type, PTRDIFF_MIN) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    CHECK(PyObject_GC_NewVar(Row, &Row_Type, PTRDIFF_MAX) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK(PyObject_GC_NewVar(Row, &Row_Type, PTRDIFF_MAX / 8) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK_INT(LIVE(), before);
    CHECK_INT(standstill_live_bytes(), bytes);
}

static void s_034_the_slot_gives_the_same_layout(void) {
    Row *by_slot = row(4), *by_hand = gc_row(4);
    CHECK_INT(Py_SIZE(by_slot), Py_SIZE(by_hand));
    CHECK(Py_TYPE(by_slot) == Py_TYPE(by_hand));
    CHECK(is_zero(by_slot->items, 4 * sizeof(PyObject *)) && is_zero(by_hand->items, 4 * sizeof(PyObject *)));
    Py_DECREF(by_slot);
    Py_DECREF(by_hand);
}

static void s_035_extra_bytes_begin_at_the_basic_size(void) {
    static const size_t sizes[] = {0, 1, 8, 100, 4000};
    size_t i, at;
    for (i = 0; i < 5; i++) {
        char *o = (char *)PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, sizes[i]);
        char *neighbour = (char *)PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, sizes[i]);
        MUST(o && neighbour);
        for (at = 0; at < sizes[i]; at++)
            o[sizeof(Pair) + at] = (char)(at + 1);
        for (at = 0; at < sizes[i]; at++)
            CHECK(o[sizeof(Pair) + at] == (char)(at + 1));
        CHECK(body_is_zero(neighbour, sizeof(Pair) + sizes[i]));
        CHECK_INT(PyObject_GC_IsTracked((PyObject *)o), 0);
        Py_DECREF((PyObject *)o);
        Py_DECREF((PyObject *)neighbour);
    }
}

static void s_035_extra_bytes_are_refused_with_items_and_overflow(void) {
    CHECK(PyUnstable_Object_GC_NewWithExtraData(&Row_Type, 8) == NULL);
    CHECK(PyErr_Occurred());
    PyErr_Clear();
    CHECK(PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, SIZE_MAX) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK(PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, PTRDIFF_MAX) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
}

static void s_036_extra_bytes_are_zero(void) {
    int round;
    for (round = 0; round < 3; round++) {
        char *o = (char *)PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, 333);
        MUST(o != NULL);
        CHECK(body_is_zero(o, sizeof(Pair) + 333));
        memset(o + sizeof(Pair), 0xff, 333);
        Py_DECREF((PyObject *)o);
    }
}

/* S-37 */
#define TAIL(o) (*(PyObject **)((char *)(o) + sizeof(Pair)))
static int tail_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(TAIL(self));
    return pair_traverse(self, visit, arg);
}
static int tail_clear(PyObject *self) {
    Py_CLEAR(TAIL(self));
    return pair_clear(self);
}
static void tail_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    Py_CLEAR(TAIL(self));
    pair_dealloc(self);
}

static void s_037_a_reference_in_the_tail_is_the_types_own_to_traverse(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Tail", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = tail_dealloc, .tp_traverse = tail_traverse, .tp_clear = tail_clear};
    long long before = LIVE();
    PyObject *o;
    ready(&type);
    o = PyUnstable_Object_GC_NewWithExtraData(&type, sizeof(PyObject *));
    MUST(o != NULL);
    TAIL(o) = o; /* its own reference */
    PyObject_GC_Track(o);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(LIVE(), before);
}

static void s_037_a_reference_in_the_tail_that_is_not_traversed_leaks(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Tail", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = tail_dealloc, .tp_traverse = pair_traverse, .tp_clear = tail_clear};
    long long before = LIVE();
    PyObject *o;
    ready(&type);
    o = PyUnstable_Object_GC_NewWithExtraData(&type, sizeof(PyObject *));
    MUST(o != NULL);
    TAIL(o) = o;
    PyObject_GC_Track(o);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(LIVE(), before + 1);
    CHECK(TAIL(o) == o);
    Py_CLEAR(TAIL(o));
    CHECK_INT(LIVE(), before);
}

static void s_038_the_tail_goes_with_the_object(void) {
    size_t bytes;
    PyObject *o = PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, 100);
    Py_DECREF(o);
    bytes = standstill_live_bytes();
    o = PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, 20000);
    MUST(o != NULL);
    CHECK(standstill_live_bytes() >= bytes + 20000);
    Py_DECREF(o);
    CHECK_INT(standstill_live_bytes(), bytes);
}

/* The form to prefer, with a number of fields that varies. */
static void s_039_items_do_the_same_in_the_stable_way(void) {
    long long before = LIVE();
    Row *r = row(3);
    r->items[2] = Py_NewRef((PyObject *)r);
    Py_DECREF(r);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(LIVE(), before);
}

/* The symbol is there; its tag is shown by a snippet. */
static void s_040_the_extra_data_allocator_is_exported(void) {
    PyObject *(*function)(PyTypeObject *, size_t) = PyUnstable_Object_GC_NewWithExtraData;
    CHECK(function != NULL);
}

static void s_041_a_resize_keeps_the_items(void) {
    long long before = LIVE();
    Row *r = gc_row(4);
    int i;
    for (i = 0; i < 4; i++)
        r->items[i] = (PyObject *)leaf();
    ((Leaf *)r->items[3])->number = 33;
    r = PyObject_GC_Resize(Row, r, 4000);
    MUST(r != NULL);
    CHECK_INT(Py_SIZE(r), 4000);
    CHECK_INT(Py_REFCNT((PyObject *)r), 1);
    CHECK_INT(((Leaf *)r->items[3])->number, 33);
    PyObject_GC_Track(r);
    PyGC_Collect();
    Py_DECREF(r);
    CHECK_INT(LIVE(), before);
}

static void s_041_a_bad_new_size_leaves_the_object(void) {
    Row *r = gc_row(4);
    CHECK(PyObject_GC_Resize(Row, r, -1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    CHECK(PyObject_GC_Resize(Row, r, PTRDIFF_MAX / 4) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK_INT(Py_SIZE(r), 4);
    CHECK_INT(Py_REFCNT((PyObject *)r), 1);
    Py_DECREF(r);
}

/* S-42 */
static void resize_without_memory(void) {
    Row *r = gc_row(4), *moved;
    r->items[1] = (PyObject *)leaf();
    moved = PyObject_GC_Resize(Row, r, 100000); /* more than the heap's limit */
    CHECK(moved == NULL);
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
    CHECK_INT(Py_SIZE(r), 4);
    CHECK(Py_TYPE(r->items[1]) == &Leaf_Type);
    moved = PyObject_GC_Resize(Row, r, 400);
    CHECK(moved != NULL && Py_TYPE(moved->items[1]) == &Leaf_Type);
    Py_DECREF(moved);
}

static void s_042_a_resize_without_memory_leaves_the_object(void) { in_small_heap(resize_without_memory); }

static void s_043_a_tracked_object_is_not_resized(void) {
    Row *r = gc_row(4);
    PyObject_GC_Track(r);
    CHECK(PyObject_GC_Resize(Row, r, 8) == NULL);
    EXPECT_ERROR(STANDSTILL_E_TRACKED_RESIZE);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)r), 1);
    CHECK_INT(Py_SIZE(r), 4);
    Py_DECREF(r);
}

static void s_044_an_object_without_items_is_not_resized(void) {
    Pair *p = PyObject_GC_New(Pair, &Pair_Type);
    Leaf *l = leaf();
    CHECK(PyObject_GC_Resize(Pair, p, 2) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_RESIZABLE);
    CHECK(PyObject_GC_Resize(Leaf, l, 2) == NULL);
    CHECK(PyErr_Occurred());
    PyErr_Clear();
    CHECK(PyObject_GC_Resize(Row, (Row *)NULL, 2) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
    Py_DECREF(p);
    Py_DECREF(l);
}

/* S-45 */
static PyTypeObject PlainVar_Type = {
    TYPE_HEAD
    .tp_name = "check.PlainVar",
    .tp_basicsize = sizeof(PyVarObject),
    .tp_itemsize = 8,
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

static void s_045_a_plain_object_with_items_is_not_resized(void) {
    PyVarObject *v;
    ready(&PlainVar_Type);
    v = PyObject_NewVar(PyVarObject, &PlainVar_Type, 3);
    MUST(v != NULL);
    CHECK(PyObject_GC_Resize(PyVarObject, v, 5) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_GC_OBJECT);
    CHECK_INT(Py_SIZE(v), 3);
    Py_DECREF(v);
}

static void s_046_an_object_that_others_hold_is_not_resized(void) {
    Row *r = gc_row(4);
    PyObject *weak;
    Py_INCREF(r);
    CHECK(PyObject_GC_Resize(Row, r, 4000) == NULL);
    EXPECT_ERROR(STANDSTILL_E_SHARED_RESIZE);
    CHECK_INT(Py_SIZE(r), 4);
    Py_DECREF(r);
    weak = weak_to(r);
    CHECK(PyObject_GC_Resize(Row, r, 4000) == NULL);
    EXPECT_ERROR(STANDSTILL_E_SHARED_RESIZE);
    CHECK_INT(Py_SIZE(r), 4);
    Py_DECREF(weak);
    Py_DECREF(r);
}

/* A weak reference that is gone, or that was cleared with its callback, prevents no resize. */
static void s_046_an_object_that_had_weak_references_is_resized(void) {
    long long before = LIVE();
    long called = 0;
    Row *r = gc_row(4), *other;
    PyObject *weak, *again;
    r->items[3] = (PyObject *)leaf();
    weak = weak_to(r);
    Py_DECREF(weak);
    weak = counting_weak(r, &called);
    Py_DECREF(weak);
    r = PyObject_GC_Resize(Row, r, 8);
    MUST(r != NULL);
    CHECK(r->items[3] != NULL && r->items[7] == NULL);
    CHECK_INT(called, 0);
    /* Weak references to the object at its new address, and to one at the old address, are new. */
    other = gc_row(4);
    weak = weak_to(r);
    again = weak_to(other);
    CHECK(is_alive(weak) && is_alive(again));
    CHECK(PyObject_GC_Resize(Row, r, 9) == NULL);
    EXPECT_ERROR(STANDSTILL_E_SHARED_RESIZE);
    Py_DECREF(weak);
    Py_DECREF(other);
    CHECK(!is_alive(again));
    Py_DECREF(again);
    r = PyObject_GC_Resize(Row, r, 9);
    MUST(r != NULL);
    Py_DECREF(r);
    CHECK_INT(LIVE(), before);
}

static void s_047_new_items_are_zero(void) {
    Row *r = gc_row(2);
    Py_ssize_t i;
    r = PyObject_GC_Resize(Row, r, 300);
    MUST(r != NULL);
    for (i = 0; i < 300; i++)
        r->items[i] = (PyObject *)&Leaf_Type;
    memset(r->items, 0, 300 * sizeof(PyObject *));
    for (i = 0; i < 300; i++)
        r->items[i] = (PyObject *)(uintptr_t)(i + 1);
    memset(r->items + 150, 0, 150 * sizeof(PyObject *));
    r = PyObject_GC_Resize(Row, r, 150);
    MUST(r != NULL);
    r = PyObject_GC_Resize(Row, r, 600);
    MUST(r != NULL);
    for (i = 0; i < 600; i++)
        CHECK(r->items[i] == (i < 150 ? (PyObject *)(uintptr_t)(i + 1) : NULL));
    memset(r->items, 0, 600 * sizeof(PyObject *));
    Py_DECREF(r);
}

static void s_047_cut_references_are_reported(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Declared", .tp_basicsize = ROW_SIZE,
                                .tp_itemsize = sizeof(PyObject *),
                                .tp_flags = GC_TYPE | STANDSTILL_TPFLAGS_ITEMS_ARE_REFERENCES,
                                .tp_dealloc = row_dealloc, .tp_traverse = row_traverse, .tp_clear = row_clear};
    PyObject *l = (PyObject *)leaf();
    Row *r;
    ready(&type);
    r = PyObject_GC_NewVar(Row, &type, 4);
    MUST(r != NULL);
    r->items[0] = Py_NewRef(l);
    r->items[3] = Py_NewRef(l);
    Py_XSETREF(r->items[3], NULL);
    r = PyObject_GC_Resize(Row, r, 3); /* as it should be */
    MUST(r != NULL);
    r->items[2] = l; /* not released before the cut */
    CHECK(PyObject_GC_Resize(Row, r, 2) == NULL);
    EXPECT_ERROR(STANDSTILL_E_CUT_REFERENCES);
    CHECK_INT(Py_SIZE(r), 3);
    CHECK(r->items[2] == l);
    Py_CLEAR(r->items[2]);
    r = PyObject_GC_Resize(Row, r, 2);
    MUST(r != NULL);
    CHECK_INT(Py_SIZE(r), 2);
    Py_DECREF(r);
}

static void s_048_plain_objects_are_modelled_alike(void) {
    long long before = LIVE();
    Leaf *l = PyObject_New(Leaf, &Leaf_Type);
    PyVarObject *v;
    ready(&PlainVar_Type);
    v = PyObject_NewVar(PyVarObject, &PlainVar_Type, 3);
    MUST(l && v);
    CHECK_INT(Py_REFCNT((PyObject *)l), 1);
    CHECK(Py_TYPE(l) == &Leaf_Type);
    CHECK_INT(Py_SIZE(v), 3);
    CHECK_INT(PyObject_IS_GC((PyObject *)l), 0);
    CHECK_INT(PyObject_IS_GC((PyObject *)v), 0);
    PyObject_Free(l);
    PyObject_Free(v);
    CHECK_INT(LIVE(), before);
}

static void s_049_an_allocation_never_collects(void) {
    int i;
    CHECK_INT(standstill_gc_set_threshold(1, 0, 0), 0);
    PyGC_Collect();
    calls.traversed = 0;
    for (i = 0; i < 3000; i++)
        garbage_ring(1);
    CHECK_INT(calls.traversed, 0);
    for (i = 0; i < 100 && calls.traversed == 0; i++)
        standstill_safepoint();
    CHECK(calls.traversed > 0);
    PyGC_Collect();
}

/* S-50 */
static void allocate_raw(void *arg) {
    (void)arg;
    CHECK(!standstill_is_attached());
    CHECK(PyObject_GC_New(Pair, &Pair_Type) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
    CHECK(PyObject_GC_NewVar(Row, &Row_Type, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
    CHECK(PyType_GenericAlloc(&Pair_Type, 0) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
    CHECK(PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
}

static void s_050_a_thread_that_is_not_attached_gets_nothing(void) {
    thread t;
    start_raw(&t, allocate_raw, NULL);
    join(&t);
}

static void s_050_a_detached_thread_gets_nothing(void) {
    Py_BEGIN_ALLOW_THREADS
    allocate_raw(NULL);
    Py_END_ALLOW_THREADS
}

const struct test alloc_tests[] = {
    TEST_AS(s_020_memory_from_elsewhere_is_reported_and_not_tracked, CHECKED_ONLY),
    TEST(s_021_gc_new_gives_an_object_of_the_type),
    TEST(s_021_gc_new_fails_with_an_error),
    TEST(s_021_gc_new_evaluates_its_arguments_once),
    TEST(s_022_the_body_is_zero),
    TEST(s_023_an_object_starts_untracked_and_can_be_dropped),
    TEST(s_024_each_allocator_is_for_its_kind_of_type),
    TEST(s_025_a_constructor_through_the_slot_honours_a_subclass),
    TEST(s_026_an_empty_slot_works_without_an_allocator_of_ones_own),
    TEST(s_027_objects_of_all_allocators_are_freed),
    TEST(s_028_generic_alloc_zeroes_and_sets_the_sizes),
    TEST(s_028_generic_alloc_refuses_bad_sizes),
    TEST(s_029_generic_alloc_tracks_and_survives_a_collection_while_empty),
    TEST(s_030_a_custom_slot_is_called_once_for_each_construction),
    TEST(s_031_a_custom_free_is_called_once_for_each_object),
    TEST(s_032_gc_newvar_has_room_for_the_items),
    TEST(s_032_the_size_is_rounded_up_to_pointers),
    TEST(s_033_gc_newvar_refuses_bad_sizes),
    TEST(s_034_the_slot_gives_the_same_layout),
    TEST(s_035_extra_bytes_begin_at_the_basic_size),
    TEST(s_035_extra_bytes_are_refused_with_items_and_overflow),
    TEST(s_036_extra_bytes_are_zero),
    TEST(s_037_a_reference_in_the_tail_is_the_types_own_to_traverse),
    TEST(s_037_a_reference_in_the_tail_that_is_not_traversed_leaks),
    TEST(s_038_the_tail_goes_with_the_object),
    TEST(s_039_items_do_the_same_in_the_stable_way),
    TEST(s_040_the_extra_data_allocator_is_exported),
    TEST(s_041_a_resize_keeps_the_items),
    TEST(s_041_a_bad_new_size_leaves_the_object),
    TEST(s_042_a_resize_without_memory_leaves_the_object),
    TEST(s_043_a_tracked_object_is_not_resized),
    TEST(s_044_an_object_without_items_is_not_resized),
    TEST(s_045_a_plain_object_with_items_is_not_resized),
    TEST(s_046_an_object_that_others_hold_is_not_resized),
    TEST(s_046_an_object_that_had_weak_references_is_resized),
    TEST(s_047_new_items_are_zero),
    TEST_AS(s_047_cut_references_are_reported, CHECKED_ONLY),
    TEST(s_048_plain_objects_are_modelled_alike),
    TEST(s_049_an_allocation_never_collects),
    TEST(s_050_a_thread_that_is_not_attached_gets_nothing),
    TEST(s_050_a_detached_thread_gets_nothing),
    TESTS_END,
};
