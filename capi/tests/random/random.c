/* Random programs in C on several threads. Each object is accounted for.
 *
 *   random SEED THREADS STEPS CHECKED
 *
 * The threads share a table of references, take objects out of it, connect them, change them, and put them back. Every
 * object that this program makes has a name. A destructor that runs twice, or on memory that was never an object, ends
 * the process. When the threads are done, the table is emptied and garbage is collected. Then every name must be dead,
 * every finalizer must have run exactly once, and the heap must be as empty as it was at the start. Each report of
 * misuse, and each unraisable error, is a failure: the program is correct C.
 *
 * Fields of objects that other threads can see change under the object's own lock. No thread reaches a safe point while
 * its lock is closed, so a traverse handler, which runs in a stop, never finds a field half changed. */

#include <standstill.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { SLOTS = 48, WEAKS = 24, FIELDS = 3, NAMES = 1 << 22, EXTRA = 40 };
#define WITNESS 0x5ca1ab1e0ddba11ull
#define GRAVE 0xdead0b1ec7000000ull

#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_SEQ_CST)
#define ADD(place, n) __atomic_add_fetch(&(place), n, __ATOMIC_SEQ_CST)

static uint64_t seed;
static int threads, steps, checked;
static standstill_heap *heap;

static void failed(const char *what, long a, long b) {
    fprintf(stderr, "random %llu %d %d %d: %s (%ld, %ld)\n", (unsigned long long)seed, threads, steps, checked, what, a, b);
    fflush(NULL);
    _Exit(1);
}
#define MUST(condition)                                                                                               \
    do {                                                                                                              \
        if (!(condition))                                                                                             \
            failed(#condition, __LINE__, standstill_error_code());                                                    \
    } while (0)

static void on_misuse(const standstill_misuse *report, void *arg) {
    (void)arg;
    fprintf(stderr, "misuse in %s of %s: %s\n", report->function, report->type ? report->type : "-", report->text);
    failed("a report of misuse", report->code, 0);
}

static void on_unraisable(const standstill_unraisable *report, void *arg) {
    (void)arg;
    fprintf(stderr, "%s of %s: %s\n", report->kind, report->type ? report->type : "-", report->message);
    failed("an unraisable error", 0, 0);
}

/* Chance ------------------------------------------------------------------------------------------------------------ */

static __thread uint64_t chance;

static unsigned pick(unsigned below) {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return (unsigned)((chance >> 33) % below);
}

/* Names ------------------------------------------------------------------------------------------------------------- */

static struct {
    unsigned char alive, finalizer, finalized;
} names[NAMES];
static unsigned named;

static unsigned born(int finalizer) {
    unsigned name = ADD(named, 1) - 1;
    if (name >= NAMES)
        failed("too many objects for the table of names", (long)name, NAMES);
    names[name].finalizer = (unsigned char)finalizer;
    names[name].alive = 1;
    return name;
}

static void died(unsigned name) {
    if (name >= NAMES || __atomic_exchange_n(&names[name].alive, 0, __ATOMIC_SEQ_CST) != 1)
        failed("an object died that was not alive", (long)name, 0);
}

/* What objects consist of ------------------------------------------------------------------------------------------- */

typedef struct {
    uint64_t witness;
    unsigned name;
    char busy;      /* its lock */
    char has_extra; /* EXTRA bytes follow the object */
} Body;

typedef struct {
    PyObject_HEAD
    Body body;
    PyObject *fields[FIELDS];
} Thing;

typedef struct {
    PyObject_VAR_HEAD
    Body body;
    PyObject *items[1];
} Row;

typedef struct {
    Body body;
    PyObject *fields[FIELDS];
} State;

static void thing_dealloc(PyObject *op);
static void row_dealloc(PyObject *op);
static PyModuleDef module_def;

/* The fields of an object of this program, or NULL. */
static PyObject **fields_of(PyObject *op, Py_ssize_t *n, Body **body) {
    destructor dealloc = Py_TYPE(op)->tp_dealloc;
    *n = FIELDS;
    if (dealloc == thing_dealloc) {
        *body = &((Thing *)op)->body;
        return ((Thing *)op)->fields;
    }
    if (dealloc == row_dealloc) {
        *body = &((Row *)op)->body;
        *n = Py_SIZE(op);
        return ((Row *)op)->items;
    }
    if (PyModule_Check(op)) {
        State *state = PyModule_GetState(op);
        *body = &state->body;
        return state->fields;
    }
    return NULL;
}

/* The witness is 0 until the object has its name: checked mode traverses the first instance of a type at once. */
static void check(const Body *body) {
    if (body->witness != WITNESS && body->witness != 0)
        failed("an object that is not alive was reached", (long)body->name, 0);
}

static void lock(Body *body) {
    while (__atomic_exchange_n(&body->busy, 1, __ATOMIC_ACQUIRE))
        sched_yield();
    check(body);
}

static void unlock(Body *body) { __atomic_store_n(&body->busy, 0, __ATOMIC_RELEASE); }

static void clear_fields(PyObject **fields, Py_ssize_t n, Body *body) {
    Py_ssize_t i;
    for (i = 0; i < n; i++) {
        PyObject *old;
        lock(body);
        old = fields[i];
        fields[i] = NULL;
        unlock(body);
        Py_XDECREF(old);
    }
}

static int visit_fields(PyObject **fields, Py_ssize_t n, const Body *body, visitproc visit, void *arg) {
    Py_ssize_t i;
    check(body);
    for (i = 0; i < n; i++)
        Py_VISIT(fields[i]);
    return 0;
}

/* Shared references ------------------------------------------------------------------------------------------------- */

static PyObject *slots[SLOTS], *weaks[WEAKS];

static void put(PyObject **slot, PyObject *op) {
    PyObject *old = __atomic_exchange_n(slot, op, __ATOMIC_SEQ_CST);
    Py_XDECREF(old);
}

/* A new reference to what is in a slot, or NULL. */
static PyObject *copy(PyObject **slot) {
    PyObject *op = __atomic_exchange_n(slot, NULL, __ATOMIC_SEQ_CST);
    if (op)
        put(slot, Py_NewRef(op));
    return op;
}

static PyObject **some_slot(void) { return &slots[pick(SLOTS)]; }

/* Types ------------------------------------------------------------------------------------------------------------- */

#define IS_HEAP_TYPE(type) PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)

static int thing_traverse(PyObject *op, visitproc visit, void *arg) {
    Thing *self = (Thing *)op;
    if (IS_HEAP_TYPE(Py_TYPE(op)))
        Py_VISIT(Py_TYPE(op));
    Py_ssize_t i;
    check(&self->body);
    for (i = 0; i < FIELDS; i++)
        Py_VISIT(self->fields[i]);
    return PyObject_VisitManagedDict(op, visit, arg);
}

static int thing_clear(PyObject *op) {
    Thing *self = (Thing *)op;
    clear_fields(self->fields, FIELDS, &self->body);
    PyObject_ClearManagedDict(op);
    return 0;
}

static void thing_dealloc(PyObject *op) {
    Thing *self = (Thing *)op;
    PyTypeObject *type = Py_TYPE(op);
    int i;
    if (PyObject_CallFinalizerFromDealloc(op) < 0)
        return;
    PyObject_GC_UnTrack(op);
    PyObject_ClearWeakRefs(op);
    thing_clear(op);
    check(&self->body);
    if (self->body.has_extra)
        for (i = 0; i < EXTRA; i++)
            if (((unsigned char *)(self + 1))[i] != (unsigned char)(self->body.name + i))
                failed("extra data was overwritten", (long)self->body.name, i);
    self->body.witness = GRAVE;
    died(self->body.name);
    type->tp_free(op);
    if (IS_HEAP_TYPE(type))
        Py_DECREF(type);
}

static void thing_finalize(PyObject *op) {
    Thing *self = (Thing *)op;
    check(&self->body);
    if (__atomic_exchange_n(&names[self->body.name].finalized, 1, __ATOMIC_SEQ_CST))
        failed("finalized twice", (long)self->body.name, 0);
    if (pick(4) == 0)
        put(some_slot(), Py_NewRef(op));
}

static PyTypeObject Thing_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "random.Thing",
    .tp_basicsize = sizeof(Thing),
    .tp_dealloc = thing_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_traverse = thing_traverse,
    .tp_clear = thing_clear,
};

static int row_traverse(PyObject *op, visitproc visit, void *arg) {
    return visit_fields(((Row *)op)->items, Py_SIZE(op), &((Row *)op)->body, visit, arg);
}

static int row_clear(PyObject *op) {
    clear_fields(((Row *)op)->items, Py_SIZE(op), &((Row *)op)->body);
    return 0;
}

static void row_dealloc(PyObject *op) {
    Row *self = (Row *)op;
    PyObject_GC_UnTrack(op);
    PyObject_ClearWeakRefs(op);
    row_clear(op);
    check(&self->body);
    self->body.witness = GRAVE;
    died(self->body.name);
    Py_TYPE(op)->tp_free(op);
}

static PyTypeObject Row_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "random.Row",
    .tp_basicsize = offsetof(Row, items),
    .tp_itemsize = sizeof(PyObject *),
    .tp_dealloc = row_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = row_traverse,
    .tp_clear = row_clear,
};

static PyTypeObject *type_with(const char *name, unsigned long flags, int finalizer) {
    PyType_Slot with[] = {
        {Py_tp_traverse, (void *)(uintptr_t)thing_traverse},
        {Py_tp_clear, (void *)(uintptr_t)thing_clear},
        {Py_tp_dealloc, (void *)(uintptr_t)thing_dealloc},
        {0, NULL},
        {0, NULL},
    };
    PyType_Spec spec = {name, sizeof(Thing), 0, 0, NULL};
    PyTypeObject *type;
    spec.flags = (unsigned int)(Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | flags);
    spec.slots = with;
    if (finalizer) {
        with[3].slot = Py_tp_finalize;
        with[3].pfunc = (void *)(uintptr_t)thing_finalize;
    }
    type = (PyTypeObject *)PyType_FromSpec(&spec);
    MUST(type != NULL);
    return type;
}

static PyTypeObject *attributed, *ending;

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState_DuringGC(module);
    return state && state->body.witness ? visit_fields(state->fields, FIELDS, &state->body, visit, arg) : 0;
}

static int module_clear(PyObject *module) {
    State *state = PyModule_GetState(module);
    if (state->body.witness)
        clear_fields(state->fields, FIELDS, &state->body);
    return 0;
}

static void module_free(void *module) {
    State *state = PyModule_GetState(module);
    module_clear(module);
    state->body.witness = GRAVE;
    died(state->body.name);
}

static PyModuleDef module_def = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "random",
    .m_size = sizeof(State),
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

/* New objects ------------------------------------------------------------------------------------------------------- */

static void fill(PyObject **fields, Py_ssize_t n) {
    Py_ssize_t i;
    for (i = 0; i < n; i++)
        if (pick(2))
            fields[i] = copy(some_slot());
}

static PyObject *new_thing(PyTypeObject *type) {
    Thing *self = (Thing *)type->tp_alloc(type, 0);
    MUST(self != NULL);
    self->body.name = born(type->tp_finalize != NULL);
    self->body.witness = WITNESS;
    return (PyObject *)self;
}

static PyObject *new_thing_with_extra_data(void) {
    Thing *self = (Thing *)PyUnstable_Object_GC_NewWithExtraData(&Thing_Type, EXTRA);
    int i;
    MUST(self != NULL);
    self->body.name = born(0);
    self->body.witness = WITNESS;
    self->body.has_extra = 1;
    for (i = 0; i < EXTRA; i++)
        ((unsigned char *)(self + 1))[i] = (unsigned char)(self->body.name + i);
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

/* Made, resized while it is private, and published. */
static PyObject *new_row(void) {
    Py_ssize_t n = pick(12), to = pick(pick(8) ? 20 : 3000), i;
    Row *self = PyObject_GC_NewVar(Row, &Row_Type, n);
    MUST(self != NULL);
    self->body.name = born(0);
    self->body.witness = WITNESS;
    fill(self->items, n);
    for (i = to; i < n; i++)
        Py_CLEAR(self->items[i]);
    if (pick(2)) {
        self = PyObject_GC_Resize(Row, self, to);
        MUST(self != NULL && Py_SIZE(self) == to);
        check(&self->body);
        for (i = n; i < to; i++)
            if (self->items[i])
                failed("a new item is not empty", (long)self->body.name, (long)i);
    }
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *new_module(void) {
    PyObject *module = PyModule_Create(&module_def);
    State *state;
    MUST(module != NULL);
    state = PyModule_GetState(module);
    state->body.name = born(0);
    state->body.witness = WITNESS;
    return module;
}

static PyObject *new_tuple(void) {
    Py_ssize_t n = pick(6), i;
    PyObject *tuple = PyTuple_New(n);
    MUST(tuple != NULL);
    for (i = 0; i < n; i++) {
        PyObject *item = copy(some_slot());
        if (item)
            MUST(PyTuple_SetItem(tuple, i, item) == 0);
    }
    return tuple;
}

static PyObject *new_object(void) {
    PyTypeObject *type;
    PyObject *op;
    switch (pick(16)) {
    case 0:
        return new_row();
    case 1:
        return new_thing_with_extra_data();
    case 2:
        return new_tuple();
    case 3:
        op = pick(2) ? PyLong_FromLong((long)pick(1000)) : PyUnicode_FromString("some text");
        MUST(op != NULL);
        return op;
    case 4:
        return pick(4) ? new_thing(&Thing_Type) : new_module();
    case 5: /* an instance of a type of its own, or the type */
        if (pick(8))
            return new_row();
        type = type_with("random.Late", pick(2) ? Py_TPFLAGS_MANAGED_DICT : 0, 0);
        if (pick(2))
            return (PyObject *)type;
        op = new_thing(type);
        Py_DECREF(type);
        return op;
    case 6:
    case 7:
    case 8:
        return new_thing(ending);
    case 9:
    case 10:
    case 11:
        return new_thing(attributed);
    default:
        return new_thing(&Thing_Type);
    }
}

/* Steps ------------------------------------------------------------------------------------------------------------- */

static long called_back, upgraded, collected;

static void callback(PyObject *self, PyObject *weak) {
    (void)weak;
    ADD(called_back, 1);
    if (self && pick(4) == 0)
        put(some_slot(), Py_NewRef(self));
}

static int look(PyObject *op, void *arg) {
    (void)op;
    return ++*(int *)arg < 50;
}

static void set_some_field(PyObject *op, PyObject *value) {
    Py_ssize_t n;
    Body *body;
    PyObject **fields = fields_of(op, &n, &body), *old;
    if (!fields || n == 0) {
        Py_XDECREF(value);
        return;
    }
    fields += pick((unsigned)n);
    lock(body);
    old = *fields;
    *fields = value;
    unlock(body);
    Py_XDECREF(old);
}

static PyObject *some_field(PyObject *op) {
    Py_ssize_t n;
    Body *body;
    PyObject **fields = fields_of(op, &n, &body), *found;
    if (!fields || n == 0)
        return NULL;
    lock(body);
    found = Py_XNewRef(fields[pick((unsigned)n)]);
    unlock(body);
    return found;
}

static void *child_main(void *arg);

static void step(int depth) {
    static const char *const attributes[] = {"a", "b", "c"};
    PyObject *op = copy(some_slot()), *other, *found = NULL, *weak;
    PyThreadState *saved;
    pthread_t child;
    uint64_t its_seed;
    int seen = 0;
    switch (pick(24)) {
    case 0:
    case 1:
    case 2:
    case 3:
        put(some_slot(), new_object());
        break;
    case 4:
    case 5:
    case 6:
    case 7:
        if (op)
            set_some_field(op, copy(some_slot()));
        break;
    case 8:
        if (op)
            set_some_field(op, NULL);
        break;
    case 9:
    case 10:
        if (op)
            put(some_slot(), some_field(op));
        break;
    case 11:
    case 12:
        put(some_slot(), NULL);
        break;
    case 13: /* attributes; not every type has room for them */
        if (op) {
            other = copy(some_slot());
            if (PyType_HasFeature(Py_TYPE(op), Py_TPFLAGS_MANAGED_DICT))
                MUST(PyObject_SetAttrString(op, attributes[pick(3)], other) == 0 || (!other && PyErr_ExceptionMatches(PyExc_AttributeError)));
            PyErr_Clear();
            Py_XDECREF(other);
        }
        break;
    case 14:
        if (op && PyType_HasFeature(Py_TYPE(op), Py_TPFLAGS_MANAGED_DICT)) {
            found = PyObject_GetAttrString(op, attributes[pick(3)]);
            MUST(found || PyErr_ExceptionMatches(PyExc_AttributeError));
            PyErr_Clear();
            put(some_slot(), found);
        }
        break;
    case 15:
        if (op && Py_TYPE(op)->tp_dealloc == thing_dealloc) {
            other = pick(2) ? standstill_Callback_New(callback, op == slots[0] ? NULL : Py_None) : NULL;
            weak = PyWeakref_NewRef(op, other);
            MUST(weak != NULL);
            Py_XDECREF(other);
            put(&weaks[pick(WEAKS)], weak);
        }
        break;
    case 16:
    case 17:
        weak = copy(&weaks[pick(WEAKS)]);
        if (weak) {
            MUST(PyWeakref_GetRef(weak, &found) >= 0);
            if (found) {
                ADD(upgraded, 1);
                put(some_slot(), found);
            }
            Py_DECREF(weak);
        }
        break;
    case 18:
        if (pick(20) == 0)
            ADD(collected, PyGC_Collect());
        else if (pick(10) == 0)
            MUST(standstill_gc_collect((int)pick(3)) >= 0);
        break;
    case 19: /* the last reference may go on a thread that is not attached */
        saved = PyEval_SaveThread();
        Py_XDECREF(op);
        PyEval_RestoreThread(saved);
        op = NULL;
        break;
    case 20:
        if (pick(30) == 0)
            PyUnstable_GC_VisitObjects(look, &seen);
        break;
    case 21:
        if (op && pick(30) == 0) {
            found = pick(2) ? standstill_gc_get_referrers(&op, 1) : standstill_gc_get_referents(&op, 1);
            MUST(found != NULL);
            Py_DECREF(found);
        }
        break;
    case 22:
        if (pick(200) == 0)
            MUST((pick(2) ? standstill_gc_freeze() : standstill_gc_unfreeze()) >= 0);
        break;
    default: /* a thread that does a few steps, and ends */
        if (depth == 0 && pick(300) == 0) {
            its_seed = chance;
            saved = PyEval_SaveThread();
            if (pthread_create(&child, NULL, child_main, &its_seed) || pthread_join(child, NULL))
                failed("a thread", 0, 0);
            PyEval_RestoreThread(saved);
        }
        break;
    }
    Py_XDECREF(op);
    standstill_safepoint();
}

static void run(uint64_t with, int n, int depth) {
    chance = with * 0x9e3779b97f4a7c15ull | 1;
    MUST(standstill_attach(heap) == 0);
    while (n-- > 0)
        step(depth);
    MUST(!PyErr_Occurred());
    MUST(standstill_detach() == 0);
}

static void *child_main(void *arg) {
    run(*(uint64_t *)arg, 50, 1);
    return NULL;
}

static void *worker_main(void *arg) {
    run(seed * 64 + (uint64_t)(uintptr_t)arg, steps, 0);
    return NULL;
}

/* The account ------------------------------------------------------------------------------------------------------- */

static void settle(void) {
    int i, rounds, empty = 0;
    MUST(standstill_gc_unfreeze() == 0);
    /* Finalizers and callbacks put objects back into the table: two rounds with nothing to do are the end. */
    for (rounds = 0; rounds < 1000 && empty < 2; rounds++) {
        empty++;
        for (i = 0; i < SLOTS; i++)
            if (LOAD(slots[i])) {
                put(&slots[i], NULL);
                empty = 0;
            }
        for (i = 0; i < WEAKS; i++)
            put(&weaks[i], NULL);
        if (PyGC_Collect() != 0)
            empty = 0;
        standstill_safepoint();
    }
    MUST(empty == 2);
}

int main(int count, char **words) {
    static pthread_t all[64];
    standstill_heap_options options;
    long long before;
    unsigned i;
    if (count != 5)
        return 2;
    seed = strtoull(words[1], NULL, 10);
    threads = atoi(words[2]);
    steps = atoi(words[3]);
    checked = atoi(words[4]);
    MUST(threads > 0 && threads <= 64);
    standstill_set_misuse_hook(on_misuse, NULL);
    standstill_set_unraisable_hook(on_unraisable, NULL);
    memset(&options, 0, sizeof options);
    options.checked = checked;
    heap = standstill_heap_new(&options);
    MUST(heap != NULL);
    MUST(standstill_attach(heap) == 0);
    chance = seed | 1;
    MUST(PyType_Ready(&Thing_Type) == 0 && PyType_Ready(&Row_Type) == 0);
    before = standstill_live_objects();
    attributed = type_with("random.Attributed", Py_TPFLAGS_MANAGED_DICT, 0);
    ending = type_with("random.Ending", 0, 1);
    {
        PyThreadState *saved = PyEval_SaveThread();
        for (i = 0; i < (unsigned)threads; i++)
            if (pthread_create(&all[i], NULL, worker_main, (void *)(uintptr_t)i))
                failed("a thread", i, 0);
        for (i = 0; i < (unsigned)threads; i++)
            pthread_join(all[i], NULL);
        PyEval_RestoreThread(saved);
    }
    settle();
    Py_CLEAR(attributed);
    Py_CLEAR(ending);
    settle();
    for (i = 0; i < named; i++) {
        if (names[i].alive)
            failed("an object was lost", (long)i, names[i].finalizer);
        if (names[i].finalized != names[i].finalizer)
            failed("a finalizer did not run", (long)i, 0);
    }
    if (standstill_live_objects() != before)
        failed("objects are left", (long)standstill_live_objects(), (long)before);
    MUST(!PyErr_Occurred());
    MUST(standstill_detach() == 0);
    MUST(standstill_heap_free(heap) == 0);
    printf("%u objects, %ld collected, %ld callbacks, %ld upgrades\n", named, collected, called_back, upgraded);
    return 0;
}
