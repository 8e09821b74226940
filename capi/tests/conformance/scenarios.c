/* Scenarios of CPython's own tests that need types made at run time, or C. The others are in the library's
 * tests/scenarios/. */

#include "check.h"

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

/* Classes as objects: heap types whose own dictionaries refer to things. */
static void g_04_a_class_with_itself_as_attribute(void) {
    long long before = LIVE();
    PyTypeObject *type = heap_pair_type("check.Self", 0, NULL);
    PyObject_SetAttrString((PyObject *)type, "me", (PyObject *)type);
    Py_DECREF(type);
    CHECK(PyGC_Collect() != 0);
    CHECK_INT(LIVE(), before);
}

static void g_05_a_class_alone_leaves_nothing(void) {
    long long before = LIVE();
    Py_DECREF(heap_pair_type("check.Plain", 0, NULL));
    PyGC_Collect(); /* a class here need not be cyclic by itself */
    CHECK_INT(LIVE(), before);
}

static void g_07_a_class_of_two_bases(void) {
    long long before = LIVE();
    PyType_Slot none[] = {{0, NULL}};
    PyType_Spec spec = {"check.Both", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, none};
    PyTypeObject *first = heap_pair_type("check.First", 0, NULL), *second, *both;
    PyObject *bases;
    Pair *p;
    second = type_of_slots("check.Second", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, none);
    MUST(second != NULL);
    bases = PyTuple_Pack(2, (PyObject *)first, (PyObject *)second);
    both = (PyTypeObject *)PyType_FromSpecWithBases(&spec, bases);
    MUST(both != NULL);
    Py_DECREF(bases);
    CHECK(PyType_IsSubtype(both, first) && PyType_IsSubtype(both, second));
    p = pair_of(both, NULL, NULL);
    set_a(p, p);
    Py_DECREF(p);
    CHECK(PyGC_Collect() != 0);
    CHECK_INT(calls.freed, 1);
    p = pair_of(both, NULL, NULL);
    PyObject_SetAttrString((PyObject *)both, "instance", (PyObject *)p);
    Py_DECREF(p);
    Py_DECREF(first);
    Py_DECREF(second);
    Py_DECREF(both);
    CHECK(PyGC_Collect() != 0);
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(LIVE(), before);
}

static void g_06_an_instance_that_is_its_own_attribute(void) {
    long long before = LIVE();
    PyTypeObject *type = heap_pair_type("check.Own", 0, NULL);
    Pair *p = pair_of(type, NULL, NULL);
    set_a(p, p);
    Py_DECREF(p);
    CHECK(PyGC_Collect() != 0);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
}

/* Legacy finalizers. */
static long deleted, finalized;
static PyObject *resurrected, *weak_at_del;
static int weak_alive_at_del = -1;
static void legacy_del(PyObject *self) {
    (void)self;
    ADD(deleted);
    if (weak_at_del)
        weak_alive_at_del = is_alive(weak_at_del);
}
static void legacy_finalize(PyObject *self) {
    (void)self;
    ADD(finalized);
}
static PyTypeObject Legacy_Type = {
    TYPE_HEAD
    .tp_name = "check.Legacy",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = GC_TYPE,
    .tp_traverse = pair_traverse,
    .tp_clear = pair_clear,
    .tp_finalize = legacy_finalize,
    .tp_del = legacy_del,
};

static void g_09_a_legacy_finalizer_in_a_cycle(void) {
    long long before = LIVE();
    Pair *legacy;
    PyObject *garbage;
    ready(&Legacy_Type);
    legacy = garbage_ring_of(&Legacy_Type, 1);
    garbage_ring(2);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(calls.freed, 2);
    CHECK_INT(standstill_gc_garbage_size(), 1);
    garbage = standstill_gc_garbage_get(0);
    CHECK(garbage == (PyObject *)legacy);
    set_a(garbage, NULL);
    Py_DECREF(garbage);
    CHECK_INT(standstill_gc_garbage_clear(), 0);
    CHECK_INT(LIVE(), before);
}

static void g_73_a_legacy_finalizer_without_a_cycle(void) {
    long long before = LIVE();
    ready(&Legacy_Type);
    Py_DECREF(pair_of(&Legacy_Type, NULL, NULL));
    CHECK_INT(finalized, 1);
    CHECK_INT(deleted, 1);
    CHECK_INT(LIVE(), before);
}

static void resurrecting_del(PyObject *self) {
    legacy_del(self);
    if (deleted < 3)
        resurrected = Py_NewRef(self);
}

static void g_74_a_legacy_finalizer_that_resurrects(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.LegacyResurrector", .tp_basicsize = sizeof(Pair),
                                .tp_flags = GC_TYPE, .tp_traverse = pair_traverse, .tp_clear = pair_clear,
                                .tp_finalize = legacy_finalize, .tp_del = resurrecting_del};
    long long before = LIVE();
    int i;
    Pair *p;
    ready(&type);
    p = pair_of(&type, NULL, NULL);
    weak_at_del = weak_to(p);
    resurrected = (PyObject *)p;
    for (i = 1; i <= 3; i++) {
        PyObject *object = resurrected;
        resurrected = NULL;
        Py_DECREF(object);
        CHECK_INT(finalized, 1);
        CHECK_INT(deleted, i);
        CHECK_INT(weak_alive_at_del, 0);
        CHECK((resurrected != NULL) == (i < 3));
    }
    Py_DECREF(weak_at_del);
    CHECK_INT(LIVE(), before);
}

static void g_75_a_legacy_self_cycle(void) {
    long long before = LIVE();
    Pair *p;
    PyObject *weak;
    ready(&Legacy_Type);
    p = ring_of(&Legacy_Type, 1);
    weak = weak_to(p);
    Py_DECREF(p);
    PyGC_Collect();
    CHECK_INT(finalized, 0);
    CHECK_INT(deleted, 0);
    CHECK_INT(standstill_gc_garbage_size(), 1);
    CHECK(is_alive(weak));
    set_a(p, NULL);
    CHECK_INT(standstill_gc_garbage_clear(), 0);
    CHECK(!is_alive(weak));
    CHECK_INT(deleted, 1);
    Py_DECREF(weak);
    CHECK_INT(LIVE(), before);
}

static standstill_gc_info last_stop;
static int break_garbage;
static void stop_phase(const char *phase, const standstill_gc_info *info, void *arg) {
    (void)arg;
    if (strcmp(phase, "stop"))
        return;
    last_stop = *info;
    if (break_garbage) {
        Py_ssize_t i;
        for (i = 0; i < standstill_gc_garbage_size(); i++) {
            PyObject *object = standstill_gc_garbage_get(i);
            set_a(object, NULL);
            Py_DECREF(object);
        }
        standstill_gc_garbage_clear();
    }
}

static void g_48_a_callback_deals_with_garbage(void) {
    long long before = LIVE();
    ready(&Legacy_Type);
    CHECK(standstill_gc_add_callback(stop_phase, NULL) >= 0);
    garbage_ring_of(&Legacy_Type, 2);
    garbage_ring_of(&Legacy_Type, 2);
    garbage_ring(1);
    CHECK_INT(standstill_gc_collect(2), 5);
    CHECK_INT(last_stop.collected, 1);
    CHECK_INT(last_stop.uncollectable, 4);
    CHECK_INT(standstill_gc_garbage_size(), 4);
    break_garbage = 1;
    garbage_ring_of(&Legacy_Type, 2);
    CHECK_INT(standstill_gc_collect(2), 2);
    CHECK_INT(last_stop.collected, 0);
    CHECK_INT(last_stop.uncollectable, 2);
    CHECK_INT(standstill_gc_garbage_size(), 0);
    CHECK_INT(LIVE(), before);
}

static void g_14_saveall_keeps_the_cycle(void) {
    Pair *p;
    PyObject *object;
    CHECK_INT(standstill_gc_set_debug(STANDSTILL_GC_DEBUG_SAVEALL), 0);
    p = garbage_ring(1);
    PyGC_Collect();
    CHECK_INT(standstill_gc_garbage_size(), 1);
    object = standstill_gc_garbage_get(0);
    CHECK(object == (PyObject *)p && p->a == object);
    Py_DECREF(object);
    CHECK_INT(standstill_gc_set_debug(0), 0);
    CHECK_INT(standstill_gc_garbage_clear(), 0);
    CHECK_INT(PyGC_Collect(), 1);
}

/* What is printed. */
static char printed[4096];
static void print_line(const char *line, void *arg) {
    (void)arg;
    CHECK(strlen(printed) + strlen(line) + 2 < sizeof printed);
    strcat(printed, line);
    strcat(printed, "\n");
}

static void g_26_uncollectable_objects_at_the_end_are_printed(void) {
    Py_Initialize();
    ready(&Pair_Type);
    ready(&Legacy_Type);
    standstill_gc_set_debug_sink(print_line, NULL);
    standstill_gc_set_debug(STANDSTILL_GC_DEBUG_UNCOLLECTABLE);
    garbage_ring_of(&Legacy_Type, 2);
    Py_Finalize();
    EXPECT_UNRAISABLE(1); /* the list is not empty */
    CHECK(strstr(last_unraisable.text, "2 objects") != NULL);
    CHECK(strstr(printed, "uncollectable") != NULL);
    CHECK(strstr(printed, "check.Legacy") != NULL);
}

static void g_28_statistics_are_printed(void) {
    standstill_gc_set_debug_sink(print_line, NULL);
    standstill_gc_collect(2);
    CHECK(printed[0] == 0);
    standstill_gc_set_debug(STANDSTILL_GC_DEBUG_STATS);
    garbage_ring(3);
    standstill_gc_collect(2);
    CHECK(strstr(printed, "3") && strstr(printed, "2"));
    standstill_gc_set_debug(0);
}

static void end_finalizer(PyObject *self) {
    (void)self;
    ADD(finalized);
}
static PyTypeObject Ending_Type = {
    TYPE_HEAD
    .tp_name = "check.Ending",
    .tp_basicsize = sizeof(Pair),
    .tp_base = &Pair_Type,
    .tp_finalize = end_finalizer,
};

static void g_29_the_end_finalizes_a_global_cycle(void) {
    Py_Initialize();
    ready(&Pair_Type);
    ready(&Ending_Type);
    garbage_ring_of(&Ending_Type, 1);
    PyErr_SetString(PyExc_SystemError, "exit");
    Py_Finalize();
    CHECK_INT(finalized, 1);
    PyErr_Clear();
}

static void g_27_a_cycle_off_a_module_is_finalized(void) {
    static PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "main", .m_size = 8};
    PyObject *module = PyModule_Create(&definition);
    MUST(module != NULL);
    ready(&Ending_Type);
    garbage_ring_of(&Ending_Type, 1);
    Py_DECREF(module);
    PyGC_Collect();
    CHECK_INT(finalized, 1);
}

static void g_56_an_instance_that_is_the_last_holder_of_its_type(void) {
    long long before = LIVE();
    PyTypeObject *type = heap_pair_type("check.Last", 0, NULL);
    Pair *p = pair_of(type, NULL, NULL);
    Py_DECREF(type);
    set_a(p, p);
    Py_DECREF(p);
    PyGC_Collect();
    CHECK_INT(calls.freed, 1);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
}

static PyTypeObject *subclass_base;
static int class_walks;
static void walking_finalizer(PyObject *self) {
    PyObject *value = PyObject_GetAttrString((PyObject *)subclass_base, "x");
    CHECK(value != NULL && PyType_IsSubtype(Py_TYPE(self), subclass_base));
    Py_DECREF(value);
    ADD(class_walks);
}

static void g_43_a_finalizer_walks_classes_whose_subclass_dies(void) {
    long long before = LIVE();
    PyType_Slot slots[] = {{Py_tp_base, NULL}, {Py_tp_finalize, FN(walking_finalizer)}, {0, NULL}};
    PyTypeObject *sub;
    PyObject *number = PyLong_FromLong(1);
    Pair *p;
    subclass_base = heap_pair_type("check.Base", 0, NULL);
    slots[0].pfunc = subclass_base;
    sub = type_of_slots("check.Sub", 0, 0, Py_TPFLAGS_DEFAULT, slots);
    MUST(sub != NULL);
    PyObject_SetAttrString((PyObject *)subclass_base, "x", number);
    Py_DECREF(number);
    p = pair_of(sub, NULL, NULL);
    PyObject_SetAttrString((PyObject *)sub, "instance", (PyObject *)p);
    Py_DECREF(p);
    Py_DECREF(sub);
    PyGC_Collect();
    CHECK_INT(class_walks, 1);
    CHECK_INT(calls.freed, 1);
    Py_DECREF(subclass_base);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
}

/* A count that is too low cannot be made here; a handler that shows one too many looks the same. */
static int twice_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Pair *)self)->a);
    Py_VISIT(((Pair *)self)->a);
    return 0;
}

static void g_49_a_count_that_seems_too_low_is_reported(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.TooLow", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = pair_dealloc, .tp_traverse = twice_traverse, .tp_clear = pair_clear};
    Pair *p;
    ready(&type);
    p = pair_of(&type, (PyObject *)pair(NULL, NULL), NULL);
    Py_DECREF(p->a);
    CHECK_INT(PyGC_Collect(), 0);
    EXPECT_MISUSE(STANDSTILL_E_OVER_VISITED, -1);
    Py_DECREF(p);
}

/* Callbacks that come and go. */
static int done_with_callbacks;
static void no_phase(const char *phase, const standstill_gc_info *info, void *arg) {
    (void)phase;
    (void)info;
    (void)arg;
}
static void replace_callbacks(void *arg) {
    (void)arg;
    while (!GET(done_with_callbacks)) {
        int id = standstill_gc_add_callback(no_phase, NULL);
        if (id >= 0)
            standstill_gc_remove_callback(id);
        standstill_safepoint();
    }
}
static void collect_often(void *arg) {
    int i;
    (void)arg;
    for (i = 0; i < 50; i++) {
        garbage_ring(2);
        standstill_gc_collect(2);
    }
}

static void g_79_callbacks_are_replaced_all_the_time(void) {
    thread collectors[3], replacers[3];
    int i;
    for (i = 0; i < 3; i++) {
        start(&replacers[i], replace_callbacks, NULL);
        start(&collectors[i], collect_often, NULL);
    }
    for (i = 0; i < 3; i++)
        join(&collectors[i]);
    PUT(done_with_callbacks, 1);
    for (i = 0; i < 3; i++)
        join(&replacers[i]);
    standstill_gc_collect(2);
    CHECK_INT(calls.freed, 3 * 50 * 2);
}

/* The C interface. */
static void g_83_enable_and_disable_in_any_order(void) {
    CHECK_INT(PyGC_IsEnabled(), 1);
    CHECK_INT(PyGC_Enable(), 1);
    CHECK_INT(PyGC_Disable(), 1);
    CHECK_INT(PyGC_IsEnabled(), 0);
    CHECK_INT(PyGC_Disable(), 0);
    CHECK_INT(PyGC_Enable(), 0);
    CHECK_INT(PyGC_IsEnabled(), 1);
}

struct search {
    PyObject *target;
    int found, calls;
};
static int search(PyObject *object, void *arg) {
    struct search *search = arg;
    search->calls++;
    search->found += object == search->target;
    return 1;
}
static int stop_at_2(PyObject *object, void *arg) {
    (void)object;
    return ++((struct search *)arg)->calls < 2;
}

static void g_84_visit_objects_finds_a_container(void) {
    PyObject *tuple = PyTuple_New(3);
    struct search state = {NULL, 0, 0};
    MUST(tuple != NULL);
    state.target = tuple;
    PyUnstable_GC_VisitObjects(search, &state);
    CHECK_INT(state.found, 1);
    Py_DECREF(tuple);
}

static void g_85_visit_objects_stops(void) {
    Pair *p = ring(4);
    struct search state = {NULL, 0, 0};
    PyUnstable_GC_VisitObjects(stop_at_2, &state);
    CHECK_INT(state.calls, 2);
    Py_DECREF(p);
    PyGC_Collect();
}

#define EXTRA(o) (*(PyObject **)((char *)(o) + sizeof(Pair)))
static int extra_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(EXTRA(self));
    return 0;
}
static int extra_clear(PyObject *self) {
    Py_CLEAR(EXTRA(self));
    return 0;
}

static void g_86_extra_data_holds_a_traversed_reference(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Extra", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_traverse = extra_traverse, .tp_clear = extra_clear};
    long long before = LIVE();
    PyObject *object;
    size_t i;
    ready(&type);
    object = PyUnstable_Object_GC_NewWithExtraData(&type, sizeof(PyObject *));
    MUST(object != NULL);
    for (i = 0; i < sizeof(PyObject *); i++)
        CHECK_INT(((char *)object)[sizeof(Pair) + i], 0);
    EXTRA(object) = (PyObject *)pair(object, NULL);
    PyObject_GC_Track(object);
    Py_DECREF(object);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(LIVE(), before);
}

/* Queries. */
static void g_22_containers_are_tracked_and_other_objects_are_not(void) {
    static PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "module"};
    PyTypeObject *type = heap_pair_type("check.User", 0, NULL);
    PyObject *number = PyLong_FromLong(1), *text = PyUnicode_FromString("x"), *module = PyModule_Create(&definition);
    Pair *p = pair_of(type, NULL, NULL);
    CHECK_INT(standstill_gc_is_tracked(Py_None), 0);
    CHECK_INT(standstill_gc_is_tracked(number), 0);
    CHECK_INT(standstill_gc_is_tracked(text), 0);
    CHECK_INT(standstill_gc_is_tracked((PyObject *)&PyTuple_Type), 0);
    CHECK_INT(standstill_gc_is_tracked(module), 1);
    CHECK_INT(standstill_gc_is_tracked((PyObject *)type), 1);
    CHECK_INT(standstill_gc_is_tracked((PyObject *)p), 1);
    Py_DECREF(number);
    Py_DECREF(text);
    Py_DECREF(module);
    Py_DECREF(p);
    Py_DECREF(type);
}

static PyObject *target;
static int asked;
/* Both need a stop, which a finalizer cannot ask for here: they are refused, and disturb nothing. */
static void asking_finalizer(PyObject *self) {
    PyObject *objects[1];
    (void)self;
    CHECK(standstill_gc_get_objects(-1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ALLOWED_HERE);
    objects[0] = target;
    CHECK(standstill_gc_get_referrers(objects, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NOT_ALLOWED_HERE);
    asked = 1;
}

static void g_40_services_called_from_a_finalizer(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Asking", .tp_basicsize = sizeof(Pair), .tp_base = &Pair_Type,
                                .tp_finalize = asking_finalizer};
    ready(&type);
    target = (PyObject *)garbage_ring_of(&type, 1);
    CHECK_INT(PyGC_Collect(), 1);
    CHECK_INT(asked, 1);
    CHECK_INT(calls.freed, 1);
}

static void g_44_tuples_of_numbers(void) {
    long long before = LIVE();
    Row *kept = row(2000);
    int i;
    for (i = 0; i < 2000; i++) {
        PyObject *number = PyLong_FromLong(i);
        kept->items[i] = PyTuple_Pack(1, number);
        Py_DECREF(number);
    }
    CHECK_INT(PyGC_Collect(), 0);
    for (i = 0; i < 2000; i++) /* whether they are tracked still is the library's own affair */
        CHECK_INT(PyLong_AsLong(PyTuple_GetItem(kept->items[i], 0)), i);
    Py_DECREF(kept);
    CHECK_INT(LIVE(), before);
}

const struct test scenarios_tests[] = {
    TEST(g_04_a_class_with_itself_as_attribute),
    TEST(g_05_a_class_alone_leaves_nothing),
    TEST(g_06_an_instance_that_is_its_own_attribute),
    TEST(g_07_a_class_of_two_bases),
    TEST(g_09_a_legacy_finalizer_in_a_cycle),
    TEST(g_14_saveall_keeps_the_cycle),
    TEST(g_22_containers_are_tracked_and_other_objects_are_not),
    TEST_AS(g_26_uncollectable_objects_at_the_end_are_printed, BARE),
    TEST(g_27_a_cycle_off_a_module_is_finalized),
    TEST(g_28_statistics_are_printed),
    TEST_AS(g_29_the_end_finalizes_a_global_cycle, BARE),
    TEST(g_40_services_called_from_a_finalizer),
    TEST(g_43_a_finalizer_walks_classes_whose_subclass_dies),
    TEST(g_44_tuples_of_numbers),
    TEST(g_48_a_callback_deals_with_garbage),
    TEST(g_49_a_count_that_seems_too_low_is_reported),
    TEST(g_56_an_instance_that_is_the_last_holder_of_its_type),
    TEST(g_73_a_legacy_finalizer_without_a_cycle),
    TEST(g_74_a_legacy_finalizer_that_resurrects),
    TEST(g_75_a_legacy_self_cycle),
    TEST(g_79_callbacks_are_replaced_all_the_time),
    TEST(g_83_enable_and_disable_in_any_order),
    TEST(g_84_visit_objects_finds_a_container),
    TEST(g_85_visit_objects_stops),
    TEST(g_86_extra_data_holds_a_traversed_reference),
    TESTS_END,
};
