/* What holds for correct programs in the corners where it did not: unattached threads, errors of types that go, names, modules. */

#include "check.h"

/* An error keeps its exception: a heap type lives as long as it stands in the indicator. */
static void an_error_keeps_its_exception_type(void) {
    PyType_Slot none[] = {{0, NULL}};
    long long before = LIVE(), with_type;
    PyTypeObject *type = type_of_slots("check.Mine", 0, 0, Py_TPFLAGS_DEFAULT, none);
    PyObject *weak;
    MUST(type != NULL);
    weak = weak_to(type);
    with_type = LIVE();
    PyErr_SetString((PyObject *)type, "mine");
    Py_DECREF(type);
    CHECK_INT(LIVE(), with_type);
    CHECK(PyErr_Occurred() == (PyObject *)type);
    CHECK_INT(PyErr_ExceptionMatches((PyObject *)type), 1);
    /* It stays while an error of another kind takes its place, and no longer. */
    PyErr_SetString(PyExc_ValueError, "other");
    CHECK_INT(is_alive(weak), 0);
    PyErr_Clear();
    Py_DECREF(weak);
    CHECK_INT(LIVE(), before);
}


static void sets_and_ends(void *arg) { PyErr_SetString(arg, "left behind"); }

/* A thread that ends with an error in its indicator drops the exception. */
static void an_error_that_a_thread_leaves_drops_its_exception_type(void) {
    PyType_Slot none[] = {{0, NULL}};
    long long before = LIVE();
    PyTypeObject *type = type_of_slots("check.Left", 0, 0, Py_TPFLAGS_DEFAULT, none);
    thread t;
    MUST(type != NULL);
    start_raw(&t, sets_and_ends, type);
    join(&t);
    Py_DECREF(type);
    standstill_safepoint();
    CHECK_INT(LIVE(), before);
}

static PyObject *tuple_of_thread;

static void sets_an_item(void *arg) {
    CHECK_INT(PyTuple_SetItem(tuple_of_thread, 0, arg), -1);
    EXPECT_ERROR(STANDSTILL_E_NOT_ATTACHED);
}

/* PyTuple_SetItem takes the reference in any case, on an unattached thread too. */
static void a_refused_set_item_drops_the_item_all_the_same(void) {
    long long before = LIVE();
    thread t;
    tuple_of_thread = PyTuple_New(1);
    start_raw(&t, sets_an_item, pair(NULL, NULL));
    join(&t);
    standstill_safepoint();
    CHECK_INT(calls.freed, 1);
    Py_DECREF(tuple_of_thread);
    CHECK_INT(LIVE(), before);
}

static PyTypeObject Late_Type = {TYPE_HEAD .tp_name = "check.Late", .tp_basicsize = sizeof(Pair),
                                 .tp_flags = Py_TPFLAGS_DEFAULT};

static void makes_ready(void *arg) {
    Late_Type.tp_bases = arg;
    CHECK_INT(PyType_Ready(&Late_Type), 0);
    CHECK(!PyErr_Occurred());
}

/* PyType_Ready needs no attached thread, and sees tp_bases without one. */
static void an_unattached_thread_makes_a_type_with_bases_ready(void) {
    PyObject *bases = PyTuple_New(1);
    thread t;
    PyTuple_SetItem(bases, 0, Py_NewRef((PyObject *)&Pair_Type));
    start_raw(&t, makes_ready, bases);
    join(&t);
    CHECK(Late_Type.tp_base == &Pair_Type);
    CHECK_INT(PyType_IsSubtype(&Late_Type, &Pair_Type), 1);
    CHECK(Late_Type.tp_traverse == pair_traverse);
    Late_Type.tp_bases = NULL;
    Py_DECREF(bases);
}

/* Questions about objects of another heap are an error, and nothing is printed for it. */
static void questions_about_another_heap_are_an_error(void) {
    standstill_heap_options options;
    standstill_heap *other;
    PyObject *objects[1];
    memset(&options, 0, sizeof options);
    options.checked = check_is_checked;
    objects[0] = (PyObject *)pair(NULL, NULL);
    MUST(standstill_detach() == 0);
    other = standstill_heap_new(&options);
    CHECK(other != NULL);
    MUST(standstill_attach(other) == 0);
    CHECK(standstill_gc_get_referrers(objects, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_FOREIGN_POINTER);
    CHECK(standstill_gc_get_referents(objects, 1) == NULL);
    EXPECT_ERROR(STANDSTILL_E_FOREIGN_POINTER);
    MUST(standstill_detach() == 0);
    CHECK_INT(standstill_heap_free(other), 0);
    MUST(standstill_attach(check_heap) == 0);
    Py_DECREF(objects[0]);
}

struct state {
    PyObject *held;
};
static long freed_modules, cleared_modules;

static int state_traverse(PyObject *module, visitproc visit, void *arg) {
    struct state *state = PyModule_GetState_DuringGC(module);
    Py_VISIT(state->held);
    return 0;
}
static int state_clear(PyObject *module) {
    struct state *state = PyModule_GetState(module);
    cleared_modules++;
    Py_CLEAR(state->held);
    return 0;
}
/* Asks for the state of the module that goes, and writes to it. */
static void state_free(void *module) {
    struct state *state = PyModule_GetState(module);
    CHECK(state != NULL);
    CHECK(strcmp(PyModule_GetName(module), "check.stateful") == 0);
    Py_CLEAR(state->held);
    freed_modules++;
}
static PyModuleDef stateful = {PyModuleDef_HEAD_INIT, "check.stateful", NULL, sizeof(struct state), NULL, NULL,
                               state_traverse, state_clear, state_free};

/* m_clear and m_free are called, each once, and may use the state. */
static void a_module_that_goes_can_use_its_state(void) {
    long long before = LIVE();
    struct state *state;
    PyObject *module = PyModule_Create(&stateful);
    MUST(module != NULL);
    state = PyModule_GetState(module);
    state->held = (PyObject *)pair(NULL, NULL);
    freed_modules = cleared_modules = 0;
    Py_DECREF(module);
    CHECK_INT(freed_modules, 1);
    CHECK_INT(cleared_modules, 0);
    CHECK_INT(calls.freed, 1);
    /* A cycle through the state: cleared by the collector, then freed. */
    module = PyModule_Create(&stateful);
    MUST(module != NULL);
    state = PyModule_GetState(module);
    state->held = (PyObject *)pair(module, NULL);
    Py_DECREF(module);
    CHECK_INT(PyGC_Collect(), 2);
    CHECK_INT(cleared_modules, 1);
    CHECK_INT(freed_modules, 2);
    CHECK_INT(calls.freed, 2);
    CHECK_INT(LIVE(), before);
}

/* A heap type's texts are its own copies, and go with it. */
static void the_texts_of_a_heap_type_are_its_own(void) {
    char name[] = "check.Named", doc[] = "text";
    PyType_Slot slots[] = {{Py_tp_doc, NULL}, {0, NULL}};
    PyTypeObject *type;
    slots[0].pfunc = doc;
    type = type_of_slots(name, 0, 0, Py_TPFLAGS_DEFAULT, slots);
    MUST(type != NULL);
    name[0] = doc[0] = 'X';
    CHECK(strcmp(type->tp_name, "check.Named") == 0);
    CHECK(strcmp(type->tp_doc, "text") == 0);
    Py_DECREF(type);
}

const struct test guarantees_tests[] = {
    TEST(an_error_keeps_its_exception_type),
    TEST(an_error_that_a_thread_leaves_drops_its_exception_type),
    TEST(a_refused_set_item_drops_the_item_all_the_same),
    TEST(an_unattached_thread_makes_a_type_with_bases_ready),
    TEST(questions_about_another_heap_are_an_error),
    TEST(a_module_that_goes_can_use_its_state),
    TEST(the_texts_of_a_heap_type_are_its_own),
    TESTS_END,
};
