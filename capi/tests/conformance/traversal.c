/* Section L: what a traverse handler may do, and what may be called in it. */

#include "check.h"

#define GC_TYPE (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC)

static void (*inside)(PyObject *self, visitproc visit, void *arg);
static int went_inside;

static int guarded_traverse(PyObject *self, visitproc visit, void *arg) {
    if (inside && __atomic_exchange_n(&went_inside, 1, __ATOMIC_SEQ_CST) == 0)
        inside(self, visit, arg);
    return pair_traverse(self, visit, arg);
}
static PyTypeObject Guarded_Type = {
    TYPE_HEAD
    .tp_name = "check.Guarded",
    .tp_basicsize = sizeof(Pair),
    .tp_flags = GC_TYPE | STANDSTILL_TPFLAGS_SERIAL_TRAVERSE,
    .tp_dealloc = pair_dealloc,
    .tp_traverse = guarded_traverse,
    .tp_clear = pair_clear,
};

/* Objects for the functions that are called in a handler. */
static Pair *guarded;
static PyObject *text, *number, *tuple, *module, *weak;
static PyTypeObject *heap_type, *tuple_type;
static PyObject *tuple_of_subtype;
static PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "check", .m_size = 16};

static standstill_weak_map *map;
static standstill_guardian *guardian;

static void make_objects(void) {
    PyType_Slot under_tuple[] = {{Py_tp_base, &PyTuple_Type}, {0, NULL}};
    ready(&Guarded_Type);
    guarded = pair_of(&Guarded_Type, NULL, NULL);
    text = PyUnicode_FromString("text");
    number = PyLong_FromLong(12);
    tuple = PyTuple_Pack(2, text, number);
    module = PyModule_Create(&definition);
    weak = weak_to(guarded);
    map = standstill_weak_map_new();
    guardian = standstill_guardian_new();
    heap_type = heap_pair_type("check.Heap", 0, NULL);
    tuple_type = type_of_slots("check.SubTuple", 0, 0, Py_TPFLAGS_DEFAULT, under_tuple);
    MUST(text && number && tuple && module && tuple_type && map && guardian);
    tuple_of_subtype = tuple_type->tp_alloc(tuple_type, 1);
    MUST(tuple_of_subtype != NULL);
}

static void drop_objects(void) {
    Py_DECREF(tuple_of_subtype);
    Py_DECREF(tuple_type);
    Py_DECREF(heap_type);
    Py_DECREF(weak);
    standstill_weak_map_free(map);
    standstill_guardian_free(guardian);
    Py_DECREF(module);
    Py_DECREF(tuple);
    Py_DECREF(number);
    Py_DECREF(text);
    Py_DECREF(guarded);
}

/* Runs the function in a traverse handler of a collection. */
static void run_inside(void (*function)(PyObject *, visitproc, void *)) {
    make_objects();
    inside = function;
    PyGC_Collect();
    CHECK_INT(went_inside, 1);
    inside = NULL;
}

/* S-125 */
static void allocate_inside(PyObject *self, visitproc visit, void *arg) {
    (void)self;
    (void)visit;
    (void)arg;
    CHECK(PyObject_GC_New(Pair, &Pair_Type) == NULL);
    CHECK(PyType_GenericAlloc(&Pair_Type, 0) == NULL);
}

static void s_125_an_allocation_in_a_handler_is_refused(void) {
    long long live;
    garbage_ring(3);
    make_objects();
    live = LIVE();
    inside = allocate_inside;
    CHECK_INT(PyGC_Collect(), 3);
    CHECK_INT(went_inside, 1);
    EXPECT_MISUSE(STANDSTILL_E_IN_TRAVERSAL, 2);
    CHECK_INT(LIVE(), live - 3);
    CHECK(!PyErr_Occurred());
    drop_objects();
}

static void change_counts_inside(PyObject *self, visitproc visit, void *arg) {
    int i;
    (void)visit;
    (void)arg;
    for (i = 0; i < 3; i++)
        Py_INCREF(text);
    for (i = 0; i < 5; i++)
        Py_DECREF(number);
    Py_DECREF(self);
    for (i = 0; i < 3; i++)
        (void)PyTuple_SetItem(tuple, 0, number); /* the only function that steals a reference */
    PyObject_GC_UnTrack(self);
    PyErr_SetString(PyExc_ValueError, "no");
}

static void s_125_counts_and_tracking_do_not_change_in_a_handler(void) {
    make_objects();
    inside = change_counts_inside;
    CHECK_INT(PyGC_Collect(), 0);
    CHECK(misuses_in(STANDSTILL_E_IN_TRAVERSAL, "Py_IncRef") >= 1);
    CHECK(misuses_in(STANDSTILL_E_IN_TRAVERSAL, "Py_DecRef") >= 1);
    CHECK_INT(misuses_in(STANDSTILL_E_IN_TRAVERSAL, "PyTuple_SetItem"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_IN_TRAVERSAL, "PyObject_GC_UnTrack"), 1);
    CHECK_INT(misuses_in(STANDSTILL_E_IN_TRAVERSAL, "PyErr_SetString"), 1);
    forget_misuses();
    CHECK_INT(Py_REFCNT(text), 2);
    CHECK_INT(Py_REFCNT(number), 2);
    CHECK_INT(Py_REFCNT((PyObject *)guarded), 1);
    CHECK_INT(PyObject_GC_IsTracked((PyObject *)guarded), 1);
    CHECK(!PyErr_Occurred());
    drop_objects();
}

/* S-126, S-127, S-155: everything the header declares. */
#define TRIED 256
static const char *tried[TRIED];
static int tried_is_safe[TRIED];
static int tried_count;
static void end_try(const char *name, int ok, int safe) {
    if (!ok)
        check_failed(__FILE__, __LINE__, "%s in a handler: %s", name,
                     safe ? "a wrong result" : "not its failure value");
    CHECK(tried_count < TRIED);
    tried[tried_count] = name;
    tried_is_safe[tried_count++] = safe;
}
#define REFUSED(name, result) end_try(#name, (result), 0)
#define SAFE(name, result) end_try(#name, (result), 1)

static int accept_all(PyObject *object, void *arg) {
    (void)object;
    (void)arg;
    return 1;
}
static void no_callback(PyObject *self, PyObject *ref) {
    (void)self;
    (void)ref;
}
static int no_visit(PyObject *object, void *arg) {
    (void)object;
    (void)arg;
    return 0;
}

static void objects_inside(PyObject *self) {
    PyObject *out = text;
    Row *r = NULL;
    REFUSED(Py_IncRef, (Py_IncRef(self), 1));
    REFUSED(Py_DecRef, (Py_DecRef(self), 1));
    REFUSED(Py_REFCNT, Py_REFCNT(self) == 0);
    SAFE(Py_SIZE, Py_SIZE(tuple) == 2);
    SAFE(PyObject_TypeCheck, PyObject_TypeCheck(self, &Guarded_Type));
    SAFE(PyType_Check, PyType_Check((PyObject *)heap_type));
    SAFE(PyType_CheckExact, PyType_CheckExact((PyObject *)heap_type));
    SAFE(PyModule_Check, PyModule_Check(module));
    SAFE(PyModule_CheckExact, PyModule_CheckExact(module));
    SAFE(PyTuple_Check, PyTuple_Check(tuple));
    SAFE(PyTuple_CheckExact, PyTuple_CheckExact(tuple));
    SAFE(PyUnicode_Check, PyUnicode_Check(text));
    SAFE(PyUnicode_CheckExact, PyUnicode_CheckExact(text));
    SAFE(PyLong_Check, PyLong_Check(number));
    SAFE(PyLong_CheckExact, PyLong_CheckExact(number));
    SAFE(PyWeakref_Check, PyWeakref_Check(weak));
    REFUSED(PyType_GenericAlloc, PyType_GenericAlloc(&Pair_Type, 0) == NULL);
    REFUSED(_PyObject_GC_New, PyObject_GC_New(Pair, &Pair_Type) == NULL);
    REFUSED(_PyObject_GC_NewVar, PyObject_GC_NewVar(Row, &Row_Type, 1) == NULL);
    REFUSED(_PyObject_GC_Resize, PyObject_GC_Resize(Row, r, 1) == NULL);
    REFUSED(PyUnstable_Object_GC_NewWithExtraData, PyUnstable_Object_GC_NewWithExtraData(&Pair_Type, 1) == NULL);
    REFUSED(_PyObject_New, PyObject_New(Leaf, &Leaf_Type) == NULL);
    REFUSED(_PyObject_NewVar, PyObject_NewVar(PyVarObject, &Leaf_Type, 1) == NULL);
    REFUSED(PyObject_GC_Del, (PyObject_GC_Del(self), 1));
    REFUSED(PyObject_Free, (PyObject_Free(text), 1));
    REFUSED(PyMem_Malloc, PyMem_Malloc(1) == NULL);
    REFUSED(PyMem_Calloc, PyMem_Calloc(1, 1) == NULL);
    REFUSED(PyMem_Realloc, PyMem_Realloc(NULL, 1) == NULL);
    REFUSED(PyMem_Free, (PyMem_Free(text), 1));
    REFUSED(PyObject_GC_Track, (PyObject_GC_Track(self), 1));
    REFUSED(PyObject_GC_UnTrack, (PyObject_GC_UnTrack(self), 1));
    SAFE(PyObject_IS_GC, PyObject_IS_GC(self) == 1);
    REFUSED(PyObject_GC_IsTracked, PyObject_GC_IsTracked(self) == 0);
    REFUSED(PyObject_GC_IsFinalized, PyObject_GC_IsFinalized(self) == 0);
    REFUSED(PyObject_CallFinalizer, (PyObject_CallFinalizer(self), 1));
    REFUSED(PyObject_CallFinalizerFromDealloc, PyObject_CallFinalizerFromDealloc(self) == 0);
    REFUSED(PyObject_ClearWeakRefs, (PyObject_ClearWeakRefs(self), 1));
    SAFE(PyObject_VisitManagedDict, PyObject_VisitManagedDict(self, no_visit, NULL) == 0);
    REFUSED(PyObject_ClearManagedDict, (PyObject_ClearManagedDict(self), 1));
    REFUSED(PyObject_SetAttrString, PyObject_SetAttrString((PyObject *)heap_type, "x", text) == -1);
    REFUSED(PyObject_GetAttrString, PyObject_GetAttrString((PyObject *)heap_type, "x") == NULL);
    REFUSED(PyObject_HasAttrString, PyObject_HasAttrString((PyObject *)heap_type, "x") == 0);
    REFUSED(PyObject_GetTypeData, PyObject_GetTypeData(self, heap_type) == NULL);
    REFUSED(PyObject_GetItemData, PyObject_GetItemData(self) == NULL);
    REFUSED(PyTuple_New, PyTuple_New(1) == NULL);
    REFUSED(PyTuple_Pack, PyTuple_Pack(1, text) == NULL);
    REFUSED(PyTuple_Size, PyTuple_Size(tuple) == -1);
    REFUSED(PyTuple_GetItem, PyTuple_GetItem(tuple, 0) == NULL);
    REFUSED(PyTuple_SetItem, PyTuple_SetItem(tuple, 0, text) == -1);
    REFUSED(PyUnicode_FromString, PyUnicode_FromString("x") == NULL);
    REFUSED(PyUnicode_AsUTF8, PyUnicode_AsUTF8(text) == NULL);
    REFUSED(PyLong_FromLong, PyLong_FromLong(1) == NULL);
    REFUSED(PyLong_FromLongLong, PyLong_FromLongLong(1) == NULL);
    REFUSED(PyLong_AsLong, PyLong_AsLong(number) == -1);
    REFUSED(PyLong_AsLongLong, PyLong_AsLongLong(number) == -1);
    REFUSED(PyWeakref_NewRef, PyWeakref_NewRef(self, NULL) == NULL);
    REFUSED(PyWeakref_GetRef, PyWeakref_GetRef(weak, &out) == -1);
    REFUSED(standstill_Callback_New, standstill_Callback_New(no_callback, NULL) == NULL);
    REFUSED(standstill_weak_map_new, standstill_weak_map_new() == NULL);
    REFUSED(standstill_weak_map_free, (standstill_weak_map_free(map), 1));
    REFUSED(standstill_weak_map_set, standstill_weak_map_set(map, self, text) == -1);
    REFUSED(standstill_weak_map_get, standstill_weak_map_get(map, self, &out) == -1);
    REFUSED(standstill_weak_map_remove, standstill_weak_map_remove(map, self) == -1);
    REFUSED(standstill_weak_map_length, standstill_weak_map_length(map) == -1);
    REFUSED(standstill_weak_map_entries, standstill_weak_map_entries(map, NULL, NULL) == -1);
    SAFE(standstill_weak_map_visit, standstill_weak_map_visit(map, no_visit, NULL) == 0);
    REFUSED(standstill_guardian_new, standstill_guardian_new() == NULL);
    REFUSED(standstill_guardian_free, (standstill_guardian_free(guardian), 1));
    REFUSED(standstill_guardian_register, standstill_guardian_register(guardian, self) == -1);
    REFUSED(standstill_guardian_next, standstill_guardian_next(guardian) == NULL);
    REFUSED(standstill_guardian_is_ready, standstill_guardian_is_ready(guardian) == -1);
}

static void types_inside(PyObject *self) {
    PyType_Slot slots[] = {{0, NULL}};
    PyType_Spec spec = {"check.Inside", 0, 0, 0, slots};
    PyTypeObject *found;
    void *token;
    (void)self;
    SAFE(PyType_IsSubtype, PyType_IsSubtype(heap_type, &PyBaseObject_Type));
    SAFE(PyType_HasFeature, PyType_HasFeature(&Pair_Type, Py_TPFLAGS_HAVE_GC));
    REFUSED(PyType_GetFlags, PyType_GetFlags(heap_type) == 0);
    REFUSED(PyType_GetSlot, PyType_GetSlot(heap_type, Py_tp_traverse) == NULL);
    REFUSED(PyType_Ready, PyType_Ready(&Pair_Type) == -1);
    REFUSED(PyType_FromSpec, PyType_FromSpec(&spec) == NULL);
    REFUSED(PyType_FromSpecWithBases, PyType_FromSpecWithBases(&spec, NULL) == NULL);
    REFUSED(PyType_FromModuleAndSpec, PyType_FromModuleAndSpec(module, &spec, NULL) == NULL);
    REFUSED(PyType_GetModule, PyType_GetModule(heap_type) == NULL);
    REFUSED(PyType_GetModuleState, PyType_GetModuleState(heap_type) == NULL);
    REFUSED(PyType_GetModuleByDef, PyType_GetModuleByDef(heap_type, &definition) == NULL);
    REFUSED(PyType_GetModuleByToken, PyType_GetModuleByToken(heap_type, &definition) == NULL);
    REFUSED(PyType_GetBaseByToken, PyType_GetBaseByToken(heap_type, &definition, &found) == -1);
    REFUSED(PyType_GetTypeDataSize, PyType_GetTypeDataSize(heap_type) == -1);
    REFUSED(PyModule_Create, PyModule_Create(&definition) == NULL);
    REFUSED(PyModule_FromDefAndSpec, PyModule_FromDefAndSpec(&definition, NULL) == NULL);
    REFUSED(PyModule_GetState, PyModule_GetState(module) == NULL);
    REFUSED(PyModule_GetDef, PyModule_GetDef(module) == NULL);
    REFUSED(PyModule_GetToken, PyModule_GetToken(module, &token) == -1);
    REFUSED(PyModule_GetName, PyModule_GetName(module) == NULL);
    SAFE(PyObject_GetTypeData_DuringGC, PyObject_GetTypeData_DuringGC(self, heap_type) == NULL);
    SAFE(PyObject_GetItemData_DuringGC, PyObject_GetItemData_DuringGC(self) == NULL);
    SAFE(PyType_GetModuleState_DuringGC, PyType_GetModuleState_DuringGC(heap_type) == NULL);
    SAFE(PyModule_GetState_DuringGC, PyModule_GetState_DuringGC(module) != NULL);
    SAFE(PyModule_GetToken_DuringGC, PyModule_GetToken_DuringGC(module, &token) == 0 && token == &definition);
    SAFE(PyType_GetBaseByToken_DuringGC, PyType_GetBaseByToken_DuringGC(heap_type, &token, &found) == 0);
    SAFE(PyType_GetModule_DuringGC, PyType_GetModule_DuringGC(heap_type) == NULL);
    SAFE(PyType_GetModuleByToken_DuringGC, PyType_GetModuleByToken_DuringGC(heap_type, &definition) == NULL);
}

static void services_inside(PyObject *self) {
    PyObject *objects[1];
    Py_ssize_t counts[3];
    standstill_gc_stats stats[3];
    int thresholds[3];
    objects[0] = self;
    REFUSED(PyErr_Occurred, PyErr_Occurred() == NULL);
    REFUSED(PyErr_Clear, (PyErr_Clear(), 1));
    REFUSED(PyErr_SetString, (PyErr_SetString(NULL, "no"), 1));
    REFUSED(PyErr_NoMemory, PyErr_NoMemory() == NULL);
    REFUSED(PyErr_BadInternalCall, (PyErr_BadInternalCall(), 1));
    REFUSED(PyErr_ExceptionMatches, PyErr_ExceptionMatches(NULL) == 0);
    REFUSED(PyErr_WriteUnraisable, (PyErr_WriteUnraisable(NULL), 1));
    REFUSED(standstill_error_code, standstill_error_code() == 0);
    REFUSED(standstill_error_message, standstill_error_message() == NULL);
    REFUSED(PyGC_Collect, PyGC_Collect() == 0);
    REFUSED(PyGC_Enable, PyGC_Enable() == 0);
    REFUSED(PyGC_Disable, PyGC_Disable() == 0);
    REFUSED(PyGC_IsEnabled, PyGC_IsEnabled() == 0);
    REFUSED(PyUnstable_GC_VisitObjects, (PyUnstable_GC_VisitObjects(accept_all, NULL), 1));
    REFUSED(standstill_heap_new, standstill_heap_new(NULL) == NULL);
    REFUSED(standstill_heap_free, standstill_heap_free(check_heap) == -1);
    REFUSED(standstill_default_heap, standstill_default_heap() == NULL);
    REFUSED(standstill_attach, standstill_attach(check_heap) == -1);
    REFUSED(standstill_detach, standstill_detach() == -1);
    REFUSED(standstill_is_attached, standstill_is_attached() == 0);
    REFUSED(standstill_safepoint, (standstill_safepoint(), 1));
    REFUSED(PyEval_SaveThread, PyEval_SaveThread() == NULL);
    REFUSED(PyEval_RestoreThread, (PyEval_RestoreThread(NULL), 1));
    REFUSED(PyGILState_Ensure, PyGILState_Ensure() == PyGILState_LOCKED);
    REFUSED(PyGILState_Release, (PyGILState_Release(PyGILState_LOCKED), 1));
    REFUSED(Py_Initialize, (Py_Initialize(), 1));
    REFUSED(Py_Finalize, (Py_Finalize(), 1));
    REFUSED(Py_IsInitialized, Py_IsInitialized() == 0);
    REFUSED(standstill_set_misuse_hook, (standstill_set_misuse_hook(NULL, NULL), 1));
    REFUSED(standstill_set_unraisable_hook, (standstill_set_unraisable_hook(NULL, NULL), 1));
    REFUSED(standstill_set_slow_stop_hook, (standstill_set_slow_stop_hook(NULL, NULL), 1));
    REFUSED(standstill_gc_collect, standstill_gc_collect(2) == -1);
    REFUSED(standstill_adjust_external_bytes, standstill_adjust_external_bytes(1) == -1);
    REFUSED(standstill_gc_enable, standstill_gc_enable() == 0);
    REFUSED(standstill_gc_disable, standstill_gc_disable() == 0);
    REFUSED(standstill_gc_isenabled, standstill_gc_isenabled() == 0);
    REFUSED(standstill_gc_set_threshold, standstill_gc_set_threshold(1, 1, 1) == -1);
    REFUSED(standstill_gc_get_threshold, standstill_gc_get_threshold(thresholds) == -1);
    REFUSED(standstill_gc_get_count, standstill_gc_get_count(counts) == -1);
    REFUSED(standstill_gc_get_stats, standstill_gc_get_stats(stats) == -1);
    REFUSED(standstill_gc_add_callback, standstill_gc_add_callback(NULL, NULL) == -1);
    REFUSED(standstill_gc_remove_callback, standstill_gc_remove_callback(0) == -1);
    REFUSED(standstill_gc_set_debug, standstill_gc_set_debug(0) == -1);
    REFUSED(standstill_gc_get_debug, standstill_gc_get_debug() == 0);
    REFUSED(standstill_gc_set_debug_sink, (standstill_gc_set_debug_sink(NULL, NULL), 1));
    REFUSED(standstill_gc_garbage_size, standstill_gc_garbage_size() == -1);
    REFUSED(standstill_gc_garbage_get, standstill_gc_garbage_get(0) == NULL);
    REFUSED(standstill_gc_garbage_clear, standstill_gc_garbage_clear() == -1);
    REFUSED(standstill_gc_freeze, standstill_gc_freeze() == -1);
    REFUSED(standstill_gc_unfreeze, standstill_gc_unfreeze() == -1);
    REFUSED(standstill_gc_get_freeze_count, standstill_gc_get_freeze_count() == -1);
    REFUSED(standstill_gc_get_objects, standstill_gc_get_objects(-1) == NULL);
    REFUSED(standstill_gc_get_referrers, standstill_gc_get_referrers(objects, 1) == NULL);
    REFUSED(standstill_gc_get_referents, standstill_gc_get_referents(objects, 1) == NULL);
    REFUSED(standstill_gc_is_tracked, standstill_gc_is_tracked(self) == 0);
    REFUSED(standstill_gc_is_finalized, standstill_gc_is_finalized(self) == 0);
    REFUSED(standstill_gc_set_audit_hook, (standstill_gc_set_audit_hook(NULL, NULL), 1));
    REFUSED(standstill_set_line_sink, standstill_set_line_sink(NULL, NULL) == -1);
    REFUSED(standstill_configure, standstill_configure(NULL) == -1);
    REFUSED(standstill_census, standstill_census(NULL, NULL) == -1);
    REFUSED(standstill_holders, standstill_holders(1, NULL, NULL) == -1);
    REFUSED(standstill_why_alive, standstill_why_alive(self, NULL, NULL) == -1);
    REFUSED(standstill_gc_get_times, standstill_gc_get_times(2, NULL, NULL) == -1);
    REFUSED(standstill_snapshot, standstill_snapshot("/nowhere/refused") == -1);
    REFUSED(standstill_threads, standstill_threads(NULL, NULL) == -1);
    REFUSED(standstill_mark, (standstill_mark("traversing"), 1));
    REFUSED(standstill_coordinator_new, standstill_coordinator_new(NULL, 0) == NULL);
    REFUSED(standstill_coordinator_free, standstill_coordinator_free(NULL) == -1);
    REFUSED(standstill_participant_new, standstill_participant_new(NULL, NULL) == NULL);
    REFUSED(standstill_participant_poll_word, standstill_participant_poll_word(NULL) == NULL);
    REFUSED(standstill_participant_stop_for, standstill_participant_stop_for(NULL, 1) == -1);
    REFUSED(standstill_participant_threads, standstill_participant_threads(NULL, NULL, NULL) == -1);
    REFUSED(standstill_participant_attach, standstill_participant_attach(NULL) == -1);
    REFUSED(standstill_participant_detach, standstill_participant_detach(NULL) == -1);
    REFUSED(standstill_participant_free, standstill_participant_free(NULL) == -1);
    REFUSED(standstill_participant_park, standstill_participant_park(NULL) == -1);
    REFUSED(standstill_participant_prepare_fork, standstill_participant_prepare_fork(NULL) == -1);
    REFUSED(standstill_participant_resume, standstill_participant_resume(NULL) == -1);
    REFUSED(standstill_participant_stop, standstill_participant_stop(NULL) == -1);
    REFUSED(standstill_participant_try_stop, standstill_participant_try_stop(NULL) == -1);
    SAFE(PyObject_Dump, (PyObject_Dump(self), 1));
    REFUSED(standstill_live_objects, standstill_live_objects() == -1);
    REFUSED(standstill_live_bytes, standstill_live_bytes() == 0);
    REFUSED(standstill_external_bytes, standstill_external_bytes() == 0);
}

static void everything_inside(PyObject *self, visitproc visit, void *arg) {
    (void)visit;
    (void)arg;
    objects_inside(self);
    types_inside(self);
    services_inside(self);
}

/* The functions that the header declares, without our prefix where they have a customary name. */
static int names_in_header(char names[][80], int room) {
    FILE *file = fopen(CONFORMANCE_DIR "/../../include/standstill.h", "r");
    char line[512];
    int n = 0;
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file)) {
        char *end = strchr(line, '('), *start;
        if ((strncmp(line, "STANDSTILL_STABLE ", 18) && strncmp(line, "STANDSTILL_UNSTABLE ", 20)) || !end)
            continue;
        for (start = end; start > line && start[-1] != ' ' && start[-1] != '*'; start--)
            ;
        *end = 0;
        if (!strncmp(start, "standstill_Py", 13))
            start += 11;
        CHECK(n < room && strlen(start) < 80);
        strcpy(names[n++], start);
    }
    fclose(file);
    return n;
}

static void s_126_everything_but_the_safe_list_is_refused_in_a_handler(void) {
    static char names[TRIED][80];
    Py_ssize_t count;
    long long live;
    int i, j, n, refused = 0;
    make_objects();
    live = LIVE();
    count = Py_REFCNT(text);
    inside = everything_inside;
    CHECK_INT(PyGC_Collect(), 0);
    CHECK_INT(went_inside, 1);
    CHECK_INT(LIVE(), live);
    CHECK_INT(Py_REFCNT(text), count);
    CHECK_INT(PyGC_IsEnabled(), 1);
    CHECK(!PyErr_Occurred());
    for (i = 0; i < tried_count; i++) {
        const char *name = tried[i];
        n = misuses_in(STANDSTILL_E_IN_TRAVERSAL, name);
        if (name[0] == '_') /* reported by the name that the macro has */
            n += misuses_in(STANDSTILL_E_IN_TRAVERSAL, name + 1);
        refused += !tried_is_safe[i];
        if (n == 0 && (strncmp(name, "standstill_gc_", 14) == 0 || strcmp(name, "PyTuple_Pack") == 0))
            continue; /* reported by the name of what stands behind it */
        if (tried_is_safe[i] ? n != 0 : n == 0)
            check_failed(__FILE__, __LINE__, "%s in a handler: %d reports; %d reports in all", name, n, misuses(0));
    }
    /* One each, but for functions that are macros over the same one: what is alike is told once a stop. */
    CHECK(misuses(STANDSTILL_E_IN_TRAVERSAL) <= refused && misuses(STANDSTILL_E_IN_TRAVERSAL) > refused - 5);
    forget_misuses();
    drop_objects();
    n = names_in_header(names, TRIED);
    CHECK(n > 100);
    for (i = 0; i < n; i++) {
        for (j = 0; j < tried_count && strcmp(names[i], tried[j]); j++)
            ;
        if (j == tried_count)
            check_failed(__FILE__, __LINE__, "%s is not in the table of this test", names[i]);
    }
}

static void s_127_the_safe_list_is_the_golden_one(void) {
    FILE *file = fopen(CONFORMANCE_DIR "/safe_list.txt", "r");
    char line[80];
    int i, safe = 0, golden = 0;
    CHECK(file != NULL);
    run_inside(everything_inside);
    forget_misuses();
    drop_objects();
    for (i = 0; i < tried_count; i++)
        safe += tried_is_safe[i];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        for (i = 0; i < tried_count && (!tried_is_safe[i] || strcmp(line, tried[i])); i++)
            ;
        if (i == tried_count)
            check_failed(__FILE__, __LINE__, "%s was safe, and is not any more", line);
        golden++;
    }
    fclose(file);
    CHECK_INT(safe, golden); /* a new one is to be added to the file, for ever */
}

/* S-129 to S-138: what is safe works. */
static int direct_traverse(PyObject *self, visitproc visit, void *arg) {
    Pair *p = (Pair *)self;
    int result = p->a ? visit(p->a, arg) : 0;
    return result ? result : p->b ? visit(p->b, arg) : 0;
}

static void s_129_the_visitor_may_be_called(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Direct", .tp_basicsize = sizeof(Pair), .tp_flags = GC_TYPE,
                                .tp_dealloc = pair_dealloc, .tp_traverse = direct_traverse, .tp_clear = pair_clear};
    ready(&type);
    garbage_ring_of(&type, 3);
    CHECK_INT(PyGC_Collect(), 3);
}

static void s_130_py_visit_may_be_used(void) {
    garbage_ring(3);
    CHECK_INT(PyGC_Collect(), 3);
    CHECK(calls.traversed > 0);
}

static int half_traverse(PyObject *self, visitproc visit, void *arg) {
    Row *r = (Row *)self;
    Py_ssize_t i;
    for (i = 0; i < Py_SIZE(self) / 2; i++)
        Py_VISIT(r->items[i]);
    return 0;
}

static void s_131_py_size_drives_the_loop_over_the_items(void) {
    static PyTypeObject type = {TYPE_HEAD .tp_name = "check.Half", .tp_basicsize = ROW_SIZE,
                                .tp_itemsize = sizeof(PyObject *), .tp_flags = GC_TYPE, .tp_dealloc = row_dealloc,
                                .tp_traverse = half_traverse, .tp_clear = row_clear};
    PyObject *objects[1], *found;
    Row *half;
    int i;
    ready(&type);
    half = (Row *)type.tp_alloc(&type, 10);
    MUST(half != NULL);
    for (i = 0; i < 10; i++)
        half->items[i] = (PyObject *)leaf();
    objects[0] = (PyObject *)half;
    found = standstill_gc_get_referents(objects, 1);
    MUST(found != NULL);
    CHECK_INT(PyTuple_Size(found), 5);
    Py_DECREF(found);
    Py_DECREF(half);
}

static void s_131_py_size_of_an_object_without_items_is_reported(void) {
    Pair *p = pair(NULL, NULL);
    p->a = (PyObject *)leaf();
    CHECK_INT(Py_SIZE(p), 0);
    EXPECT_MISUSE(STANDSTILL_E_WRONG_TYPE, 1);
    Py_DECREF(p);
}

static int type_changed;
static int typed_traverse(PyObject *self, visitproc visit, void *arg) {
    PyTypeObject *volatile start_type = Py_TYPE(self);
    const char *volatile name = start_type->tp_name;
    int i, result = heap_pair_traverse(self, visit, arg);
    for (i = 0; i < 50; i++)
        if (Py_TYPE(self) != start_type || Py_TYPE(self)->tp_name != name)
            ADD(type_changed);
    return result;
}
static void churn_types(void *arg) {
    PyType_Slot slots[] = {{Py_tp_traverse, FN(typed_traverse)}, {0, NULL}};
    int i;
    (void)arg;
    for (i = 0; i < 300; i++) {
        PyTypeObject *type = heap_pair_type("check.Churned", 0, slots);
        garbage_ring_of(type, 3);
        Py_DECREF(type);
        standstill_safepoint();
    }
}

static void s_132_py_type_stays_during_a_handler(void) {
    thread threads[2];
    int i;
    for (i = 0; i < 2; i++)
        start(&threads[i], churn_types, NULL);
    for (i = 0; i < 50; i++)
        PyGC_Collect();
    for (i = 0; i < 2; i++)
        join(&threads[i]);
    CHECK_INT(type_changed, 0);
    PyGC_Collect();
}

static int dict_result = -1;
static int dictionary_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    dict_result = PyObject_VisitManagedDict(self, visit, arg);
    return dict_result;
}
static int dictionary_clear(PyObject *self) {
    PyObject_ClearManagedDict(self);
    return 0;
}

static void s_133_the_managed_dictionary_can_be_visited(void) {
    PyType_Slot slots[] = {{Py_tp_traverse, FN(dictionary_traverse)}, {Py_tp_clear, FN(dictionary_clear)}, {0, NULL}};
    long long before = LIVE();
    PyTypeObject *type = type_of_slots("check.Dictionary", sizeof(PyObject), 0,
                                       Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_MANAGED_DICT, slots);
    PyObject *object;
    MUST(type != NULL);
    object = type->tp_alloc(type, 0);
    MUST(object != NULL);
    PyObject_SetAttrString(object, "self", object);
    Py_DECREF(object);
    CHECK_INT(PyGC_Collect() >= 1, 1);
    CHECK_INT(dict_result, 0);
    Py_DECREF(type);
    PyGC_Collect();
    CHECK_INT(LIVE(), before);
}

static void type_check_inside(PyObject *self, visitproc visit, void *arg) {
    (void)visit;
    (void)arg;
    CHECK_INT(PyObject_TypeCheck(self, &Guarded_Type), 1);
    CHECK_INT(PyObject_TypeCheck(self, &PyBaseObject_Type), 1);
    CHECK_INT(PyObject_TypeCheck(self, &Row_Type), 0);
    CHECK_INT(PyObject_TypeCheck(tuple_of_subtype, &PyTuple_Type) != 0, 1);
    CHECK_INT(PyObject_TypeCheck((PyObject *)NULL, &Row_Type), 0);
    CHECK_INT(PyObject_TypeCheck(self, NULL), 0);
}

static void s_134_type_check_answers(void) {
    run_inside(type_check_inside);
    EXPECT_MISUSE(STANDSTILL_E_NULL_ARGUMENT, 1); /* two of one kind in one stop */
    drop_objects();
}

static void subtype_inside(PyObject *self, visitproc visit, void *arg) {
    (void)self;
    (void)visit;
    (void)arg;
    CHECK_INT(PyType_IsSubtype(tuple_type, &PyTuple_Type) != 0, 1);
    CHECK_INT(PyType_IsSubtype(tuple_type, tuple_type) != 0, 1);
    CHECK_INT(PyType_IsSubtype(&PyTuple_Type, tuple_type), 0);
    CHECK_INT(PyType_IsSubtype(heap_type, &Pair_Type), 0);
    CHECK_INT(PyType_IsSubtype(NULL, &PyTuple_Type), 0);
}

static void s_135_is_subtype_answers(void) {
    run_inside(subtype_inside);
    EXPECT_MISUSE(STANDSTILL_E_NULL_ARGUMENT, 1);
    drop_objects();
}

static void feature_inside(PyObject *self, visitproc visit, void *arg) {
    (void)visit;
    (void)arg;
    CHECK(PyType_HasFeature(Py_TYPE(self), Py_TPFLAGS_HAVE_GC) != 0);
    CHECK(PyType_HasFeature(heap_type, Py_TPFLAGS_HEAPTYPE) != 0);
    CHECK_INT(PyType_HasFeature(&Leaf_Type, Py_TPFLAGS_HAVE_GC), 0);
    CHECK_INT(PyType_HasFeature(NULL, Py_TPFLAGS_HAVE_GC), 0);
}

static void s_136_has_feature_answers(void) {
    run_inside(feature_inside);
    EXPECT_MISUSE(STANDSTILL_E_NULL_ARGUMENT, 1);
    drop_objects();
}

static void check_inside(PyObject *self, visitproc visit, void *arg) {
    (void)visit;
    (void)arg;
    CHECK(PyTuple_Check(tuple) && PyTuple_Check(tuple_of_subtype) && !PyTuple_Check(self) && !PyTuple_Check(text));
    CHECK(PyUnicode_Check(text) && !PyUnicode_Check(number));
    CHECK(PyLong_Check(number) && !PyLong_Check(text));
    CHECK(PyModule_Check(module) && !PyModule_Check(tuple));
    CHECK(PyType_Check(heap_type) && PyType_Check(&Pair_Type) && !PyType_Check(self));
    CHECK(PyWeakref_Check(weak) && !PyWeakref_Check(self));
}

static void s_137_checks_of_the_built_in_types_answer(void) {
    run_inside(check_inside);
    drop_objects();
}

static void exact_inside(PyObject *self, visitproc visit, void *arg) {
    (void)self;
    (void)visit;
    (void)arg;
    CHECK(PyTuple_CheckExact(tuple) && !PyTuple_CheckExact(tuple_of_subtype));
    CHECK(PyUnicode_CheckExact(text) && !PyUnicode_CheckExact(tuple));
    CHECK(PyLong_CheckExact(number) && !PyLong_CheckExact(tuple));
    CHECK(PyModule_CheckExact(module) && PyType_CheckExact(heap_type));
}

static void s_138_exact_checks_leave_subtypes_out(void) {
    run_inside(exact_inside);
    drop_objects();
}

/* S-139 */
static void during_inside(PyObject *self, visitproc visit, void *arg) {
    void *token = NULL;
    (void)self;
    (void)visit;
    (void)arg;
    CHECK(PyModule_GetState_DuringGC(module) != NULL);
    CHECK_INT(PyModule_GetToken_DuringGC(module, &token), 0);
    CHECK(token == (void *)&definition);
    CHECK_INT(misuses(0), 0);
}

static void s_139_the_during_gc_functions_may_be_called(void) {
    run_inside(during_inside);
    drop_objects();
}

const struct test traversal_tests[] = {
    TEST(s_125_an_allocation_in_a_handler_is_refused),
    TEST(s_125_counts_and_tracking_do_not_change_in_a_handler),
    TEST(s_126_everything_but_the_safe_list_is_refused_in_a_handler),
    TEST(s_127_the_safe_list_is_the_golden_one),
    TEST(s_129_the_visitor_may_be_called),
    TEST(s_130_py_visit_may_be_used),
    TEST(s_131_py_size_drives_the_loop_over_the_items),
    TEST(s_131_py_size_of_an_object_without_items_is_reported),
    TEST(s_132_py_type_stays_during_a_handler),
    TEST(s_133_the_managed_dictionary_can_be_visited),
    TEST(s_134_type_check_answers),
    TEST(s_135_is_subtype_answers),
    TEST(s_136_has_feature_answers),
    TEST(s_137_checks_of_the_built_in_types_answer),
    TEST(s_138_exact_checks_leave_subtypes_out),
    TEST(s_139_the_during_gc_functions_may_be_called),
    TESTS_END,
};
