/* Section I: heap types visit their type; delegation. */

#include "check.h"

static PyTypeObject *subtype(const char *name, PyTypeObject *base, traverseproc traverse) {
    PyType_Slot slots[] = {{Py_tp_base, base}, {Py_tp_traverse, FN(traverse)}, {Py_tp_clear, FN(pair_clear)},
                           {Py_tp_dealloc, FN(heap_pair_dealloc)}, {0, NULL}};
    PyTypeObject *type = type_of_slots(name, sizeof(Pair), 0, Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, slots);
    MUST(type != NULL);
    return type;
}

static int count_in(PyObject *tuple, void *object) {
    Py_ssize_t i;
    int n = 0;
    for (i = 0; i < PyTuple_Size(tuple); i++)
        n += PyTuple_GetItem(tuple, i) == (PyObject *)object;
    return n;
}

/* How often the handlers of `object` visit its type. */
static int type_visits(void *object) {
    PyObject *objects[1], *found;
    int n;
    objects[0] = (PyObject *)object;
    found = standstill_gc_get_referents(objects, 1);
    MUST(found != NULL);
    n = count_in(found, Py_TYPE(object));
    Py_DECREF(found);
    return n;
}

static void s_111_a_type_whose_dict_refers_to_an_instance_is_collected_with_it(void) {
    long long before = LIVE();
    PyTypeObject *type = heap_pair_type("check.Own", 0, NULL);
    Pair *p = pair_of(type, NULL, NULL);
    PyObject *weak = weak_to(type);
    CHECK_INT(PyObject_SetAttrString((PyObject *)type, "instance", (PyObject *)p), 0);
    CHECK_INT(type_visits(p), 1);
    Py_DECREF(p);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK(!is_alive(weak));
    CHECK_INT(calls.freed, 1);
    Py_DECREF(weak);
    CHECK_INT(LIVE(), before);
}

static void s_111_a_missing_visit_is_noted_at_the_first_instance(void) {
    PyType_Slot slots[] = {{Py_tp_traverse, FN(pair_traverse)}, {0, NULL}};
    PyTypeObject *type = heap_pair_type("check.Forgetful", 0, slots);
    Pair *p = pair_of(type, NULL, NULL), *q;
    PyGC_Collect();
    EXPECT_MISUSE(STANDSTILL_E_MISSING_TYPE_VISIT, 1);
    CHECK(strstr(last_misuse.type, "Forgetful") != NULL);
    q = pair_of(type, NULL, NULL);
    PyGC_Collect();
    CHECK_INT(misuses(0), 0);
    Py_DECREF(p);
    Py_DECREF(q);
    Py_DECREF(type);
}

/* S-113: a type loses its module after its instances. Module, type and instance are garbage together. */
struct instances {
    long traversed, cleared, freed;
    PyTypeObject *type;
    PyObject *cache;
};
static int state_traverse(PyObject *self, visitproc visit, void *arg) {
    struct instances *state = PyModule_GetState_DuringGC(self);
    Py_VISIT(state->type);
    Py_VISIT(state->cache);
    return 0;
}
static int state_clear(PyObject *self) {
    struct instances *state = PyModule_GetState(self);
    Py_CLEAR(state->type);
    Py_CLEAR(state->cache);
    return 0;
}
static void state_free(void *self) { (void)state_clear(self); }
static PyModuleDef of_instances = {PyModuleDef_HEAD_INIT, .m_name = "check.of_instances", .m_size = sizeof(struct instances),
                                   .m_traverse = state_traverse, .m_clear = state_clear, .m_free = state_free};
static int stated_traverse(PyObject *self, visitproc visit, void *arg) {
    struct instances *state = PyType_GetModuleState_DuringGC(Py_TYPE(self));
    CHECK(state != NULL);
    ADD(state->traversed);
    return heap_pair_traverse(self, visit, arg);
}
static int stated_clear(PyObject *self) {
    struct instances *state = PyType_GetModuleState(Py_TYPE(self));
    CHECK(state != NULL && state->type == Py_TYPE(self)); /* the module was not cleared either */
    ADD(state->cleared);
    return pair_clear(self);
}
static void stated_dealloc(PyObject *self) {
    struct instances *state = PyType_GetModuleState(Py_TYPE(self));
    CHECK(state != NULL);
    ADD(state->freed);
    heap_pair_dealloc(self);
}
static void makes_a_garbage_module(int order) {
    PyType_Slot slots[] = {{Py_tp_traverse, FN(stated_traverse)}, {Py_tp_clear, FN(stated_clear)},
                           {Py_tp_dealloc, FN(stated_dealloc)}, {0, NULL}};
    PyType_Spec spec = {"check.Stated", sizeof(Pair), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    PyObject *module = PyModule_Create(&of_instances);
    struct instances *state = PyModule_GetState(module);
    Pair *p;
    state->type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
    MUST(state->type);
    p = pair_of(state->type, NULL, module);
    set_a(p, p);
    if (order)
        state->cache = Py_NewRef(p);
    else
        PyObject_SetAttrString((PyObject *)state->type, "instance", (PyObject *)p);
    Py_DECREF(p);
    Py_DECREF(module);
}

static void s_113_handlers_of_garbage_find_the_module_of_their_type(void) {
    long long before = LIVE();
    int i;
    for (i = 0; i < 40; i++) {
        makes_a_garbage_module(i % 2);
        CHECK_INT(PyGC_Collect(), 3);
    }
    CHECK_INT(LIVE(), before);
    standstill_gc_set_threshold(50, 0, 0);
    for (i = 0; i < 400; i++) {
        makes_a_garbage_module(i % 2);
        standstill_safepoint();
    }
    PyGC_Collect();
    CHECK_INT(calls.freed, 440);
    CHECK_INT(LIVE(), before);
}

/* S-112 */
static int base_calls;
static int delegate_traverse(PyObject *self, visitproc visit, void *arg) {
    ADD(base_calls);
    return heap_pair_traverse(self, visit, arg);
}

static void s_112_delegation_visits_the_real_type_once(void) {
    long long before = LIVE();
    PyTypeObject *base = heap_pair_type("check.Base", 0, NULL);
    PyTypeObject *type = subtype("check.Sub", base, delegate_traverse);
    Pair *p = pair_of(type, NULL, NULL);
    CHECK_INT(type_visits(p), 1);
    CHECK(base_calls > 0);
    set_a(p, p);
    set_b(p, type);
    PyObject_SetAttrString((PyObject *)type, "instance", (PyObject *)p);
    Py_DECREF(p);
    Py_DECREF(type);
    Py_DECREF(base);
    PyGC_Collect();
    CHECK_INT(calls.freed, 1);
    CHECK_INT(LIVE(), before);
}

/* S-113 */
static int both_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return heap_pair_traverse(self, visit, arg);
}

static void s_113_visiting_and_delegating_never_crashes(void) {
    PyTypeObject *base = heap_pair_type("check.Base", 0, NULL);
    PyTypeObject *type = subtype("check.Both", base, both_traverse);
    Pair *kept = pair_of(type, NULL, NULL), *p;
    int i;
    for (i = 0; i < 5; i++) {
        p = pair_of(type, NULL, NULL);
        set_a(p, p);
        Py_DECREF(p);
        PyGC_Collect();
    }
    Py_DECREF(type); /* kept by its instance alone, visited twice */
    PyGC_Collect();
    CHECK(Py_TYPE(kept) == type && strstr(type->tp_name, "Both"));
    CHECK(type->tp_dealloc == heap_pair_dealloc);
    p = pair_of(Py_TYPE(kept), NULL, NULL); /* still usable, its handlers in place */
    Py_DECREF(p);
    set_a(kept, kept);
    Py_DECREF(kept);
    PyGC_Collect();
    Py_DECREF(base);
    PyGC_Collect();
    forget_misuses();
}

/* S-114 */
static int visiting_static_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)&PyType_Type);
    return pair_traverse(self, visit, arg);
}

static void s_114_a_visit_of_a_static_type_has_no_effect(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Eager", .tp_basicsize = sizeof(Pair),
                                .tp_flags = Py_TPFLAGS_HAVE_GC, .tp_dealloc = pair_dealloc,
                                .tp_traverse = visiting_static_traverse, .tp_clear = pair_clear};
    long long before = LIVE();
    Py_ssize_t count;
    ready(&type);
    count = Py_REFCNT((PyObject *)&type);
    garbage_ring_of(&type, 3);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(LIVE(), before);
    CHECK_INT(Py_REFCNT((PyObject *)&type), count);
}

static void s_115_a_type_that_is_never_visited_leaks_and_no_more(void) {
    PyType_Slot slots[] = {{Py_tp_traverse, FN(pair_traverse)}, {0, NULL}};
    PyTypeObject *type = heap_pair_type("check.Unvisited", 0, slots);
    Pair *p = pair_of(type, NULL, NULL);
    PyObject *weak = weak_to(type);
    PyObject_SetAttrString((PyObject *)type, "instance", (PyObject *)p); /* type -> p -> type */
    Py_DECREF(p);
    Py_DECREF(type);
    PyGC_Collect();
    PyGC_Collect();
    CHECK(is_alive(weak));
    CHECK(Py_TYPE(p) == type);
    CHECK_INT(calls.freed, 0);
    PyObject_SetAttrString((PyObject *)type, "instance", NULL);
    CHECK_INT(calls.freed, 1);
    PyGC_Collect();
    CHECK(!is_alive(weak));
    Py_DECREF(weak);
    forget_misuses(); /* checked mode has noted it */
}

/* S-116 */
static traverseproc level_base;
static int second_traverse(PyObject *self, visitproc visit, void *arg) {
    ADD(base_calls);
    return level_base(self, visit, arg);
}
static int third_traverse(PyObject *self, visitproc visit, void *arg) {
    ADD(base_calls);
    return second_traverse(self, visit, arg);
}

static void s_116_three_levels_that_each_call_their_base(void) {
    long long before = LIVE();
    PyTypeObject *first = heap_pair_type("check.First", 0, NULL);
    PyTypeObject *second = subtype("check.Second", first, second_traverse);
    PyTypeObject *third = subtype("check.Third", second, third_traverse);
    Pair *p;
    level_base = first->tp_traverse;
    p = pair_of(third, NULL, NULL);
    CHECK_INT(type_visits(p), 1);
    PyObject_SetAttrString((PyObject *)third, "instance", (PyObject *)p);
    PyObject_SetAttrString((PyObject *)first, "third", (PyObject *)third);
    Py_DECREF(p);
    Py_DECREF(third);
    Py_DECREF(second);
    Py_DECREF(first);
    PyGC_Collect();
    CHECK_INT(calls.freed, 1);
    CHECK_INT(LIVE(), before);
}

static void s_116_an_inherited_handler_visits_the_type_once(void) {
    PyType_Slot none[] = {{Py_tp_base, NULL}, {0, NULL}}, under_static[] = {{Py_tp_base, &Pair_Type}, {0, NULL}};
    PyTypeObject *base = heap_pair_type("check.First", 0, NULL), *type;
    Pair *p;
    none[0].pfunc = base;
    type = type_of_slots("check.Heir", 0, 0, Py_TPFLAGS_DEFAULT, none);
    MUST(type != NULL);
    p = pair_of(type, NULL, NULL);
    CHECK_INT(type_visits(p), 1);
    Py_DECREF(p);
    Py_DECREF(type);
    Py_DECREF(base);
    type = type_of_slots("check.HeirOfStatic", 0, 0, Py_TPFLAGS_DEFAULT, under_static);
    MUST(type != NULL);
    p = pair_of(type, NULL, NULL);
    CHECK_INT(type_visits(p), 1);
    Py_DECREF(p);
    Py_DECREF(type);
}

const struct test heaptypes_tests[] = {
    TEST(s_111_a_type_whose_dict_refers_to_an_instance_is_collected_with_it),
    TEST_AS(s_111_a_missing_visit_is_noted_at_the_first_instance, CHECKED_ONLY),
    TEST(s_113_handlers_of_garbage_find_the_module_of_their_type),
    TEST(s_112_delegation_visits_the_real_type_once),
    TEST(s_113_visiting_and_delegating_never_crashes),
    TEST(s_114_a_visit_of_a_static_type_has_no_effect),
    TEST(s_115_a_type_that_is_never_visited_leaks_and_no_more),
    TEST(s_116_three_levels_that_each_call_their_base),
    TEST(s_116_an_inherited_handler_visits_the_type_once),
    TESTS_END,
};
