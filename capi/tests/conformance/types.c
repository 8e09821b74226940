/* Sections A and B: types, flags, readiness, inheritance. */

#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

static void s_001_a_type_that_does_not_opt_in_keeps_its_cycles(void) {
    Pair *a = pair(NULL, NULL);
    Holder *h = holder(a);
    long long before;
    set_a(a, h);
    Py_DECREF(h);
    Py_DECREF(a); /* a <-> h, no other object refers to them */
    before = LIVE();
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(LIVE(), before);
    CHECK(h->ref == (PyObject *)a && a->a == (PyObject *)h);
    set_a(a, NULL); /* the cycle taken apart by hand */
    CHECK_INT(LIVE(), before - 2);
    CHECK_INT(calls.freed, 1);
}

static void s_002_the_flag_of_a_ready_type_is_fixed(void) {
    Pair *p;
    CHECK((Pair_Type.tp_flags & Py_TPFLAGS_HAVE_GC) != 0);
    CHECK_INT(Py_TPFLAGS_HAVE_GC, 1 << 14);
    Pair_Type.tp_flags &= ~(unsigned long)Py_TPFLAGS_HAVE_GC;
    p = pair(NULL, NULL);
    PyType_Ready(&Pair_Type);
    PyErr_Clear();
    CHECK(PyType_HasFeature(&Pair_Type, Py_TPFLAGS_HAVE_GC));
    CHECK(PyType_GetFlags(&Pair_Type) & Py_TPFLAGS_HAVE_GC);
    CHECK_INT(PyObject_IS_GC((PyObject *)p), 1);
    if (check_is_checked)
        EXPECT_MISUSE(STANDSTILL_E_WRITTEN_AFTER_READY, -1);
    forget_misuses(); /* without checked mode a report is allowed, and not needed */
    Pair_Type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    Py_DECREF(p);
}

static void s_003_flag_and_handler_make_a_container_type(void) {
    Pair *p = pair(NULL, NULL);
    PyGC_Collect();
    CHECK(calls.traversed > 0);
    Py_DECREF(p);
}

static void s_003_a_handler_without_the_flag_is_never_called(void) {
    static PyTypeObject type = {
        TYPE_HEAD
        .tp_name = "check.Unflagged",
        .tp_basicsize = sizeof(Pair),
        .tp_flags = Py_TPFLAGS_DEFAULT,
        .tp_traverse = pair_traverse,
    };
    Pair *p;
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    CHECK_INT(PyObject_IS_GC((PyObject *)p), 0);
    PyGC_Collect();
    CHECK_INT(calls.traversed, 0);
    Py_DECREF(p);
}

static void s_004_a_cycle_of_mutable_objects_is_freed(void) {
    long long before = LIVE();
    garbage_ring(2);
    CHECK_INT(LIVE(), before + 2);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(LIVE(), before);
    CHECK_INT(calls.freed, 2);
}

/* S-05 */
static PyTypeObject Unclearable_Type = {
    TYPE_HEAD
    .tp_name = "check.Unclearable",
    .tp_basicsize = sizeof(Pair),
    .tp_dealloc = pair_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = pair_traverse,
};

static void s_005_one_clear_handler_frees_the_whole_cycle(void) {
    long long before = LIVE();
    Pair *a, *b;
    ready(&Unclearable_Type);
    a = pair_of(&Unclearable_Type, NULL, NULL);
    b = pair(a, NULL);
    set_a(a, b);
    Py_DECREF(a);
    Py_DECREF(b);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(LIVE(), before);
}

static void s_005_a_cycle_without_a_clear_handler_stays_and_is_counted_again(void) {
    long long before = LIVE();
    Pair *a, *b;
    int round;
    ready(&Unclearable_Type);
    a = garbage_ring_of(&Unclearable_Type, 2);
    b = (Pair *)a->a;
    for (round = 0; round < 2; round++) {
        CHECK_INT(PyGC_Collect(), 2);
        CHECK_INT(LIVE(), before + 2);
        CHECK(b->a == (PyObject *)a && a->a == (PyObject *)b);
        CHECK_INT(PyObject_GC_IsTracked((PyObject *)a), 1);
        CHECK_INT(Py_REFCNT((PyObject *)a), 1);
    }
    set_a(a, NULL);
    CHECK_INT(LIVE(), before);
}

/* S-06 */
static PyObject *alloc_6(PyTypeObject *type, Py_ssize_t n) { return PyType_GenericAlloc(type, n); }
static void free_6(void *object) { PyObject_GC_Del(object); }

static void s_006_every_field_can_be_set_and_read_back_static(void) {
    static PyTypeObject type = {
        TYPE_HEAD
        .tp_name = "check.Full",
        .tp_doc = "All of it",
        .tp_basicsize = sizeof(Pair),
        .tp_itemsize = 8,
        .tp_dealloc = pair_dealloc,
        .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
        .tp_traverse = pair_traverse,
        .tp_clear = pair_clear,
        .tp_base = &PyBaseObject_Type,
        .tp_alloc = alloc_6,
        .tp_free = free_6,
        .tp_finalize = pair_finalize,
    };
    ready(&type);
    CHECK(strcmp(type.tp_name, "check.Full") == 0 && strcmp(type.tp_doc, "All of it") == 0);
    CHECK_INT(type.tp_basicsize, sizeof(Pair));
    CHECK_INT(type.tp_itemsize, 8);
    CHECK(type.tp_dealloc == pair_dealloc && type.tp_traverse == pair_traverse && type.tp_clear == pair_clear);
    CHECK(type.tp_alloc == alloc_6 && type.tp_free == free_6 && type.tp_finalize == pair_finalize);
    CHECK(type.tp_base == &PyBaseObject_Type);
    CHECK((type.tp_flags & Py_TPFLAGS_HAVE_GC) && (type.tp_flags & Py_TPFLAGS_READY));
}

static void s_006_every_field_can_be_set_and_read_back_spec(void) {
    PyType_Slot slots[] = {
        {Py_tp_doc, "All of it"},         {Py_tp_dealloc, FN(heap_pair_dealloc)}, {Py_tp_traverse, FN(heap_pair_traverse)},
        {Py_tp_clear, FN(pair_clear)},    {Py_tp_alloc, FN(alloc_6)},        {Py_tp_free, FN(free_6)},
        {Py_tp_finalize, FN(pair_finalize)}, {Py_tp_base, &Pair_Type},       {0, NULL},
    };
    PyTypeObject *type = type_of_slots("check.Full", sizeof(Pair) + 16, 0, GC_TYPE, slots);
    MUST(type != NULL);
    CHECK(strcmp(type->tp_name, "check.Full") == 0 || strcmp(type->tp_name, "Full") == 0);
    CHECK(type->tp_doc && strcmp(type->tp_doc, "All of it") == 0);
    CHECK_INT(type->tp_basicsize, sizeof(Pair) + 16);
    CHECK_INT(type->tp_itemsize, 0);
    CHECK(type->tp_dealloc == heap_pair_dealloc && type->tp_traverse == heap_pair_traverse && type->tp_clear == pair_clear);
    CHECK(type->tp_alloc == alloc_6 && type->tp_free == free_6 && type->tp_finalize == pair_finalize);
    CHECK(type->tp_base == &Pair_Type);
    CHECK((type->tp_flags & Py_TPFLAGS_HAVE_GC) && (type->tp_flags & Py_TPFLAGS_HEAPTYPE));
    CHECK(PyType_GetSlot(type, Py_tp_traverse) == FN(heap_pair_traverse));
    CHECK(PyType_GetSlot(type, Py_tp_clear) == FN(pair_clear));
    CHECK(PyType_GetSlot(type, Py_tp_finalize) == FN(pair_finalize));
    Py_DECREF(type);
}

static int other_traverse(PyObject *self, visitproc visit, void *arg) {
    (void)self;
    (void)visit;
    (void)arg;
    return 0;
}

static void s_006_a_write_after_readiness_has_no_effect(void) {
    Pair *p;
    Pair_Type.tp_traverse = other_traverse;
    p = garbage_ring(2);
    CHECK_INT(PyGC_Collect(), 2); /* found by the handler of before */
    CHECK(calls.traversed > 0);
    (void)p;
    if (check_is_checked)
        EXPECT_MISUSE(STANDSTILL_E_WRITTEN_AFTER_READY, -1);
    Pair_Type.tp_traverse = pair_traverse;
}

static void s_007_sizes_are_those_asked_for(void) {
    Row *r = row(5);
    Pair *p = pair(NULL, NULL);
    CHECK_INT(sizeof(PyObject), 24);
    CHECK_INT(sizeof(PyVarObject), 32);
    CHECK_INT(Py_TYPE(p)->tp_basicsize, sizeof(Pair));
    CHECK_INT(Py_SIZE(r), 5);
    /* the whole of both may be written without touching a neighbour */
    memset((char *)p + sizeof(PyObject), 0, sizeof(Pair) - sizeof(PyObject));
    memset(r->items, 0, 5 * sizeof(PyObject *));
    Py_DECREF(p);
    Py_DECREF(r);
}

/* Writes over the whole head, or over the word with the type: with the address of nothing, or of no type. */
static void damage(Pair *p, int how) {
    uintptr_t word = how == 1 ? 8 : (uintptr_t)&Pair_Type + 1;
    if (how == 0)
        memset(p, 0x5a, sizeof(PyObject));
    else
        memcpy((char *)p + sizeof(PyObject) - sizeof word, &word, sizeof word);
}

static void stops_the_process(int how) {
    Pair *p = pair(NULL, NULL);
    char text[4096], address[32];
    size_t used = 0;
    ssize_t got;
    int ends[2], status;
    pid_t child;
    CHECK(pipe(ends) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        dup2(ends[1], 2);
        damage(p, how);
        PyObject_GC_UnTrack(p);
        PyGC_Collect();
        _Exit(0);
    }
    close(ends[1]);
    while (used < sizeof text - 1 && (got = read(ends[0], text + used, sizeof text - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
    snprintf(address, sizeof address, "%p", (void *)p);
    CHECK(strstr(text, address) != NULL);
    Py_DECREF(p);
}

static void s_007_a_damaged_header_stops_the_process_with_its_address(void) {
    int how;
    for (how = 0; how < 3; how++)
        stops_the_process(how);
}

static void s_008_a_type_and_its_instances_die_together(void) {
    long long before = LIVE();
    PyTypeObject *type = heap_pair_type("check.Own", 0, NULL);
    Pair *p = pair_of(type, NULL, NULL);
    PyObject *weak = weak_to(type);
    CHECK(PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE));
    set_a(p, p);
    Py_DECREF(p);
    Py_DECREF(type);
    CHECK(is_alive(weak));
    CHECK(PyGC_Collect() >= 2);
    CHECK(!is_alive(weak));
    Py_DECREF(weak);
    CHECK_INT(LIVE(), before);
}

static void s_008_a_type_with_instances_outlives_its_last_reference(void) {
    long long before = LIVE();
    PyTypeObject *type = heap_pair_type("check.Own", 0, NULL);
    Pair *p = pair_of(type, NULL, NULL);
    PyObject *weak = weak_to(type);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK(is_alive(weak));
    CHECK(Py_TYPE(p) == type);
    Py_DECREF(p);
    PyGC_Collect(); /* a type may be part of a cycle of its own */
    CHECK(!is_alive(weak));
    Py_DECREF(weak);
    CHECK_INT(LIVE(), before);
}

/* Names, argument orders and results, as pointers of exactly these types. */
static void s_009_the_stable_functions_have_their_types(void) {
    void (*track)(void *) = PyObject_GC_Track;
    void (*untrack)(void *) = PyObject_GC_UnTrack;
    void (*del)(void *) = PyObject_GC_Del;
    Py_ssize_t (*collect)(void) = PyGC_Collect;
    int (*is_tracked)(PyObject *) = PyObject_GC_IsTracked;
    int (*is_finalized)(PyObject *) = PyObject_GC_IsFinalized;
    int (*enable)(void) = PyGC_Enable;
    int (*disable)(void) = PyGC_Disable;
    int (*is_enabled)(void) = PyGC_IsEnabled;
    visitproc visit = NULL;
    traverseproc traverse = pair_traverse;
    inquiry clear = pair_clear;
    int (*visit_as)(PyObject *, void *) = visit;
    int (*traverse_as)(PyObject *, visitproc, void *) = traverse;
    int (*clear_as)(PyObject *) = clear;
    void *(*type_data)(PyObject *, PyTypeObject *) = PyObject_GetTypeData_DuringGC;
    void *(*item_data)(PyObject *) = PyObject_GetItemData_DuringGC;
    void *(*type_state)(PyTypeObject *) = PyType_GetModuleState_DuringGC;
    void *(*state)(PyObject *) = PyModule_GetState_DuringGC;
    int (*token)(PyObject *, void **) = PyModule_GetToken_DuringGC;
    int (*base)(PyTypeObject *, void *, PyTypeObject **) = PyType_GetBaseByToken_DuringGC;
    PyObject *(*module)(PyTypeObject *) = PyType_GetModule_DuringGC;
    PyObject *(*by_token)(PyTypeObject *, const void *) = PyType_GetModuleByToken_DuringGC;
    CHECK(track && untrack && del && collect && is_tracked && is_finalized && enable && disable && is_enabled);
    CHECK(!visit_as && traverse_as && clear_as);
    CHECK(type_data && item_data && type_state && state && token && base && module && by_token);
}

static void s_011_ready_twice_gives_0_twice(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Twice", .tp_basicsize = sizeof(Leaf)};
    PyTypeObject after;
    CHECK_INT(PyType_Ready(&type), 0);
    after = type;
    CHECK_INT(PyType_Ready(&type), 0);
    CHECK(memcmp(&after, &type, sizeof type) == 0);
}

static void s_011_an_allocation_before_readiness_fails(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Early", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_traverse = pair_traverse};
    long long before = LIVE();
    CHECK(PyType_GenericAlloc(&type, 0) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_READY);
    CHECK(PyObject_GC_New(Pair, &type) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_READY);
    CHECK_INT(LIVE(), before);
}

static void s_011_a_failed_type_can_be_corrected(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Retried", .tp_basicsize = sizeof(Pair),
                                .tp_dealloc = pair_dealloc, .tp_flags = GC_TYPE};
    Pair *p;
    CHECK_INT(PyType_Ready(&type), -1);
    CHECK(strstr(standstill_error_message(), "check.Retried") != NULL);
    EXPECT_ERROR(STANDSTILL_E_MISSING_TRAVERSE);
    CHECK(!(type.tp_flags & Py_TPFLAGS_READY));
    type.tp_traverse = pair_traverse;
    CHECK_INT(PyType_Ready(&type), 0);
    p = pair_of(&type, NULL, NULL);
    Py_DECREF(p);
}

static void s_011_null_is_an_error(void) {
    CHECK_INT(PyType_Ready(NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NULL_ARGUMENT);
}

static void s_012_a_bad_spec_leaks_nothing(void) {
    PyType_Slot no_traverse[] = {{Py_tp_clear, FN(pair_clear)}, {0, NULL}};
    PyType_Spec spec = {"check.Bad", sizeof(Pair), 0, GC_TYPE, no_traverse};
    PyTypeObject *base = heap_pair_type("check.Base", 0, NULL);
    Py_ssize_t count = Py_REFCNT((PyObject *)base);
    long long before = LIVE();
    CHECK(PyType_FromSpec(&spec) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MISSING_TRAVERSE);
    CHECK(PyType_FromSpecWithBases(&spec, (PyObject *)base) == NULL);
    EXPECT_ERROR(STANDSTILL_E_MISSING_TRAVERSE);
    CHECK_INT(Py_REFCNT((PyObject *)base), count);
    CHECK_INT(LIVE(), before);
    Py_DECREF(base);
}

static void s_012_a_good_spec_is_ready_at_once(void) {
    PyTypeObject *type = heap_pair_type("check.Good", 0, NULL);
    Pair *p = pair_of(type, NULL, NULL);
    CHECK(type->tp_flags & Py_TPFLAGS_READY);
    Py_DECREF(p);
    Py_DECREF(type);
}

static void s_013_a_child_without_flag_and_handlers_inherits_all_three(void) {
    static PyTypeObject child = {TYPE_HEAD .tp_name = "check.Child", .tp_basicsize = sizeof(Pair) + 8,
                                 .tp_base = &Pair_Type, .tp_flags = Py_TPFLAGS_BASETYPE};
    static PyTypeObject grandchild = {TYPE_HEAD .tp_name = "check.Grandchild", .tp_base = &child};
    long long before = LIVE();
    Pair *p;
    ready(&child);
    ready(&grandchild);
    CHECK(grandchild.tp_flags & Py_TPFLAGS_HAVE_GC);
    CHECK(grandchild.tp_traverse == pair_traverse && grandchild.tp_clear == pair_clear);
    CHECK_INT(grandchild.tp_basicsize, sizeof(Pair) + 8);
    p = garbage_ring_of(&grandchild, 2);
    CHECK_INT(PyObject_IS_GC((PyObject *)p), 1);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK(calls.traversed > 0);
    CHECK_INT(calls.freed, 2);
    CHECK_INT(LIVE(), before);
}

static void s_013_a_container_base_that_is_not_the_primary_one_is_refused(void) {
    PyType_Slot slots[] = {{0, NULL}};
    PyType_Spec spec = {"check.Mixed", 0, 0, Py_TPFLAGS_DEFAULT, slots};
    PyType_Slot plain_slots[] = {{Py_tp_base, &Leaf_Type}, {0, NULL}};
    PyTypeObject *plain = type_of_slots("check.Plain", sizeof(Leaf), 0, Py_TPFLAGS_BASETYPE, plain_slots);
    PyTypeObject *container = heap_pair_type("check.Container", 0, NULL);
    PyObject *bases;
    MUST(plain != NULL);
    bases = PyTuple_Pack(2, (PyObject *)plain, (PyObject *)container);
    CHECK(PyType_FromSpecWithBases(&spec, bases) == NULL);
    CHECK(strstr(standstill_error_message(), "Plain") && strstr(standstill_error_message(), "Container"));
    EXPECT_ERROR(STANDSTILL_E_MIXED_BASES);
    Py_DECREF(bases);
    Py_DECREF(plain);
    Py_DECREF(container);
}

static void s_014_handlers_without_the_flag_under_a_container_base_are_refused(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Halfway", .tp_basicsize = sizeof(Pair),
                                .tp_base = &Pair_Type, .tp_traverse = pair_traverse};
    CHECK_INT(PyType_Ready(&type), -1);
    CHECK(strstr(standstill_error_message(), "check.Halfway") != NULL);
    EXPECT_ERROR(STANDSTILL_E_HANDLERS_WITHOUT_FLAG);
    type.tp_traverse = NULL;
    type.tp_clear = pair_clear;
    CHECK_INT(PyType_Ready(&type), -1);
    EXPECT_ERROR(STANDSTILL_E_HANDLERS_WITHOUT_FLAG);
}

static void s_015_a_child_with_the_flag_inherits_no_handler(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Alone", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_base = &Pair_Type, .tp_traverse = pair_traverse};
    ready(&type);
    CHECK(type.tp_clear == NULL);
    CHECK(type.tp_traverse == pair_traverse);
}

static void s_015_a_child_with_the_flag_needs_a_traverse_of_its_own(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Alone", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_base = &Pair_Type};
    CHECK_INT(PyType_Ready(&type), -1);
    EXPECT_ERROR(STANDSTILL_E_MISSING_TRAVERSE);
}

static void s_016_the_flag_without_a_traverse_handler_is_an_error(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Mute", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE};
    PyType_Slot none[] = {{0, NULL}};
    CHECK_INT(PyType_Ready(&type), -1);
    CHECK(strstr(standstill_error_message(), "check.Mute") != NULL);
    EXPECT_ERROR(STANDSTILL_E_MISSING_TRAVERSE);
    CHECK(type_of_slots("check.MuteToo", sizeof(Pair), 0, GC_TYPE, none) == NULL);
    CHECK(strstr(standstill_error_message(), "MuteToo") != NULL);
    EXPECT_ERROR(STANDSTILL_E_MISSING_TRAVERSE);
}

static void s_017_a_container_type_gets_the_containers_free(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Default", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = pair_dealloc, .tp_traverse = pair_traverse};
    ready(&type);
    CHECK(type.tp_free == PyObject_GC_Del);
    CHECK(Leaf_Type.tp_free == PyObject_Free);
}

static void s_017_the_plain_free_in_a_container_base_is_refused(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.WrongFree", .tp_basicsize = sizeof(Pair),
                                .tp_flags = GC_TYPE | Py_TPFLAGS_BASETYPE, .tp_traverse = pair_traverse,
                                .tp_free = PyObject_Free};
    CHECK_INT(PyType_Ready(&type), -1);
    EXPECT_ERROR(STANDSTILL_E_BAD_FREE);
}

static void s_018_an_empty_alloc_slot_is_filled(void) {
    static PyTypeObject parent = {TYPE_HEAD .tp_name = "check.Parent", .tp_basicsize = sizeof(Leaf),
                                  .tp_flags = Py_TPFLAGS_BASETYPE, .tp_alloc = alloc_6};
    static PyTypeObject child = {TYPE_HEAD .tp_name = "check.Child", .tp_base = &parent};
    ready(&parent);
    ready(&child);
    CHECK(Leaf_Type.tp_alloc == PyType_GenericAlloc);
    CHECK(Pair_Type.tp_alloc == PyType_GenericAlloc);
    CHECK(child.tp_alloc == alloc_6);
}

static void s_019_a_missing_dealloc_is_supplied(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Generic", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_traverse = pair_traverse, .tp_clear = pair_clear, .tp_finalize = pair_finalize};
    long long before = LIVE();
    PyObject *weak;
    Pair *p;
    ready(&type);
    CHECK(type.tp_dealloc != NULL);
    p = pair_of(&type, (PyObject *)leaf(), NULL);
    Py_DECREF(p->a); /* p alone owns the leaf */
    weak = weak_to(p);
    Py_DECREF(p);
    CHECK_INT(calls.finalized, 1);
    CHECK_INT(calls.cleared, 1);
    CHECK(!is_alive(weak));
    Py_DECREF(weak);
    CHECK_INT(LIVE(), before);
}

static void s_019_the_supplied_dealloc_calls_that_of_a_c_base(void) {
    PyType_Slot slots[] = {{Py_tp_base, &Pair_Type}, {Py_tp_finalize, FN(pair_finalize)}, {0, NULL}};
    long long before = LIVE();
    PyTypeObject *type = type_of_slots("check.Derived", sizeof(Pair), 0, Py_TPFLAGS_DEFAULT, slots);
    Py_ssize_t count;
    Pair *p;
    MUST(type != NULL);
    count = Py_REFCNT((PyObject *)type);
    p = pair_of(type, (PyObject *)leaf(), NULL);
    Py_DECREF(p->a);
    Py_DECREF(p);
    CHECK_INT(calls.freed, 1); /* pair_dealloc ran */
    CHECK_INT(calls.finalized, 1);
    PyGC_Collect(); /* the type's counts are settled at a stop at the latest */
    CHECK_INT(Py_REFCNT((PyObject *)type), count);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
}

/* A tuple's items lie behind the fields of a derived type, and a string's bytes too. */
static void a_type_derived_from_tuple_may_have_fields_of_its_own(void) {
    typedef struct {
        PyVarObject head;
        long first, second;
    } Fields;
    PyType_Slot slots[] = {{Py_tp_base, &PyTuple_Type}, {0, NULL}};
    long long before = LIVE();
    PyTypeObject *type = type_of_slots("check.Fields", sizeof(Fields), 0, Py_TPFLAGS_DEFAULT, slots);
    PyObject *text = PyUnicode_FromString("text");
    Fields *object;
    MUST(type != NULL && text != NULL);
    object = (Fields *)type->tp_alloc(type, 2);
    MUST(object != NULL);
    object->first = 7;
    object->second = 8;
    CHECK_INT(PyTuple_SetItem((PyObject *)object, 0, text), 0);
    CHECK(PyTuple_GetItem((PyObject *)object, 0) == text);
    CHECK(PyTuple_GetItem((PyObject *)object, 1) == NULL);
    PyErr_Clear();
    PyGC_Collect();
    CHECK_INT(object->first, 7);
    CHECK_INT(object->second, 8);
    Py_DECREF(object);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
}

/* The number of items lies behind the head, where a base without items has its first field. */
static void items_behind_the_fields_of_a_base_are_refused(void) {
    PyType_Slot under_module[] = {{Py_tp_base, &PyModule_Type}, {0, NULL}};
    PyType_Slot under_leaf[] = {{Py_tp_base, &Leaf_Type}, {0, NULL}};
    PyType_Slot under_object[] = {{Py_tp_base, &PyBaseObject_Type}, {0, NULL}};
    static PyTypeObject fixed = {TYPE_HEAD .tp_name = "check.Fixed", .tp_base = &Pair_Type,
                                 .tp_basicsize = sizeof(Pair), .tp_itemsize = 8, .tp_flags = Py_TPFLAGS_DEFAULT};
    PyTypeObject *items;
    CHECK(type_of_slots("check.Module", 0, 8, Py_TPFLAGS_DEFAULT, under_module) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    CHECK(type_of_slots("check.Module", -16, 8, Py_TPFLAGS_DEFAULT, under_module) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    CHECK(type_of_slots("check.Leaf", 64, 8, Py_TPFLAGS_DEFAULT, under_leaf) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    CHECK_INT(PyType_Ready(&fixed), -1);
    EXPECT_ERROR(STANDSTILL_E_BAD_SIZE);
    items = type_of_slots("check.Items", sizeof(PyVarObject), 8, Py_TPFLAGS_DEFAULT, under_object);
    MUST(items != NULL);
    Py_DECREF(items);
}

/* A static type that is not ready is an object without a type. */
static PyTypeObject Unready_Type = {TYPE_HEAD .tp_name = "check.Unready", .tp_basicsize = sizeof(Leaf)};
static PyObject *const unready = (PyObject *)&Unready_Type;

static void misuse_of_an_unready_type_is_reported(void) {
    PyObject_GC_Track(unready);
    EXPECT_MISUSE(STANDSTILL_E_NOT_GC_OBJECT, 1);
    PyObject_GC_UnTrack(unready);
    EXPECT_MISUSE(STANDSTILL_E_NOT_GC_OBJECT, 1);
    PyObject_GC_Del(unready);
    EXPECT_MISUSE(STANDSTILL_E_WRONG_ALLOCATOR, 1);
    PyObject_Free(unready);
    EXPECT_MISUSE(STANDSTILL_E_WRONG_ALLOCATOR, 1);
    PyObject_CallFinalizer(unready);
    EXPECT_MISUSE(STANDSTILL_E_NOT_READY, 1);
}

static void questions_about_an_unready_type_are_errors(void) {
    static PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "check", .m_size = 8};
    PyType_Slot none[] = {{0, NULL}};
    PyType_Spec spec = {"check.OfModule", 0, 0, Py_TPFLAGS_DEFAULT, NULL};
    spec.slots = none;
    CHECK(PyObject_GC_Resize(Row, (Row *)unready, 3) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_GC_OBJECT);
    CHECK(PyObject_GetTypeData(unready, &Leaf_Type) == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    CHECK(PyObject_GetItemData(unready) == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    CHECK(PyModule_FromDefAndSpec(&def, unready) == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    CHECK(PyType_FromModuleAndSpec(unready, &spec, NULL) == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
}

static void the_name_of_a_type_is_utf_8(void) {
    static PyTypeObject fixed = {TYPE_HEAD .tp_name = "check.\xff", .tp_basicsize = sizeof(Leaf)};
    static PyModuleDef def = {PyModuleDef_HEAD_INIT, .m_name = "check\xff", .m_size = 8};
    PyType_Slot none[] = {{0, NULL}};
    CHECK(type_of_slots("check.\xfe", sizeof(Leaf), 0, Py_TPFLAGS_DEFAULT, none) == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    CHECK_INT(PyType_Ready(&fixed), -1);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    CHECK(PyModule_Create(&def) == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
}

static void an_allocated_string_is_empty(void) {
    PyObject *empty = PyUnicode_Type.tp_alloc(&PyUnicode_Type, 0);
    const char *text;
    MUST(empty != NULL);
    text = PyUnicode_AsUTF8(empty);
    CHECK(text != NULL && text[0] == 0);
    Py_DECREF(empty);
}

const struct test types_tests[] = {
    TEST(s_001_a_type_that_does_not_opt_in_keeps_its_cycles),
    TEST(s_002_the_flag_of_a_ready_type_is_fixed),
    TEST(s_003_flag_and_handler_make_a_container_type),
    TEST(s_003_a_handler_without_the_flag_is_never_called),
    TEST(s_004_a_cycle_of_mutable_objects_is_freed),
    TEST(s_005_one_clear_handler_frees_the_whole_cycle),
    TEST(s_005_a_cycle_without_a_clear_handler_stays_and_is_counted_again),
    TEST(s_006_every_field_can_be_set_and_read_back_static),
    TEST(s_006_every_field_can_be_set_and_read_back_spec),
    TEST(s_006_a_write_after_readiness_has_no_effect),
    TEST(s_007_sizes_are_those_asked_for),
    TEST_AS(s_007_a_damaged_header_stops_the_process_with_its_address, CHECKED_ONLY),
    TEST(s_008_a_type_and_its_instances_die_together),
    TEST(s_008_a_type_with_instances_outlives_its_last_reference),
    TEST(s_009_the_stable_functions_have_their_types),
    TEST(s_011_ready_twice_gives_0_twice),
    TEST(s_011_an_allocation_before_readiness_fails),
    TEST(s_011_a_failed_type_can_be_corrected),
    TEST(s_011_null_is_an_error),
    TEST(s_012_a_bad_spec_leaks_nothing),
    TEST(s_012_a_good_spec_is_ready_at_once),
    TEST(s_013_a_child_without_flag_and_handlers_inherits_all_three),
    TEST(s_013_a_container_base_that_is_not_the_primary_one_is_refused),
    TEST(s_014_handlers_without_the_flag_under_a_container_base_are_refused),
    TEST(s_015_a_child_with_the_flag_inherits_no_handler),
    TEST(s_015_a_child_with_the_flag_needs_a_traverse_of_its_own),
    TEST(s_016_the_flag_without_a_traverse_handler_is_an_error),
    TEST(s_017_a_container_type_gets_the_containers_free),
    TEST(s_017_the_plain_free_in_a_container_base_is_refused),
    TEST(s_018_an_empty_alloc_slot_is_filled),
    TEST(s_019_a_missing_dealloc_is_supplied),
    TEST(s_019_the_supplied_dealloc_calls_that_of_a_c_base),
    TEST(a_type_derived_from_tuple_may_have_fields_of_its_own),
    TEST(an_allocated_string_is_empty),
    TEST(items_behind_the_fields_of_a_base_are_refused),
    TEST(misuse_of_an_unready_type_is_reported),
    TEST(questions_about_an_unready_type_are_errors),
    TEST(the_name_of_a_type_is_utf_8),
    TESTS_END,
};
