/* Section M: the functions for traverse handlers only. */

#include "check.h"

#define HEAP_GC (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE)

/* What the tests ask about: made before, and asked in a handler. */
static PyModuleDef with_state = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "with_state", .m_size = 32};
static PyModuleDef without_state = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "without_state", .m_size = 0};
static PyObject *module, *empty_module, *not_module;
static PyTypeObject *based, *derived, *relative, *items_type, *lone, *empty_type;
static PyObject *instance, *of_relative, *of_items;
static int base_token, other_token;

static PyTypeObject *module_type(PyObject *of, const char *name, int basicsize, unsigned flags, PyTypeObject *base,
                                 void *token) {
    PyType_Slot slots[8];
    PyType_Spec spec;
    PyTypeObject *type;
    int n = 0;
    slots[n].slot = Py_tp_traverse, slots[n++].pfunc = FN(heap_pair_traverse);
    slots[n].slot = Py_tp_clear, slots[n++].pfunc = FN(pair_clear);
    slots[n].slot = Py_tp_dealloc, slots[n++].pfunc = FN(heap_pair_dealloc);
    if (base)
        slots[n].slot = Py_tp_base, slots[n++].pfunc = base;
    if (token)
        slots[n].slot = Py_tp_token, slots[n++].pfunc = token;
    slots[n].slot = 0, slots[n].pfunc = NULL;
    spec.name = name;
    spec.basicsize = basicsize;
    spec.itemsize = 0;
    spec.flags = HEAP_GC | flags;
    spec.slots = slots;
    type = (PyTypeObject *)PyType_FromModuleAndSpec(of, &spec, NULL);
    MUST(type != NULL);
    return type;
}

static int items_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void make(void) {
    PyType_Slot items_slots[] = {{Py_tp_traverse, FN(items_traverse)}, {0, NULL}};
    module = PyModule_Create(&with_state);
    empty_module = PyModule_Create(&without_state);
    MUST(module && empty_module);
    not_module = (PyObject *)leaf();
    based = module_type(module, "check.Based", sizeof(Pair), 0, NULL, &base_token);
    derived = module_type(NULL, "check.Derived", sizeof(Pair), 0, based, NULL);
    relative = module_type(NULL, "check.Relative", -24, 0, based, NULL);
    lone = module_type(NULL, "check.Lone", sizeof(Pair), 0, NULL, NULL);
    empty_type = module_type(empty_module, "check.Empty", sizeof(Pair), 0, NULL, NULL);
    items_type = type_of_slots("check.Items", sizeof(PyVarObject), 8, HEAP_GC | Py_TPFLAGS_ITEMS_AT_END, items_slots);
    MUST(items_type != NULL);
    instance = (PyObject *)pair_of(derived, NULL, NULL);
    of_relative = (PyObject *)pair_of(relative, NULL, NULL);
    of_items = items_type->tp_alloc(items_type, 3);
    MUST(of_items != NULL);
}

static void drop(void) {
    Py_CLEAR(of_items);
    Py_CLEAR(of_relative);
    Py_CLEAR(instance);
    Py_CLEAR(items_type);
    Py_CLEAR(empty_type);
    Py_CLEAR(lone);
    Py_CLEAR(relative);
    Py_CLEAR(derived);
    Py_CLEAR(based);
    Py_CLEAR(not_module);
    Py_CLEAR(empty_module);
    Py_CLEAR(module);
    PyGC_Collect();
}

static void (*inside)(void);
static int went_inside;
static int asking_traverse(PyObject *self, visitproc visit, void *arg) {
    if (inside && __atomic_exchange_n(&went_inside, 1, __ATOMIC_SEQ_CST) == 0)
        inside();
    return pair_traverse(self, visit, arg);
}
static PyTypeObject Asking_Type = {
    TYPE_HEAD
    .tp_name = "check.Asking",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = Py_TPFLAGS_HAVE_GC | STANDSTILL_TPFLAGS_SERIAL_TRAVERSE,
    .tp_dealloc = pair_dealloc,
    .tp_traverse = asking_traverse,
    .tp_clear = pair_clear,
};
static void ask(void (*function)(void)) {
    Pair *p;
    ready(&Asking_Type);
    p = pair_of(&Asking_Type, NULL, NULL);
    went_inside = 0;
    inside = function;
    PyGC_Collect();
    CHECK_INT(went_inside, 1);
    inside = NULL;
    Py_DECREF(p);
}

static void s_140_each_of_the_eight_is_refused_outside(void) {
    PyTypeObject *found = &Pair_Type;
    void *token = &token;
    make();
    CHECK(PyObject_GetTypeData_DuringGC(of_relative, relative) == NULL);
    EXPECT_MISUSE(STANDSTILL_E_OUTSIDE_TRAVERSAL, 1);
    CHECK(PyObject_GetItemData_DuringGC(of_items) == NULL);
    EXPECT_MISUSE(STANDSTILL_E_OUTSIDE_TRAVERSAL, 1);
    CHECK(PyType_GetModuleState_DuringGC(based) == NULL);
    EXPECT_MISUSE(STANDSTILL_E_OUTSIDE_TRAVERSAL, 1);
    CHECK(PyModule_GetState_DuringGC(module) == NULL);
    EXPECT_MISUSE(STANDSTILL_E_OUTSIDE_TRAVERSAL, 1);
    CHECK_INT(PyModule_GetToken_DuringGC(module, &token), -1);
    CHECK(token == NULL);
    EXPECT_MISUSE(STANDSTILL_E_OUTSIDE_TRAVERSAL, 1);
    CHECK_INT(PyType_GetBaseByToken_DuringGC(based, &base_token, &found), -1);
    CHECK(found == NULL);
    EXPECT_MISUSE(STANDSTILL_E_OUTSIDE_TRAVERSAL, 1);
    CHECK(PyType_GetModule_DuringGC(based) == NULL);
    EXPECT_MISUSE(STANDSTILL_E_OUTSIDE_TRAVERSAL, 1);
    CHECK(PyType_GetModuleByToken_DuringGC(based, &with_state) == NULL);
    EXPECT_MISUSE(STANDSTILL_E_OUTSIDE_TRAVERSAL, 1);
    CHECK(!PyErr_Occurred());
    drop();
}

static int referents_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(PyType_GetModule_DuringGC((PyTypeObject *)((Pair *)self)->a));
    return 0;
}

static void s_140_a_walk_over_referents_is_a_traversal(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Walked", .tp_basicsize = sizeof(Pair),
                                .tp_flags = Py_TPFLAGS_HAVE_GC, .tp_dealloc = pair_dealloc,
                                .tp_traverse = referents_traverse};
    PyObject *objects[1], *found;
    Pair *p;
    make();
    ready(&type);
    p = PyObject_GC_New(Pair, &type);
    MUST(p != NULL);
    set_a(p, based);
    objects[0] = (PyObject *)p;
    found = standstill_gc_get_referents(objects, 1);
    MUST(found != NULL);
    CHECK_INT(PyTuple_Size(found), 1);
    CHECK(PyTuple_GetItem(found, 0) == module);
    Py_DECREF(found);
    Py_DECREF(p);
    drop();
}

/* S-141 */
static struct {
    void *type_data, *item_data, *type_state, *state, *token;
    PyTypeObject *base;
    PyObject *module, *by_token;
} answers;
static void ask_all(void) {
    answers.type_data = PyObject_GetTypeData_DuringGC(of_relative, relative);
    answers.item_data = PyObject_GetItemData_DuringGC(of_items);
    answers.type_state = PyType_GetModuleState_DuringGC(based);
    answers.state = PyModule_GetState_DuringGC(module);
    CHECK_INT(PyModule_GetToken_DuringGC(module, &answers.token), 0);
    CHECK_INT(PyType_GetBaseByToken_DuringGC(derived, &base_token, &answers.base), 1);
    answers.module = PyType_GetModule_DuringGC(based);
    answers.by_token = PyType_GetModuleByToken_DuringGC(derived, &with_state);
}

static void s_141_the_answers_are_those_of_the_counterparts(void) {
    PyTypeObject *base = NULL;
    PyObject *by_token;
    void *token = NULL;
    make();
    ask(ask_all);
    CHECK(answers.type_data && answers.type_data == PyObject_GetTypeData(of_relative, relative));
    CHECK(answers.item_data && answers.item_data == PyObject_GetItemData(of_items));
    CHECK(answers.type_state && answers.type_state == PyType_GetModuleState(based));
    CHECK(answers.state && answers.state == PyModule_GetState(module));
    CHECK_INT(PyModule_GetToken(module, &token), 0);
    CHECK(answers.token && answers.token == token);
    CHECK_INT(PyType_GetBaseByToken(derived, &base_token, &base), 1);
    CHECK(answers.base == based && base == based);
    Py_DECREF(base);
    CHECK(answers.module == module && PyType_GetModule(based) == module);
    by_token = PyType_GetModuleByToken(derived, &with_state);
    CHECK(answers.by_token == module && by_token == module);
    Py_DECREF(by_token);
    drop();
}

static void s_142_no_count_changes(void) {
    Py_ssize_t before[6], after[6];
    int i;
    make();
    PyGC_Collect();
    for (i = 0; i < 2; i++) {
        Py_ssize_t *counts = i ? after : before;
        counts[0] = Py_REFCNT(module);
        counts[1] = Py_REFCNT((PyObject *)based);
        counts[2] = Py_REFCNT((PyObject *)derived);
        counts[3] = Py_REFCNT((PyObject *)relative);
        counts[4] = Py_REFCNT(of_relative);
        counts[5] = Py_REFCNT(of_items);
        if (i == 0)
            ask(ask_all);
    }
    CHECK(memcmp(before, after, sizeof before) == 0);
    drop();
}

static void s_144_results_are_borrowed(void) {
    long long before = LIVE();
    make();
    ask(ask_all);
    drop(); /* had the results been new references, something would stay */
    CHECK_INT(LIVE(), before);
}

/* S-143, and all failures of S-146 to S-153 */
static void fail_all(void) {
    PyTypeObject *found = &Pair_Type;
    void *token = &token;
    CHECK(PyObject_GetTypeData_DuringGC(instance, relative) == NULL);
    CHECK(PyObject_GetItemData_DuringGC(instance) == NULL);
    CHECK(PyType_GetModuleState_DuringGC(lone) == NULL);
    CHECK(PyModule_GetState_DuringGC(not_module) == NULL);
    CHECK_INT(PyModule_GetToken_DuringGC(not_module, &token), -1);
    CHECK(token == NULL);
    CHECK_INT(PyType_GetBaseByToken_DuringGC(derived, NULL, &found), -1);
    CHECK(found == NULL);
    CHECK(PyType_GetModule_DuringGC(lone) == NULL);
    CHECK(PyType_GetModuleByToken_DuringGC(lone, &with_state) == NULL);
}

static void s_143_no_failure_sets_an_error(void) {
    make();
    ask(fail_all);
    CHECK(!PyErr_Occurred());
    PyErr_SetString(PyExc_ValueError, "pending");
    ask(fail_all);
    CHECK(PyErr_ExceptionMatches(PyExc_ValueError) && strcmp(standstill_error_message(), "pending") == 0);
    PyErr_Clear();
    drop();
}

/* S-145 */
static void null_state(void) { CHECK(PyModule_GetState_DuringGC(empty_module) == NULL); }

static void s_145_null_may_mean_success(void) {
    make();
    ask(null_state);
    CHECK(PyModule_GetState(empty_module) == NULL);
    CHECK(!PyErr_Occurred()); /* the counterpart tells: no error */
    CHECK(PyModule_GetState(not_module) == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    drop();
}

/* S-146 */
static void type_data(void) {
    CHECK(PyObject_GetTypeData_DuringGC(of_relative, relative) == answers.type_data);
    CHECK(PyObject_GetTypeData_DuringGC(instance, relative) == NULL); /* no instance */
    CHECK(PyObject_GetTypeData_DuringGC(instance, derived) == NULL);  /* reserves nothing */
}

static void s_146_type_data(void) {
    make();
    answers.type_data = PyObject_GetTypeData(of_relative, relative);
    CHECK((char *)answers.type_data >= (char *)of_relative + sizeof(Pair));
    CHECK(PyType_GetTypeDataSize(relative) >= 24);
    memset(answers.type_data, 1, 24);
    memset(answers.type_data, 0, 24);
    ask(type_data);
    CHECK(PyObject_GetTypeData(instance, relative) == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    drop();
}

/* S-147 */
static void item_data(void) {
    CHECK(PyObject_GetItemData_DuringGC(of_items) == answers.item_data);
    CHECK(PyObject_GetItemData_DuringGC(instance) == NULL);
}

static void s_147_item_data(void) {
    make();
    answers.item_data = PyObject_GetItemData(of_items);
    CHECK(answers.item_data == (char *)of_items + sizeof(PyVarObject));
    ask(item_data);
    CHECK(PyObject_GetItemData(instance) == NULL);
    CHECK(PyErr_Occurred());
    PyErr_Clear();
    drop();
}

/* S-148 */
static void type_state(void) {
    CHECK(PyType_GetModuleState_DuringGC(based) == answers.type_state);
    CHECK(PyType_GetModuleState_DuringGC(empty_type) == NULL);
    CHECK(PyType_GetModuleState_DuringGC(lone) == NULL);
    CHECK(PyType_GetModuleState_DuringGC(NULL) == NULL);
}

static void s_148_the_state_of_the_types_module(void) {
    make();
    answers.type_state = PyType_GetModuleState(based);
    CHECK(answers.type_state != NULL && answers.type_state == PyModule_GetState(module));
    ask(type_state);
    CHECK_INT(misuses(0), 0);
    CHECK(!PyErr_Occurred());
    CHECK(PyType_GetModuleState(empty_type) == NULL);
    CHECK(!PyErr_Occurred());
    CHECK(PyType_GetModuleState(lone) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NO_MODULE);
    drop();
}

/* S-149 */
static void state(void) {
    CHECK(PyModule_GetState_DuringGC(module) == answers.state);
    CHECK(PyModule_GetState_DuringGC(empty_module) == NULL);
    CHECK(PyModule_GetState_DuringGC(not_module) == NULL);
}

static void s_149_the_state_of_a_module(void) {
    make();
    answers.state = PyModule_GetState(module);
    CHECK(answers.state != NULL);
    CHECK_INT(((char *)answers.state)[0] | ((char *)answers.state)[31], 0);
    ask(state);
    drop();
}

/* S-150 */
static void token(void) {
    void *result = NULL;
    CHECK_INT(PyModule_GetToken_DuringGC(module, &result), 0);
    CHECK(result == (void *)&with_state);
    CHECK_INT(PyModule_GetToken_DuringGC(not_module, &result), -1);
    CHECK(result == NULL);
    CHECK_INT(PyModule_GetToken_DuringGC(module, NULL), -1);
}

static void s_150_the_token_of_a_module(void) {
    void *result = NULL;
    make();
    ask(token);
    CHECK_INT(misuses(0), 0); /* a failure inside a handler is told by its result alone */
    CHECK(!PyErr_Occurred());
    CHECK_INT(PyModule_GetToken(module, &result), 0);
    CHECK(result == (void *)&with_state);
    CHECK_INT(PyModule_GetToken(not_module, &result), -1);
    CHECK(result == NULL);
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    drop();
}

/* S-151 */
static void base_by_token(void) {
    PyTypeObject *found = NULL;
    CHECK_INT(PyType_GetBaseByToken_DuringGC(derived, &base_token, &found), 1);
    CHECK(found == based);
    CHECK_INT(PyType_GetBaseByToken_DuringGC(derived, &other_token, &found), 0);
    CHECK(found == NULL);
    CHECK_INT(PyType_GetBaseByToken_DuringGC(derived, &base_token, NULL), 1);
    found = based;
    CHECK_INT(PyType_GetBaseByToken_DuringGC(derived, NULL, &found), -1);
    CHECK(found == NULL);
}

static void s_151_a_base_by_its_token(void) {
    PyTypeObject *found = NULL;
    Py_ssize_t count;
    make();
    PyGC_Collect();
    count = Py_REFCNT((PyObject *)based);
    ask(base_by_token);
    CHECK_INT(misuses(0), 0);
    CHECK(!PyErr_Occurred());
    CHECK_INT(Py_REFCNT((PyObject *)based), count);
    CHECK_INT(PyType_GetBaseByToken(derived, &base_token, &found), 1);
    CHECK_INT(Py_REFCNT((PyObject *)based), count + 1); /* the counterpart gives a new reference */
    Py_DECREF(found);
    CHECK_INT(PyType_GetBaseByToken(derived, &other_token, &found), 0);
    CHECK(found == NULL && !PyErr_Occurred());
    CHECK_INT(PyType_GetBaseByToken(derived, NULL, &found), -1);
    CHECK(PyErr_Occurred());
    PyErr_Clear();
    drop();
}

static void s_151_the_spec_can_be_the_token(void) {
    PyType_Slot slots[] = {{Py_tp_token, Py_TP_USE_SPEC}, {0, NULL}};
    PyType_Spec spec = {"check.Token", sizeof(Leaf), 0, Py_TPFLAGS_DEFAULT, slots};
    PyTypeObject *type = (PyTypeObject *)PyType_FromSpec(&spec), *found = NULL;
    MUST(type != NULL);
    CHECK_INT(PyType_GetBaseByToken(type, &spec, &found), 1);
    CHECK(found == type);
    Py_DECREF(found);
    Py_DECREF(type);
}

/* S-152 */
static void own_module(void) {
    CHECK(PyType_GetModule_DuringGC(based) == module);
    CHECK(PyType_GetModule_DuringGC(derived) == NULL);
    CHECK(PyType_GetModule_DuringGC(lone) == NULL);
}

static void s_152_the_module_of_exactly_this_type(void) {
    make();
    ask(own_module);
    CHECK(PyType_GetModule(based) == module);
    CHECK(PyType_GetModule(derived) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NO_MODULE);
    drop();
}

/* S-153 */
static void module_by_token(void) {
    CHECK(PyType_GetModuleByToken_DuringGC(based, &with_state) == module);
    CHECK(PyType_GetModuleByToken_DuringGC(derived, &with_state) == module);
    CHECK(PyType_GetModuleByToken_DuringGC(derived, &without_state) == NULL);
    CHECK(PyType_GetModuleByToken_DuringGC(empty_type, &without_state) == empty_module);
    CHECK(PyType_GetModuleByToken_DuringGC(derived, NULL) == NULL);
}

static void s_153_a_module_by_its_token_through_a_base(void) {
    Py_ssize_t count;
    PyObject *found;
    make();
    count = Py_REFCNT(module);
    ask(module_by_token);
    CHECK_INT(misuses(0), 0);
    CHECK(!PyErr_Occurred());
    CHECK_INT(Py_REFCNT(module), count);
    found = PyType_GetModuleByToken(derived, &with_state);
    CHECK(found == module);
    CHECK_INT(Py_REFCNT(module), count + 1);
    Py_DECREF(found);
    CHECK(PyType_GetModuleByDef(derived, &with_state) == module);
    CHECK(PyType_GetModuleByToken(derived, &without_state) == NULL);
    EXPECT_ERROR(STANDSTILL_E_NO_MODULE);
    drop();
}

static void s_154_all_eight_are_exported(void) {
    CHECK(PyObject_GetTypeData_DuringGC != NULL && PyObject_GetItemData_DuringGC != NULL);
    CHECK(PyType_GetModuleState_DuringGC != NULL && PyModule_GetState_DuringGC != NULL);
    CHECK(PyModule_GetToken_DuringGC != NULL && PyType_GetBaseByToken_DuringGC != NULL);
    CHECK(PyType_GetModule_DuringGC != NULL && PyType_GetModuleByToken_DuringGC != NULL);
}

/* S-155 */
static void counterparts(void) {
    PyTypeObject *found = NULL;
    void *result = NULL;
    CHECK(PyObject_GetTypeData(of_relative, relative) == NULL);
    CHECK(PyObject_GetItemData(of_items) == NULL);
    CHECK(PyType_GetModuleState(based) == NULL);
    CHECK(PyModule_GetState(module) == NULL);
    CHECK_INT(PyModule_GetToken(module, &result), -1);
    CHECK_INT(PyType_GetBaseByToken(derived, &base_token, &found), -1);
    CHECK(PyType_GetModule(based) == NULL);
    CHECK(PyType_GetModuleByToken(derived, &with_state) == NULL);
}

static void s_155_the_counterparts_are_refused_in_a_handler(void) {
    Py_ssize_t count;
    make();
    count = Py_REFCNT(module);
    ask(counterparts);
    EXPECT_MISUSE(STANDSTILL_E_IN_TRAVERSAL, 8);
    CHECK_INT(Py_REFCNT(module), count);
    CHECK(!PyErr_Occurred());
    drop();
}

const struct test during_gc_tests[] = {
    TEST(s_140_each_of_the_eight_is_refused_outside),
    TEST(s_140_a_walk_over_referents_is_a_traversal),
    TEST(s_141_the_answers_are_those_of_the_counterparts),
    TEST(s_142_no_count_changes),
    TEST(s_143_no_failure_sets_an_error),
    TEST(s_144_results_are_borrowed),
    TEST(s_145_null_may_mean_success),
    TEST(s_146_type_data),
    TEST(s_147_item_data),
    TEST(s_148_the_state_of_the_types_module),
    TEST(s_149_the_state_of_a_module),
    TEST(s_150_the_token_of_a_module),
    TEST(s_151_a_base_by_its_token),
    TEST(s_151_the_spec_can_be_the_token),
    TEST(s_152_the_module_of_exactly_this_type),
    TEST(s_153_a_module_by_its_token_through_a_base),
    TEST(s_154_all_eight_are_exported),
    TEST(s_155_the_counterparts_are_refused_in_a_handler),
    TESTS_END,
};
