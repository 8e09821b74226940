/* What functions do where the allocator refuses memory: they fail, say so, and have changed nothing. */

#include "allocator.h"
#include "check.h"

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

/* Calls `act` until nothing is refused any more: each time one allocation more is granted, and all after it are refused. (Where
 * one alone is refused, std's own infallible allocations may meet it.) `failed` looks at what a call has said that gave 0; `undo`
 * undoes one that gave another number. */
static void with_ever_more_memory(int (*act)(void), void (*failed)(void), void (*undo)(void)) {
    long after;
    int refused = 1, failures = 0;
    for (after = 0; refused; after++) {
        int worked;
        CHECK(after < 2000);
        refuse_memory(after, 1);
        worked = act();
        refused = grant_memory();
        if (worked) {
            undo();
        } else {
            CHECK(refused);
            failures++;
            failed();
        }
    }
    CHECK(failures > 0);
}
static void an_error_of_memory(void) { EXPECT_ERROR(STANDSTILL_E_MEMORY); }
static void a_report_of_memory(void) {
    CHECK(!PyErr_Occurred());
    EXPECT_MISUSE(STANDSTILL_E_MEMORY, 1);
}

/* Runs `run` on a new thread that is not attached. The calling thread detaches before it starts that thread: to detach takes
 * memory, and `run` refuses memory to every thread. */
static void run_on_raw_thread(void (*run)(void *)) {
    thread t;
    int failed;
    Py_BEGIN_ALLOW_THREADS
    start_raw(&t, run, NULL);
    failed = pthread_join(t.id, NULL);
    Py_END_ALLOW_THREADS
    CHECK(!failed);
}

static PyTypeObject late_types[40];

/* Many, so that each list that the library keeps of them has to grow. The first one makes the built-in types ready, too. */
static void a_type_becomes_ready_when_there_is_memory(void) {
    int late;
    for (late = 0; late < 40; late++) {
        PyTypeObject *type = &late_types[late];
        int worked = 0;
        long after;
        type->tp_name = "check.LateType";
        type->tp_basicsize = sizeof(Pair);
        type->tp_base = late ? &late_types[late - 1] : NULL;
        type->tp_flags = GC_TYPE | Py_TPFLAGS_BASETYPE;
        type->tp_traverse = pair_traverse;
        type->tp_clear = pair_clear;
        for (after = 0; !worked; after++) {
            CHECK(after < 2000);
            refuse_memory(after, 1);
            worked = PyType_Ready(type) == 0;
            grant_memory();
            if (!worked) {
                an_error_of_memory();
                CHECK(!(type->tp_flags & Py_TPFLAGS_READY));
            }
        }
        CHECK(after > 1 && PyType_IsSubtype(type, &late_types[0]));
    }
    CHECK(PyTuple_Type.tp_flags & Py_TPFLAGS_READY);
}

/* std's handle of a thread takes memory that cannot be refused: a thread is attached once before. */
static int attaches(void) { return standstill_attach(check_heap) == 0; }
static void detaches(void) { MUST(standstill_detach() == 0); }
static void the_error_names_the_function(void) {
    CHECK(strstr(standstill_error_message(), "standstill_attach") != NULL);
    an_error_of_memory();
}
static void attaches_on_a_new_thread(void *arg) {
    (void)arg;
    MUST(attaches());
    detaches();
    with_ever_more_memory(attaches, the_error_names_the_function, detaches);
}
static void a_thread_attaches_when_there_is_memory(void) {
    run_on_raw_thread(attaches_on_a_new_thread);
}

static PyThreadState *put_down;
static int puts_down(void) { return (put_down = PyEval_SaveThread()) != NULL; }
static void takes_up(void) {
    PyEval_RestoreThread(put_down);
    CHECK_INT(standstill_is_attached(), 1);
}
static void still_attached(void) {
    a_report_of_memory();
    CHECK_INT(standstill_is_attached(), 1);
}
static void puts_its_attachment_down(void *arg) {
    (void)arg;
    MUST(standstill_attach(check_heap) == 0);
    with_ever_more_memory(puts_down, still_attached, takes_up);
    detaches();
}
static int ensured;
static int ensures(void) { return (ensured = PyGILState_Ensure()) == PyGILState_UNLOCKED; }
static void releases(void) {
    CHECK_INT(standstill_is_attached(), 1);
    PyGILState_Release(ensured);
    CHECK_INT(standstill_is_attached(), 0);
}
static void still_not_attached(void) {
    a_report_of_memory();
    CHECK_INT(standstill_is_attached(), 0);
}
static void ensures_an_attachment(void *arg) {
    (void)arg;
    MUST(standstill_attach(NULL) == 0);
    detaches();
    with_ever_more_memory(ensures, still_not_attached, releases);
}

/* What PyEval_SaveThread and PyGILState_Ensure need is asked for before anything changes. */
static void an_attachment_is_put_down_and_ensured_when_there_is_memory(void) {
    MUST(standstill_default_heap() != NULL);
    run_on_raw_thread(puts_its_attachment_down);
    run_on_raw_thread(ensures_an_attachment);
}

static int initializes(void) {
    Py_Initialize();
    return Py_IsInitialized();
}
static void finalizes(void) {
    Py_Finalize();
    CHECK_INT(Py_IsInitialized(), 0);
    CHECK_INT(standstill_is_attached(), 0);
}
static void initializes_with_ever_more_memory(void *arg) {
    (void)arg;
    MUST(standstill_attach(NULL) == 0);
    detaches();
    with_ever_more_memory(initializes, still_not_attached, finalizes);
}
static void initialize_works_when_there_is_memory(void) {
    MUST(standstill_default_heap() != NULL);
    run_on_raw_thread(initializes_with_ever_more_memory);
}

/* Finalizers within finalizers, each of which sets an error. */
enum { DEEPEST = 12, ROOM = 8 };
static PyObject *nested[DEEPEST + 1];
static int depth, refused_throughout, keeps_its_error[DEEPEST];
static void nesting_finalizer(PyObject *self) {
    int own = depth++;
    char text[2] = {(char)('a' + own), 0};
    CHECK(nested[own] == self);
    if (!refused_throughout)
        grant_memory();
    CHECK(!PyErr_Occurred());
    if (own < DEEPEST) {
        PyErr_SetString(PyExc_ValueError, text);
        if (!refused_throughout)
            refuse_memory(0, 1);
        PyObject_CallFinalizer(nested[own + 1]);
        if (!refused_throughout)
            grant_memory();
        keeps_its_error[own] = PyErr_Occurred() && strcmp(standstill_error_message(), text) == 0;
        CHECK(keeps_its_error[own] || !PyErr_Occurred());
        PyErr_Clear();
    }
    depth--;
}
static PyTypeObject Nesting_Type = {TYPE_HEAD .tp_name = "check.NestingErrors", .tp_basicsize = sizeof(Pair),
                                    .tp_base = &Pair_Type, .tp_finalize = nesting_finalizer};

/* There is room to set errors aside. Where it ends an error may be lost, and no other one. */
static void errors_are_set_aside_without_memory(void) {
    int i, kept;
    ready(&Nesting_Type);
    /* In this order: once there has been memory for more of them there is room for more. */
    for (refused_throughout = 1; refused_throughout >= 0; refused_throughout--) {
        for (i = 0; i <= DEEPEST; i++)
            nested[i] = (PyObject *)pair_of(&Nesting_Type, NULL, NULL);
        PyErr_SetString(PyExc_TypeError, "before");
        if (refused_throughout)
            refuse_memory(0, 1);
        PyObject_CallFinalizer(nested[0]);
        grant_memory();
        CHECK(PyErr_Occurred() == PyExc_TypeError && strcmp(standstill_error_message(), "before") == 0);
        PyErr_Clear();
        for (kept = 0; kept < DEEPEST && keeps_its_error[kept]; kept++)
            ;
        CHECK(refused_throughout ? kept >= ROOM - 1 && kept < DEEPEST : kept == DEEPEST);
        for (i = 0; i <= DEEPEST; i++)
            Py_DECREF(nested[i]);
    }
}

const struct test memory_tests[] = {
    TEST_AS(a_type_becomes_ready_when_there_is_memory, BARE),
    TEST(a_thread_attaches_when_there_is_memory),
    TEST(an_attachment_is_put_down_and_ensured_when_there_is_memory),
    TEST(initialize_works_when_there_is_memory),
    TEST(errors_are_set_aside_without_memory),
    TESTS_END,
};
