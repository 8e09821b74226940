/* What holds for correct programs in the corners where it did not: unattached threads, errors of types that go, names, modules. */

#include "allocator.h"
#include "check.h"

#include <dirent.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
extern int pthread_setname_np(pthread_t id, const char *name);
#endif

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

/* The item keeps the object that is wrongly given as the tuple, and that object keeps its type: all three end in the call. */
static void a_refused_set_item_names_a_type_that_ends_with_the_item(void) {
    long long before = LIVE();
    char name[251], wanted[300];
    PyTypeObject *type;
    Pair *other, *item;
    int i;
    for (i = 0; i < 250; i++)
        name[i] = i == 1 ? '.' : 'A';
    name[250] = 0;
    type = heap_pair_type(name, 0, NULL);
    other = pair_of(type, NULL, NULL);
    Py_DECREF(type);
    item = pair(other, NULL);
    Py_DECREF(other);
    CHECK_INT(PyTuple_SetItem((PyObject *)other, 0, (PyObject *)item), -1);
    /* The text of the error, and the type that it is about. */
    snprintf(wanted, sizeof wanted, "of type '%s'", name);
    CHECK(standstill_error_message() && strstr(standstill_error_message(), wanted));
    snprintf(wanted, sizeof wanted, "(type %s,", name);
    CHECK(standstill_error_message() && strstr(standstill_error_message(), wanted));
    EXPECT_ERROR(STANDSTILL_E_WRONG_TYPE);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
}

static void finalizes(void *arg) {
    (void)arg;
    Py_Finalize();
}

/* On a thread that is not attached Py_Finalize is refused, and the thread that is attached can still call it. */
static void a_refused_finalize_leaves_the_library_initialized(void) {
    thread t;
    Py_Initialize();
    CHECK_INT(Py_IsInitialized(), 1);
    start_raw(&t, finalizes, NULL);
    join(&t);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ATTACHED, 2); /* the last collection, and the end of the attachment */
    CHECK_INT(Py_IsInitialized(), 1);
    CHECK_INT(standstill_is_attached(), 1);
    Py_Finalize();
    CHECK_INT(Py_IsInitialized(), 0);
    CHECK_INT(standstill_is_attached(), 0);
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

/* Nothing is printed for it. */
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

/* Reports -------------------------------------------------------------------------------------------------------- */

static void untracks_much(void) {
    Leaf *one = leaf();
    int i;
    for (i = 0; i < 20; i++)
        PyObject_GC_UnTrack(one); /* no container: reported */
    Py_DECREF(one);
}
static void asks_of_nothing(void) {
    int i;
    for (i = 0; i < 20; i++)
        Py_REFCNT(NULL);
}

/* Without a hook reports go to standard error, five of a kind at most: one code, one type. */
static void five_lines_of_a_kind_are_written(void) {
    standstill_set_misuse_hook(NULL, NULL);
    CHECK_INT(lines_of(untracks_much, "check.Leaf"), 5);
    CHECK_INT(lines_of(untracks_much, "check.Leaf"), 0);
    CHECK_INT(lines_of(asks_of_nothing, "Py_REFCNT"), 5);
}

static void asks_without_memory(void) {
    int i;
    refuse_memory(0, 1);
    for (i = 0; i < 20; i++)
        Py_REFCNT(NULL);
    CHECK_INT(grant_memory(), 1);
}

/* What cannot be counted is written each time. */
static void lines_are_written_without_memory(void) {
    standstill_set_misuse_hook(NULL, NULL);
    CHECK_INT(lines_of(asks_without_memory, "Py_REFCNT"), 20);
    CHECK_INT(lines_of(asks_of_nothing, "Py_REFCNT"), 5);
}

static int hook_calls;
static void misusing_hook(const standstill_misuse *misuse, void *arg) {
    (void)arg;
    CHECK_INT(misuse->code, STANDSTILL_E_NULL_ARGUMENT);
    CHECK(hook_calls++ == 0);
    Py_REFCNT(NULL);
    Py_SIZE(NULL);
}
static void asks_once(void) { Py_REFCNT(NULL); }

/* A mistake inside a hook is not reported to the hook: it is written. */
static void a_hook_is_not_called_inside_a_hook(void) {
    standstill_set_misuse_hook(misusing_hook, NULL);
    CHECK_INT(lines_of(asks_once, "misuse"), 2);
    CHECK_INT(hook_calls, 1);
    hook_calls = 0;
    CHECK_INT(lines_of(asks_once, "misuse"), 2);
    CHECK_INT(hook_calls, 1);
}

/* Slow stops: a thread blocks while it is attached, until something has been written or told. */
static standstill_heap *slow_heap;
static int is_blocking, told_of_slow_stops;

/* Standard error goes to a file meanwhile: see lines_of. */
static void wait_for_a_line(void) {
    const struct timespec pause = {0, 200000};
    struct stat file = {0};
    int rounds;
    for (rounds = 0; file.st_size == 0; rounds++) {
        CHECK(rounds < 100000 && fstat(2, &file) == 0);
        nanosleep(&pause, NULL);
    }
}
static void blocks_until_a_line(void *arg) {
    (void)arg;
    MUST(standstill_attach(slow_heap) == 0);
    PUT(is_blocking, 1);
    wait_for_a_line();
    MUST(standstill_detach() == 0);
}
static void blocks_until_the_hook_is_called(void *arg) {
    (void)arg;
#ifdef __linux__
    CHECK_INT(pthread_setname_np(pthread_self(), ""), 0);
#endif
    MUST(standstill_attach(slow_heap) == 0);
    PUT(is_blocking, 1);
    block_for(&told_of_slow_stops);
    MUST(standstill_detach() == 0);
}
static void (*blocks_how)(void *);
static void collects_while_one_blocks(void) {
    thread t;
    PUT(is_blocking, 0);
    start_raw(&t, blocks_how, NULL);
    wait_for(&is_blocking);
    CHECK_INT(PyGC_Collect(), 0);
    join(&t);
}
static void attach_to_slow_heap(void) {
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    options.checked = check_is_checked;
    options.slow_stop_ms = 1;
    slow_heap = standstill_heap_new(&options);
    MUST(slow_heap && standstill_detach() == 0 && standstill_attach(slow_heap) == 0);
}
static void leave_slow_heap(void) {
    MUST(standstill_detach() == 0 && standstill_heap_free(slow_heap) == 0 && standstill_attach(check_heap) == 0);
}
static void slow_stop_of_no_name(const standstill_slow_stop *report, void *arg) {
    CHECK(arg == NULL && report->text != NULL);
#ifdef __linux__
    CHECK(report->thread == NULL);
#endif
    ADD(told_of_slow_stops);
}

static void a_slow_stop_is_told_to_the_hook_or_on_stderr(void) {
    attach_to_slow_heap();
    blocks_how = blocks_until_a_line;
    CHECK(lines_of(collects_while_one_blocks, "standstill: a stop for a collection by ") > 0);
    standstill_set_slow_stop_hook(slow_stop_of_no_name, NULL);
    blocks_how = blocks_until_the_hook_is_called;
    CHECK_INT(lines_of(collects_while_one_blocks, ""), 0);
    standstill_set_slow_stop_hook(NULL, NULL);
    leave_slow_heap();
}

/* A stop takes long: its traverse handler waits until a thread that comes to attach has said so. */
static int stop_lasts, stop_has_begun;
static void (*lasts_until)(void);
static int lasting_traverse(PyObject *self, visitproc visit, void *arg) {
    if (GET(stop_lasts)) {
        PUT(stop_has_begun, 1);
        lasts_until();
    }
    return pair_traverse(self, visit, arg);
}
static PyTypeObject Lasting_Type = {TYPE_HEAD .tp_name = "check.Lasting", .tp_basicsize = sizeof(Pair),
                                    .tp_dealloc = pair_dealloc, .tp_clear = pair_clear,
                                    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                    .tp_traverse = lasting_traverse};
static void wait_for_the_hook(void) { block_for(&told_of_slow_stops); }
static void attaches_in_the_stop(void *arg) {
    (void)arg;
    block_for(&stop_has_begun);
    MUST(standstill_attach(slow_heap) == 0);
    MUST(standstill_detach() == 0);
}
static void attaching_hook(const standstill_misuse *misuse, void *arg) {
    CHECK_INT(misuse->code, STANDSTILL_E_NULL_ARGUMENT);
    attaches_in_the_stop(arg);
}
static void attaches_in_a_hook(void *arg) {
    (void)arg;
    Py_REFCNT(NULL);
}
static void collects_while_one_comes(void) {
    Pair *lasting = pair_of(&Lasting_Type, NULL, NULL);
    thread t;
    PUT(stop_has_begun, 0);
    PUT(told_of_slow_stops, 0);
    PUT(stop_lasts, 1);
    start_raw(&t, blocks_how, NULL);
    CHECK_INT(PyGC_Collect(), 0);
    PUT(stop_lasts, 0);
    join(&t);
    Py_DECREF(lasting);
}
/* The collecting thread reports itself, too, after the stop: it is attached then. */
static int reports_itself(const standstill_slow_stop *report) {
    return strstr(report->text, "collecting has taken") != NULL;
}
static void note_lasting_stop(const standstill_slow_stop *report, void *arg) {
    if (reports_itself(report))
        return;
    CHECK(arg == NULL && report->waited > 0 && report->text != NULL);
    CHECK_INT(report->ended, 0);
    ADD(told_of_slow_stops);
}
static void asks_of_a_lasting_stop(const standstill_slow_stop *report, void *arg) {
    if (reports_itself(report))
        return;
    CHECK_INT(standstill_is_attached(), 0); /* refused, as in a traverse handler */
    note_lasting_stop(report, arg);
}

/* A thread that waits for the end of a stop tells of it: to the hook, on stderr without one, or where the thread runs a hook. */
static void a_stop_that_lasts_is_told_to_the_hook_or_on_stderr(void) {
    attach_to_slow_heap();
    ready(&Lasting_Type);
    blocks_how = attaches_in_the_stop;
    lasts_until = wait_for_a_line;
    CHECK(lines_of(collects_while_one_comes, "standstill: ") > 0);
    CHECK_INT(told_of_slow_stops, 0);
    standstill_set_slow_stop_hook(note_lasting_stop, NULL);
    lasts_until = wait_for_the_hook;
    CHECK_INT(lines_of(collects_while_one_comes, ""), 0);
    CHECK(told_of_slow_stops > 0);
    standstill_set_slow_stop_hook(asks_of_a_lasting_stop, NULL);
    CHECK(lines_of(collects_while_one_comes, "misuse: standstill_is_attached") > 0);
    CHECK(told_of_slow_stops > 0);
    blocks_how = attaches_in_a_hook;
    lasts_until = wait_for_a_line;
    standstill_set_misuse_hook(attaching_hook, NULL);
    CHECK(lines_of(collects_while_one_comes, "standstill: ") > 0);
    CHECK_INT(told_of_slow_stops, 0);
    standstill_set_slow_stop_hook(NULL, NULL);
    leave_slow_heap();
}

static visitproc kept_visit;
static void *kept_arg;
static int keeping_traverse(PyObject *self, visitproc visit, void *arg) {
    (void)self;
    kept_visit = visit;
    kept_arg = arg;
    return 0;
}
static PyTypeObject Keeping_Type = {TYPE_HEAD .tp_name = "check.Keeping", .tp_basicsize = sizeof(Leaf),
                                    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                    .tp_traverse = keeping_traverse};
static void visits_late(void) { CHECK_INT(kept_visit((PyObject *)&Pair_Type, kept_arg), 0); }
static void visits_late_on_a_thread(void *arg) {
    (void)arg;
    visits_late();
}
static void visits_late_unattached(void) {
    thread t;
    start_raw(&t, visits_late_on_a_thread, NULL);
    join(&t);
}

/* A visitor that is called after its traversal is reported: to the hook, or on standard error where the thread has no heap. */
static void a_visitor_that_comes_too_late_is_told_to_the_hook_or_on_stderr(void) {
    PyObject *keeping;
    ready(&Keeping_Type);
    keeping = PyType_GenericAlloc(&Keeping_Type, 0);
    MUST(keeping != NULL);
    PyGC_Collect();
    CHECK(kept_visit != NULL);
    CHECK_INT(lines_of(visits_late, "StaleVisitor"), 0);
    EXPECT_MISUSE(STANDSTILL_E_STALE_VISITOR, 1);
    CHECK_INT(lines_of(visits_late_unattached, "StaleVisitor"), 1);
    CHECK_INT(misuses(0), 0);
    Py_DECREF(keeping);
}

static void collects_with_stats(void) {
    CHECK_INT(standstill_gc_set_debug(STANDSTILL_GC_DEBUG_STATS), 0);
    PyGC_Collect();
    CHECK_INT(standstill_gc_set_debug(0), 0);
}
static int sunk;
static void sink(const char *line, void *arg) {
    CHECK(line != NULL && arg == &sunk);
    sunk++;
}

/* Lines of collections go to the sink, and to standard error without one. */
static void debug_lines_go_to_the_sink_or_to_stderr(void) {
    CHECK(lines_of(collects_with_stats, "gc") > 0);
    standstill_gc_set_debug_sink(sink, &sunk);
    CHECK_INT(lines_of(collects_with_stats, "gc"), 0);
    CHECK(sunk > 0);
    sunk = 0;
    standstill_gc_set_debug_sink(NULL, NULL);
    CHECK(lines_of(collects_with_stats, "gc") > 0);
    CHECK_INT(sunk, 0);
}

static int audited;
static void audit(const char *event, void *arg) {
    CHECK(event != NULL && arg == &audited);
    audited++;
}

static void an_audit_hook_is_called_until_it_is_removed(void) {
    standstill_gc_set_audit_hook(audit, &audited);
    Py_XDECREF(standstill_gc_get_objects(-1));
    CHECK_INT(audited, 1);
    standstill_gc_set_audit_hook(NULL, NULL);
    Py_XDECREF(standstill_gc_get_objects(-1));
    CHECK_INT(audited, 1);
}

static PyObject *blamed;
static void leaves_an_error(void) {
    PyErr_SetString(PyExc_ValueError, "left\xff here");
    PyErr_WriteUnraisable(blamed);
}
static int nested_calls;
static void failing_unraisable(const standstill_unraisable *error, void *arg) {
    CHECK(arg == &nested_calls && error->object == blamed);
    CHECK((error->type == NULL) == (blamed == NULL));
    CHECK(strcmp(error->message, "left\xef\xbf\xbd here") == 0);
    nested_calls++;
    leaves_an_error();
}

/* Without a hook an error that no caller receives is written to standard error, and so is one inside the hook. */
static void an_ignored_error_is_written_where_no_hook_takes_it(void) {
    Leaf *one = leaf();
    standstill_set_unraisable_hook(NULL, NULL);
    CHECK_INT(lines_of(leaves_an_error, "an error was ignored"), 1);
    CHECK_INT(lines_of(leaves_an_error, "in: call\n"), 1);
    CHECK_INT(lines_of(leaves_an_error, "error: left"), 1);
    blamed = (PyObject *)one;
    CHECK_INT(lines_of(leaves_an_error, "in: call of check.Leaf"), 1);
    standstill_set_unraisable_hook(failing_unraisable, &nested_calls);
    CHECK_INT(lines_of(leaves_an_error, "in: call of check.Leaf"), 1);
    CHECK_INT(nested_calls, 1);
    blamed = NULL;
    CHECK_INT(lines_of(leaves_an_error, "in: call\n"), 1);
    CHECK_INT(nested_calls, 2);
    CHECK(!PyErr_Occurred());
    Py_DECREF(one);
}

static void names_no_type(const standstill_misuse *misuse, void *arg) {
    CHECK(misuse->type == NULL && misuse->object == NULL && arg == &nested_calls);
    CHECK(strcmp(misuse->code_name, "NullArgument") == 0 && strcmp(misuse->function, "Py_REFCNT") == 0);
    nested_calls++;
}

static void a_report_about_nothing_names_neither_type_nor_object(void) {
    standstill_set_misuse_hook(names_no_type, &nested_calls);
    nested_calls = 0;
    Py_REFCNT(NULL);
    CHECK_INT(nested_calls, 1);
}

/* Errors of inheritance and attributes, with their exceptions (which EXPECT_ERROR looks at). */
static void errors_of_bases_and_attributes(void) {
    PyType_Slot none[] = {{0, NULL}};
    PyType_Spec spec = {"check.Derived", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, none};
    PyTypeObject *final = type_of_slots("check.Final", 0, 0, Py_TPFLAGS_DEFAULT, none);
    PyTypeObject *a, *b, *ab, *ba;
    PyObject *bases = PyTuple_New(2), *one = (PyObject *)leaf();
    CHECK(PyType_FromSpecWithBases(&spec, (PyObject *)final) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_BASE);
    a = (PyTypeObject *)PyType_FromSpec(&spec);
    b = (PyTypeObject *)PyType_FromSpec(&spec);
    PyTuple_SetItem(bases, 0, Py_NewRef((PyObject *)a));
    PyTuple_SetItem(bases, 1, Py_NewRef((PyObject *)b));
    ab = (PyTypeObject *)PyType_FromSpecWithBases(&spec, bases);
    PyTuple_SetItem(bases, 0, Py_NewRef((PyObject *)b));
    PyTuple_SetItem(bases, 1, Py_NewRef((PyObject *)a));
    ba = (PyTypeObject *)PyType_FromSpecWithBases(&spec, bases);
    MUST(ab && ba);
    PyTuple_SetItem(bases, 0, (PyObject *)ab);
    PyTuple_SetItem(bases, 1, (PyObject *)ba);
    CHECK(PyType_FromSpecWithBases(&spec, bases) == NULL);
    EXPECT_ERROR(STANDSTILL_E_BAD_MRO);
    CHECK(PyObject_GetAttrString(one, "none") == NULL);
    EXPECT_ERROR(STANDSTILL_E_NO_ATTRIBUTE);
    CHECK_INT(PyObject_SetAttrString(one, "none", NULL), -1);
    EXPECT_ERROR(STANDSTILL_E_NO_ATTRIBUTE);
    Py_DECREF(one);
    Py_DECREF(bases);
    Py_DECREF(a);
    Py_DECREF(b);
    Py_DECREF(final);
    PyErr_BadInternalCall();
    CHECK(PyErr_Occurred() == PyExc_SystemError);
    PyErr_NoMemory();
    EXPECT_ERROR(STANDSTILL_E_MEMORY);
}

/* PyErr_SetString without an exception is a SystemError with the message; without a message it has none. */
static void an_error_without_an_exception_is_a_system_error(void) {
    PyErr_SetString(NULL, "what happened");
    CHECK(PyErr_Occurred() == PyExc_SystemError);
    CHECK_INT(PyErr_ExceptionMatches(PyExc_SystemError), 1);
    CHECK_INT(PyErr_ExceptionMatches(PyExc_TypeError), 0);
    CHECK(strcmp(standstill_error_message(), "what happened") == 0);
    PyErr_SetString(PyExc_ValueError, NULL);
    CHECK(PyErr_Occurred() == PyExc_ValueError);
    CHECK(strcmp(standstill_error_message(), "") == 0);
    PyErr_Clear();
}

/* Collections ------------------------------------------------------------------------------------------------------ */

static standstill_gc_info last_stop;
static int stops;
static void remembers(const char *phase, const standstill_gc_info *info, void *arg) {
    (void)arg;
    if (strcmp(phase, "stop") == 0) {
        last_stop = *info;
        stops++;
    } else {
        CHECK_INT(info->candidates, 0);
        CHECK_INT(info->collected, 0);
    }
}

/* A progress callback receives the number of objects that the collection has looked at, and the sums contain it. */
static void callbacks_are_told_of_candidates(void) {
    standstill_gc_stats before[3], after[3];
    unsigned long long some;
    Pair *held;
    int id = standstill_gc_add_callback(remembers, NULL);
    CHECK(id >= 0);
    PyGC_Collect();
    some = last_stop.candidates;
    CHECK_INT(standstill_gc_get_stats(before), 0);
    held = ring(10);
    garbage_ring(7);
    CHECK_INT(PyGC_Collect(), 7);
    CHECK_INT(stops, 2);
    CHECK_INT(last_stop.candidates - some, 17);
    CHECK_INT(last_stop.collected, 7);
    CHECK_INT(last_stop.generation, 2);
    CHECK_INT(standstill_gc_get_stats(after), 0);
    CHECK_INT(after[2].candidates - before[2].candidates, last_stop.candidates);
    CHECK_INT(after[2].collections - before[2].collections, 1);
    CHECK_INT(standstill_gc_remove_callback(id), 0);
    Py_CLEAR(held->a);
    Py_DECREF(held);
    PyGC_Collect();
    CHECK_INT(stops, 2);
}

static int detached_inside;
static int detaches(PyObject *object, void *arg) {
    (void)object;
    (void)arg;
    detached_inside += standstill_detach() == 0;
    CHECK(PyEval_SaveThread() == NULL);
    CHECK_INT(standstill_is_attached(), 1);
    return 1;
}

/* The visit relies on the attachment: a callback cannot end it, nor put it down. */
static void a_visit_cannot_be_left_attached_to_nothing(void) {
    Pair *one = pair(NULL, NULL);
    PyUnstable_GC_VisitObjects(detaches, NULL);
    CHECK_INT(detached_inside, 0);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, -1);
    CHECK_INT(standstill_is_attached(), 1);
    Py_DECREF(one);
}

/* Heaps ------------------------------------------------------------------------------------------------------------ */

static void the_default_heap_is_not_freed(void) {
    standstill_heap *heap = standstill_default_heap();
    CHECK(heap != NULL);
    CHECK_INT(standstill_heap_free(heap), -1);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, 1);
    CHECK(standstill_default_heap() == heap);
    CHECK_INT(standstill_attach(heap), 0);
    ready(&Pair_Type);
    Py_DECREF(pair(NULL, NULL));
    CHECK_INT(standstill_heap_free(heap), -1);
    EXPECT_MISUSE(STANDSTILL_E_NOT_ALLOWED_HERE, 1);
    CHECK_INT(standstill_detach(), 0);
}

static void enter_heap(const standstill_heap_options *options, standstill_heap **heap) {
    *heap = standstill_heap_new(options);
    MUST(*heap != NULL);
    MUST(standstill_attach(*heap) == 0);
    ready(&Pair_Type);
}

static void leave_heap(standstill_heap *heap) {
    MUST(standstill_detach() == 0);
    CHECK_INT(standstill_heap_free(heap), 0);
}

/* The limit of a heap is kept: beyond it allocations fail, and what is freed can be had again. */
static void a_limit_is_kept(void) {
    standstill_heap_options options;
    standstill_heap *heap;
    PyObject *all = NULL;
    long made, round;
    memset(&options, 0, sizeof options);
    options.limit = 1 << 20;
    enter_heap(&options, &heap);
    for (round = 0; round < 2; round++) {
        for (made = 0; made < 100000; made++) {
            Pair *next = (Pair *)Pair_Type.tp_alloc(&Pair_Type, 0);
            if (next == NULL)
                break;
            next->a = all;
            all = (PyObject *)next;
        }
        EXPECT_ERROR(STANDSTILL_E_MEMORY);
        CHECK(made > 10000);
        CHECK(made < 1 << 15); /* objects of 32 bytes at least */
        Py_CLEAR(all);
    }
    leave_heap(heap);
}

static int threads_of_this_process(void) {
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    int threads = 0;
    CHECK(tasks != NULL);
    while ((entry = readdir(tasks)) != NULL)
        threads += entry->d_name[0] != '.';
    closedir(tasks);
    return threads;
}

/* The same when those of the heap before have ended. */
static int threads_at_rest(void) {
    static int first;
    struct timespec pause = {0, 1000000};
    int rounds, now = threads_of_this_process();
    first = first ? first : now;
    for (rounds = 0; now > first && rounds < 10000; rounds++) {
        nanosleep(&pause, NULL);
        now = threads_of_this_process();
    }
    return now;
}

/* How many threads a heap with these options has started after a collection of 20,000 objects. */
static int helpers_with(unsigned workers, size_t serial_below) {
    standstill_heap_options options;
    standstill_heap *heap;
    int before, helpers;
    Pair *first;
    memset(&options, 0, sizeof options);
    options.workers = workers;
    options.serial_below = serial_below;
    before = threads_at_rest();
    enter_heap(&options, &heap);
    first = ring(20000);
    PyGC_Collect();
    helpers = threads_of_this_process() - before;
    Py_CLEAR(first->a);
    Py_DECREF(first);
    leave_heap(heap);
    return helpers;
}

/* A heap collects on as many threads as it was told to, from so many objects on. */
static void workers_and_serial_below_are_kept(void) {
    int four = helpers_with(4, 1), two = helpers_with(2, 1);
    CHECK_INT(helpers_with(1, 1), 0);
    CHECK(two >= 1);
    CHECK(four > two);
    CHECK_INT(helpers_with(4, 1 << 30), 0);
}

const struct test guarantees_tests[] = {
    TEST(an_error_keeps_its_exception_type),
    TEST(an_error_that_a_thread_leaves_drops_its_exception_type),
    TEST(a_refused_set_item_drops_the_item_all_the_same),
    TEST(a_refused_set_item_names_a_type_that_ends_with_the_item),
    TEST_AS(a_refused_finalize_leaves_the_library_initialized, BARE),
    TEST(an_unattached_thread_makes_a_type_with_bases_ready),
    TEST(questions_about_another_heap_are_an_error),
    TEST(a_module_that_goes_can_use_its_state),
    TEST(the_texts_of_a_heap_type_are_its_own),
    TEST(five_lines_of_a_kind_are_written),
    TEST(lines_are_written_without_memory),
    TEST(a_hook_is_not_called_inside_a_hook),
    TEST(a_slow_stop_is_told_to_the_hook_or_on_stderr),
    TEST(a_stop_that_lasts_is_told_to_the_hook_or_on_stderr),
    TEST(a_visitor_that_comes_too_late_is_told_to_the_hook_or_on_stderr),
    TEST(debug_lines_go_to_the_sink_or_to_stderr),
    TEST(an_audit_hook_is_called_until_it_is_removed),
    TEST(an_ignored_error_is_written_where_no_hook_takes_it),
    TEST(a_report_about_nothing_names_neither_type_nor_object),
    TEST(errors_of_bases_and_attributes),
    TEST(an_error_without_an_exception_is_a_system_error),
    TEST(callbacks_are_told_of_candidates),
    TEST(a_visit_cannot_be_left_attached_to_nothing),
    TEST_AS(the_default_heap_is_not_freed, BARE),
    TEST_AS(a_limit_is_kept, BARE),
    TEST_AS(workers_and_serial_below_are_kept, BARE),
    TESTS_END,
};
