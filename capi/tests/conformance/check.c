#include "check.h"

#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#define REPORTS 4096

standstill_heap *check_heap;
int check_is_checked;
struct calls calls;
struct report last_misuse, last_unraisable;

static pthread_mutex_t report_lock = PTHREAD_MUTEX_INITIALIZER;
static int pending_codes[REPORTS];
static char pending_functions[REPORTS][64];
static int pending_misuses, pending_unraisables;

void check_failed(const char *file, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    fflush(NULL);
    _Exit(1);
}

static void copy_text(char *to, size_t size, const char *from) {
    to[0] = 0;
    if (from)
        strncat(to, from, size - 1);
}

void record_misuse(const standstill_misuse *misuse, void *arg) {
    (void)arg;
    pthread_mutex_lock(&report_lock);
    last_misuse.code = misuse->code;
    last_misuse.object = misuse->object;
    copy_text(last_misuse.function, sizeof last_misuse.function, misuse->function);
    copy_text(last_misuse.type, sizeof last_misuse.type, misuse->type);
    copy_text(last_misuse.text, sizeof last_misuse.text, misuse->text);
    if (pending_misuses < REPORTS) {
        copy_text(pending_functions[pending_misuses], sizeof pending_functions[0], misuse->function);
        pending_codes[pending_misuses++] = misuse->code;
    }
    pthread_mutex_unlock(&report_lock);
}

void record_unraisable(const standstill_unraisable *error, void *arg) {
    (void)arg;
    pthread_mutex_lock(&report_lock);
    last_unraisable.object = error->object;
    copy_text(last_unraisable.function, sizeof last_unraisable.function, error->kind);
    copy_text(last_unraisable.type, sizeof last_unraisable.type, error->type);
    copy_text(last_unraisable.text, sizeof last_unraisable.text, error->message);
    pending_unraisables++;
    pthread_mutex_unlock(&report_lock);
}

int misuses(int code) {
    int i, n = 0;
    pthread_mutex_lock(&report_lock);
    for (i = 0; i < pending_misuses; i++)
        n += code == 0 || pending_codes[i] == code;
    pthread_mutex_unlock(&report_lock);
    return n;
}

int misuses_in(int code, const char *function) {
    int i, n = 0;
    pthread_mutex_lock(&report_lock);
    for (i = 0; i < pending_misuses; i++)
        n += pending_codes[i] == code && strcmp(pending_functions[i], function) == 0;
    pthread_mutex_unlock(&report_lock);
    return n;
}

int unraisables(void) {
    int n;
    pthread_mutex_lock(&report_lock);
    n = pending_unraisables;
    pthread_mutex_unlock(&report_lock);
    return n;
}

void forget_misuses(void) {
    pthread_mutex_lock(&report_lock);
    pending_misuses = 0;
    pthread_mutex_unlock(&report_lock);
}

/* The exception type that belongs to a code, by CPython's customs: each error says the same in both ways. */
static PyObject *exception_of(int code) {
    switch (code) {
    case STANDSTILL_E_MEMORY:
        return PyExc_MemoryError;
    case STANDSTILL_E_NO_ATTRIBUTE:
        return PyExc_AttributeError;
    case STANDSTILL_E_NOT_ATTACHED:
    case STANDSTILL_E_NOT_ALLOWED_HERE:
        return PyExc_RuntimeError;
    case STANDSTILL_E_BAD_SIZE:
    case STANDSTILL_E_BAD_GENERATION:
    case STANDSTILL_E_BAD_THRESHOLD:
    case STANDSTILL_E_BAD_DEBUG_FLAGS:
        return PyExc_ValueError;
    case STANDSTILL_E_BAD_FREE:
    case STANDSTILL_E_BAD_BASE:
    case STANDSTILL_E_BAD_MRO:
    case STANDSTILL_E_BAD_FLAGS:
    case STANDSTILL_E_MIXED_BASES:
    case STANDSTILL_E_NOT_GC_TYPE:
    case STANDSTILL_E_GC_TYPE:
    case STANDSTILL_E_NOT_RESIZABLE:
    case STANDSTILL_E_WRONG_TYPE:
    case STANDSTILL_E_NO_MODULE:
        return PyExc_TypeError;
    case STANDSTILL_E_CUSTOM:
        return PyErr_Occurred(); /* whichever the test has set */
    default:
        return PyExc_SystemError;
    }
}

void check_error(const char *file, int line, int code) {
    int found = standstill_error_code();
    if (!PyErr_Occurred())
        check_failed(file, line, "no error where code %d was expected", code);
    if (found != code)
        check_failed(file, line, "error %d (%s) where code %d was expected", found, standstill_error_message(), code);
    if (PyErr_Occurred() != exception_of(code))
        check_failed(file, line, "error %d is a %s, not a %s", code, ((PyTypeObject *)PyErr_Occurred())->tp_name,
                     ((PyTypeObject *)exception_of(code))->tp_name);
    PyErr_Clear();
}

void check_misuse(const char *file, int line, int code, int n) {
    int i, kept = 0, found = misuses(code);
    if (n < 0 ? found == 0 : found != n)
        check_failed(file, line, "%d reports of code %d instead of %d; reports in all: %d, the last: code %d in %s: %s",
                     found, code, n, misuses(0), last_misuse.code, last_misuse.function, last_misuse.text);
    pthread_mutex_lock(&report_lock);
    for (i = 0; i < pending_misuses; i++)
        if (pending_codes[i] != code) {
            memmove(pending_functions[kept], pending_functions[i], sizeof pending_functions[0]);
            pending_codes[kept++] = pending_codes[i];
        }
    pending_misuses = kept;
    pthread_mutex_unlock(&report_lock);
}

void check_unraisable(const char *file, int line, int n) {
    int found = unraisables();
    if (n < 0 ? found == 0 : found != n)
        check_failed(file, line, "%d unraisable errors instead of %d; the last: %s: %s", found, n,
                     last_unraisable.function, last_unraisable.text);
    pthread_mutex_lock(&report_lock);
    pending_unraisables = 0;
    pthread_mutex_unlock(&report_lock);
}

/* Handlers, written as the documentation of C types shows them. */

int pair_traverse(PyObject *self, visitproc visit, void *arg) {
    ADD(calls.traversed);
    Py_VISIT(((Pair *)self)->a);
    Py_VISIT(((Pair *)self)->b);
    return 0;
}

int heap_pair_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return pair_traverse(self, visit, arg);
}

int nothing_traverse(PyObject *self, visitproc visit, void *arg) {
    (void)self;
    (void)visit;
    (void)arg;
    return 0;
}

int pair_clear(PyObject *self) {
    ADD(calls.cleared);
    Py_CLEAR(((Pair *)self)->a);
    Py_CLEAR(((Pair *)self)->b);
    return 0;
}

void pair_finalize(PyObject *self) {
    (void)self;
    ADD(calls.finalized);
}

void pair_dealloc(PyObject *self) {
    if (PyObject_CallFinalizerFromDealloc(self) < 0)
        return;
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    Py_CLEAR(((Pair *)self)->a);
    Py_CLEAR(((Pair *)self)->b);
    ADD(calls.freed);
    Py_TYPE(self)->tp_free(self);
}

void heap_pair_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    if (PyObject_CallFinalizerFromDealloc(self) < 0)
        return;
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    Py_CLEAR(((Pair *)self)->a);
    Py_CLEAR(((Pair *)self)->b);
    ADD(calls.freed);
    type->tp_free(self);
    Py_DECREF(type);
}

int row_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_ssize_t i;
    for (i = 0; i < Py_SIZE(self); i++)
        Py_VISIT(((Row *)self)->items[i]);
    return 0;
}

int row_clear(PyObject *self) {
    Py_ssize_t i;
    for (i = 0; i < Py_SIZE(self); i++)
        Py_CLEAR(((Row *)self)->items[i]);
    return 0;
}

void row_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    row_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static void holder_dealloc(PyObject *self) {
    Py_CLEAR(((Holder *)self)->ref);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject Pair_Type = {
    TYPE_HEAD
    .tp_name = "check.Pair",
    .tp_basicsize = sizeof(Pair),
    .tp_dealloc = pair_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_traverse = pair_traverse,
    .tp_clear = pair_clear,
};

PyTypeObject Row_Type = {
    TYPE_HEAD
    .tp_name = "check.Row",
    .tp_basicsize = ROW_SIZE,
    .tp_itemsize = sizeof(PyObject *),
    .tp_dealloc = row_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_traverse = row_traverse,
    .tp_clear = row_clear,
};

PyTypeObject Holder_Type = {
    TYPE_HEAD
    .tp_name = "check.Holder",
    .tp_basicsize = sizeof(Holder),
    .tp_dealloc = holder_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
};

PyTypeObject Leaf_Type = {
    TYPE_HEAD
    .tp_name = "check.Leaf",
    .tp_basicsize = sizeof(Leaf),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
};

void ready(PyTypeObject *type) { MUST(PyType_Ready(type) == 0); }

Pair *pair_of(PyTypeObject *type, void *a, void *b) {
    Pair *self = (Pair *)type->tp_alloc(type, 0);
    MUST(self != NULL);
    self->a = Py_XNewRef((PyObject *)a);
    self->b = Py_XNewRef((PyObject *)b);
    return self;
}

Holder *holder(void *ref) {
    Holder *self = (Holder *)Holder_Type.tp_alloc(&Holder_Type, 0);
    MUST(self != NULL);
    self->ref = Py_XNewRef((PyObject *)ref);
    return self;
}

Leaf *leaf(void) {
    Leaf *self = (Leaf *)Leaf_Type.tp_alloc(&Leaf_Type, 0);
    MUST(self != NULL);
    return self;
}

Row *row(Py_ssize_t n) {
    Row *self = (Row *)Row_Type.tp_alloc(&Row_Type, n);
    MUST(self != NULL);
    return self;
}

Pair *ring_of(PyTypeObject *type, int n) {
    Pair *first = pair_of(type, NULL, NULL), *last = first;
    int i;
    for (i = 1; i < n; i++) {
        Pair *next = pair_of(type, NULL, NULL);
        last->a = (PyObject *)next;
        last = next;
    }
    last->a = Py_NewRef((PyObject *)first);
    return first;
}

Pair *garbage_ring_of(PyTypeObject *type, int n) {
    Pair *first = ring_of(type, n);
    Py_DECREF(first);
    return first;
}

void set_a(void *object, void *to) { Py_XSETREF(((Pair *)object)->a, Py_XNewRef((PyObject *)to)); }
void set_b(void *object, void *to) { Py_XSETREF(((Pair *)object)->b, Py_XNewRef((PyObject *)to)); }

PyTypeObject *type_of_slots(const char *name, int basicsize, int itemsize, unsigned int flags, PyType_Slot *slots) {
    PyType_Spec spec;
    spec.name = name;
    spec.basicsize = basicsize;
    spec.itemsize = itemsize;
    spec.flags = flags;
    spec.slots = slots;
    return (PyTypeObject *)PyType_FromSpec(&spec);
}

PyTypeObject *heap_pair_type(const char *name, unsigned int flags, const PyType_Slot *more) {
    PyType_Slot slots[16];
    PyTypeObject *type;
    int n = 0;
    slots[n].slot = Py_tp_traverse;
    slots[n++].pfunc = FN(heap_pair_traverse);
    slots[n].slot = Py_tp_clear;
    slots[n++].pfunc = FN(pair_clear);
    slots[n].slot = Py_tp_dealloc;
    slots[n++].pfunc = FN(heap_pair_dealloc);
    for (; more && more->slot; more++) {
        int i;
        for (i = 0; i < n && slots[i].slot != more->slot; i++)
            ;
        slots[i] = *more;
        n = i == n ? n + 1 : n;
    }
    slots[n].slot = 0;
    slots[n].pfunc = NULL;
    type = type_of_slots(name, sizeof(Pair), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | flags, slots);
    MUST(type != NULL);
    return type;
}

PyObject *weak_to(void *object) {
    PyObject *weak = PyWeakref_NewRef((PyObject *)object, NULL);
    MUST(weak != NULL);
    return weak;
}

struct counted {
    PyObject_HEAD
    long *counter;
};
static PyTypeObject Counted_Type = {
    TYPE_HEAD
    .tp_name = "check.Counted",
    .tp_basicsize = sizeof(struct counted),
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

static void count_call(PyObject *self, PyObject *weakref) {
    (void)weakref;
    ADD(*((struct counted *)self)->counter);
}

PyObject *counting_weak(void *object, long *counter) {
    struct counted *counted;
    PyObject *callback, *weak;
    ready(&Counted_Type);
    counted = (struct counted *)Counted_Type.tp_alloc(&Counted_Type, 0);
    MUST(counted != NULL);
    counted->counter = counter;
    callback = standstill_Callback_New(count_call, (PyObject *)counted);
    MUST(callback != NULL);
    weak = PyWeakref_NewRef((PyObject *)object, callback);
    MUST(weak != NULL);
    Py_DECREF(callback);
    Py_DECREF(counted);
    return weak;
}

int is_alive(PyObject *weak) {
    PyObject *target;
    int answer = PyWeakref_GetRef(weak, &target);
    MUST(answer >= 0);
    CHECK(answer == (target != NULL));
    Py_XDECREF(target);
    return answer;
}

static void *thread_main(void *arg) {
    thread *t = arg;
    if (t->attach)
        MUST(standstill_attach(check_heap) == 0);
    t->run(t->arg);
    if (t->attach)
        MUST(standstill_detach() == 0);
    return NULL;
}

static void start_as(thread *t, void (*run)(void *), void *arg, int attach) {
    t->run = run;
    t->arg = arg;
    t->attach = attach;
    CHECK(pthread_create(&t->id, NULL, thread_main, t) == 0);
}

void start(thread *t, void (*run)(void *), void *arg) { start_as(t, run, arg, 1); }
void start_raw(thread *t, void (*run)(void *), void *arg) { start_as(t, run, arg, 0); }

void join(thread *t) {
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = pthread_join(t->id, NULL);
    Py_END_ALLOW_THREADS
    CHECK(!failed);
}

void run_on_thread(void (*run)(void *), void *arg) {
    thread t;
    start(&t, run, arg);
    join(&t);
}

static void wait_a_little(void) {
    struct timespec pause = {0, 200000};
    nanosleep(&pause, NULL);
}

void wait_for(int *flag) {
    int rounds;
    for (rounds = 0; !GET(*flag); rounds++) {
        CHECK(rounds < 100000);
        standstill_safepoint();
        wait_a_little();
    }
}

void block_for(int *flag) {
    int rounds;
    for (rounds = 0; !GET(*flag); rounds++) {
        CHECK(rounds < 100000);
        wait_a_little();
    }
}

void in_small_heap(void (*run)(void)) {
    standstill_heap_options options = STANDSTILL_HEAP_OPTIONS_INIT;
    standstill_heap *heap, *before = check_heap;
    options.limit = (size_t)1 << 18;
    options.checked = 0; /* checked mode keeps freed memory for a while */
    heap = standstill_heap_new(&options);
    MUST(heap != NULL);
    MUST(standstill_detach() == 0 && standstill_attach(heap) == 0);
    check_heap = heap;
    run();
    MUST(standstill_detach() == 0 && standstill_heap_free(heap) == 0);
    check_heap = before;
    MUST(standstill_attach(before) == 0);
}

int lines_of(void (*run)(void), const char *part) {
    FILE *file = tmpfile();
    char line[1024];
    int old, lines = 0;
    CHECK(file != NULL);
    fflush(stderr);
    old = dup(2);
    CHECK(dup2(fileno(file), 2) == 2);
    run();
    fflush(stderr);
    CHECK(dup2(old, 2) == 2);
    close(old);
    rewind(file);
    while (fgets(line, sizeof line, file))
        lines += strstr(line, part) != NULL;
    fclose(file);
    return lines;
}
