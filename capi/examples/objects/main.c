/* Several threads build and drop cyclic structures of all the types of this object system, while collections run.
 *
 *     objects [threads [rounds]]
 *
 * Without `rounds` it runs for about two seconds. It prints what it made, and exits with 1 if anything is wrong: an
 * object that died twice, or not at all; one that was emptied while it was in use; a finalizer that ran twice; a
 * callback that did not run; a misuse report.
 *
 * capi/examples/build.sh builds it: one call of cc.
 */
#include "objects.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    POOL = 24,     /* objects of a round */
    RING = 16,     /* weak references that a worker keeps */
    KEPT = 8,      /* structures that a worker keeps over many rounds */
    SHARED = 128,  /* objects that all workers know */
    MAX_THREADS = 256,
    CHAIN = 100000
};

/* Given up at once: an example has no use for less memory. */
static void *must(void *result)
{
    if (result == NULL) {
        const char *message = standstill_error_message();
        fprintf(stderr, "objects: %s\n", message != NULL ? message : "something failed without an error");
        exit(1);
    }
    return result;
}

/* ---- what happens meanwhile ---- */

static atomic_ullong misuses, unraisables, callbacks, verified, collections;

/* How often the callback of each place of each ring was called. */
static atomic_ulong called[MAX_THREADS * RING];

static void on_misuse(const standstill_misuse *report, void *arg)
{
    (void)arg;
    if (atomic_fetch_add(&misuses, 1) < 20) {
        fprintf(stderr, "misuse: %s\n", report->text);
    }
}

static void on_unraisable(const standstill_unraisable *report, void *arg)
{
    (void)arg;
    if (atomic_fetch_add(&unraisables, 1) < 20) {
        fprintf(stderr, "unraisable in %s: %s\n", report->kind, report->message);
    }
}

static void on_progress(const char *phase, const standstill_gc_info *info, void *arg)
{
    (void)info;
    (void)arg;
    if (phase[0] == 's' && phase[1] == 't' && phase[2] == 'o') {
        atomic_fetch_add(&collections, 1);
    }
}

/* Of a weak reference: it must be empty by now. `self` is the number of its place. */
static void on_death(PyObject *self, PyObject *weakref)
{
    PyObject *target;
    CHECK(PyWeakref_GetRef(weakref, &target) == 0 && target == NULL);
    atomic_fetch_add(&called[PyLong_AsLong(self)], 1);
    atomic_fetch_add(&callbacks, 1);
}

/* ---- one worker ---- */

typedef struct {
    unsigned number;
    unsigned long rounds; /* 0: until `until` */
    struct timespec until;
    PyObject *module;     /* borrowed from main, which waits for the worker */
    PyObject *shared;     /* a List, likewise */
    PyObject *returned;   /* a List: nodes that came back to life */
    pthread_t thread;

    /* The worker's own. */
    const Types *types;
    PyObject *name;       /* of the thread, a string */
    PyObject *ring[RING];    /* weak references */
    unsigned long due[RING]; /* how many calls of its callback each place must see */
    PyObject *kept[KEPT];
    uint64_t random;
} Worker;

static unsigned pick(Worker *w, unsigned n)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (unsigned)((w->random >> 32) % n);
}

static PyObject *new_object(Worker *w, PyObject *const *others, int n)
{
    switch (pick(w, 8)) {
    case 0:
        return must(List_New(w->types->list));
    case 1:
        return must(Dict_New(w->types->dict));
    case 2:
        return must(Tuple_New(others, n < 3 ? n : 3));
    case 3:
        return must(Object_New(w->types->object));
    case 4:
    case 5:
        return must(Node_New(w->types->node));
    case 6:
        return must(Local_New(w->types->local, n > 0 ? others[0] : NULL, n > 1 ? others[1] : NULL));
    default:
        return must(Pair_New(n > 0 ? others[0] : NULL, NULL));
    }
}

/* Makes `from` refer to `to`, in whatever way its type has. */
static void link_to(Worker *w, PyObject *from, PyObject *to)
{
    PyTypeObject *type = Py_TYPE(from);
    if (type == w->types->list) {
        CHECK(List_Append(from, to) == 0);
    } else if (type == w->types->dict) {
        /* Half of the keys are strings, half are objects; now and then a key is the value, or the dictionary. */
        if (pick(w, 2) == 0) {
            char text[16];
            snprintf(text, sizeof text, "key %u", pick(w, 12));
            PyObject *key = must(PyUnicode_FromString(text));
            CHECK(Dict_Set(from, key, to) == 0);
            Py_DECREF(key);
        } else {
            CHECK(Dict_Set(from, pick(w, 2) == 0 ? to : from, to) == 0);
        }
    } else if (type == w->types->node) {
        CHECK(Node_SetNext(from, to) == 0);
    } else if (type == w->types->local) {
        PyObject *mine = must(Local_ForThread(from, w->name));
        CHECK(Dict_Set(mine, w->name, to) == 0);
        Py_DECREF(mine);
    } else if (type == &Pair_Type) {
        CHECK(Pair_Set(from, (int)pick(w, 2), to) == 0);
    } else if (PyObject_TypeCheck(from, w->types->object)) {
        static const char *const attributes[] = { "left", "right", "up" };
        CHECK(PyObject_SetAttrString(from, attributes[pick(w, 3)], to) == 0);
    } else {
        /* Tuples do not change. */
        CHECK(type == &Tuple_Type);
    }
}

/* A weak reference in place of an older one. */
static void watch(Worker *w, PyObject *op)
{
    unsigned i = pick(w, RING);
    long place = (long)(w->number * RING + i);
    if (w->ring[i] != NULL) {
        PyObject *target;
        if (PyWeakref_GetRef(w->ring[i], &target) == 1) {
            /* It goes before its target, which this reference keeps alive: so nothing is called. */
            w->due[i]--;
            Py_CLEAR(w->ring[i]);
            Py_DECREF(target);
        } else if (atomic_load(&called[place]) == w->due[i]) {
            Py_CLEAR(w->ring[i]);
        } else {
            return; /* another thread is about to call it: not if it goes now */
        }
    }
    PyObject *number = must(PyLong_FromLong(place));
    PyObject *callback = must(standstill_Callback_New(on_death, number));
    w->ring[i] = must(PyWeakref_NewRef(op, callback));
    w->due[i]++;
    Py_DECREF(callback);
    Py_DECREF(number);
}

/* A class of its own, with an instance in its dictionary: the instance refers to its class, and the class to it. */
static void make_class(Worker *w)
{
    PyObject *class = must(Class_New(w->types->object, "objects.Passing"));
    PyObject *instance = must(Object_New((PyTypeObject *)class));
    CHECK(PyObject_SetAttrString(class, "prototype", instance) == 0);
    CHECK(PyObject_SetAttrString(instance, "self", instance) == 0);
    watch(w, instance);
    Py_DECREF(instance);
    Py_DECREF(class);
}

/* A structure that has one of each type, of which every part is known, so that it can be checked later that nothing
 * was taken away: list -> tuple -> dict -> object -> node -> pair -> local -> list. */
static PyObject *make_known(Worker *w)
{
    PyObject *list = must(List_New(w->types->list));
    PyObject *dict = must(Dict_New(w->types->dict));
    PyObject *object = must(Object_New(w->types->object));
    PyObject *node = must(Node_New(w->types->node));
    PyObject *local = must(Local_New(w->types->local, list, dict));
    PyObject *pair = must(Pair_New(local, node));
    PyObject *items[2] = { dict, w->name };
    PyObject *tuple = must(Tuple_New(items, 2));
    PyObject *mine = must(Local_ForThread(local, w->name));
    for (int i = 0; i < 20; i++) {
        CHECK(List_Append(list, i % 2 == 0 ? tuple : list) == 0);
    }
    CHECK(Dict_Set(dict, w->name, object) == 0);
    CHECK(PyObject_SetAttrString(object, "node", node) == 0);
    CHECK(Node_SetNext(node, pair) == 0);
    CHECK(Dict_Set(mine, w->name, list) == 0);
    Py_DECREF(mine);
    Py_DECREF(tuple);
    Py_DECREF(pair);
    Py_DECREF(local);
    Py_DECREF(node);
    Py_DECREF(object);
    Py_DECREF(dict);
    return list;
}

/* Drops `op` and gives `next`: one step of a walk. */
static PyObject *step(PyObject *op, PyObject *next)
{
    Py_XDECREF(op);
    return next;
}

static void check_known(Worker *w, PyObject *list)
{
    CHECK(List_Size(list) == 20);
    PyObject *at = step(NULL, List_Get(list, 19));
    CHECK(at == list);
    at = step(at, List_Get(list, 0));
    CHECK(at != NULL && Py_IS_TYPE(at, &Tuple_Type) && Py_SIZE(at) == 2 && Tuple_Get(at, 1) == w->name);
    at = step(at, Py_NewRef(Tuple_Get(at, 0)));
    at = step(at, at != NULL ? Dict_Get(at, w->name) : NULL);
    at = step(at, at != NULL ? PyObject_GetAttrString(at, "node") : NULL);
    at = step(at, at != NULL ? Node_GetNext(at) : NULL);
    at = step(at, at != NULL ? Pair_Get(at, 0) : NULL);
    at = step(at, at != NULL ? Local_ForThread(at, w->name) : NULL);
    at = step(at, at != NULL ? Dict_Get(at, w->name) : NULL);
    CHECK(at == list);
    Py_XDECREF(at);
    atomic_fetch_add_explicit(&verified, 1, memory_order_relaxed);
}

static void one_round(Worker *w, unsigned long round)
{
    /* Private objects, linked at random, some with what is shared. */
    PyObject *pool[POOL];
    for (int i = 0; i < POOL; i++) {
        pool[i] = new_object(w, pool, i);
    }
    for (int i = 0; i < 2 * POOL; i++) {
        link_to(w, pool[pick(w, POOL)], pool[pick(w, POOL)]);
    }
    for (int i = 0; i < 4; i++) {
        Py_ssize_t at = (Py_ssize_t)pick(w, SHARED);
        PyObject *other = List_Get(w->shared, at);
        if (other != NULL) {
            link_to(w, pool[pick(w, POOL)], other);
            Py_DECREF(other);
        }
        if (pick(w, 4) == 0) {
            CHECK(List_Set(w->shared, at, pool[pick(w, POOL)]) == 0);
        }
    }
    watch(w, pool[pick(w, POOL)]);

    /* Lists whose items others change are read as a whole. */
    if (round % 8 == 0) {
        PyObject *tuple = must(List_AsTuple(w->shared));
        CHECK(Py_SIZE(tuple) == SHARED);
        Py_DECREF(tuple);
    }
    if (round % 32 == 0) {
        make_class(w);
    }

    /* What is kept is checked, and replaced. */
    PyObject **kept = &w->kept[round % KEPT];
    if (*kept != NULL) {
        check_known(w, *kept);
    }
    Py_XSETREF(*kept, make_known(w));

    /* The resurrected objects are dropped. */
    PyObject *node = List_Pop(w->returned);
    if (node != NULL) {
        CHECK(PyObject_GC_IsFinalized(node));
        PyObject *next = Node_GetNext(node);
        Py_XDECREF(next);
        Py_DECREF(node);
    }

    for (int i = 0; i < POOL; i++) {
        Py_DECREF(pool[i]);
    }

    /* Rule 2: no mutex is held here. */
    standstill_safepoint();
    if (round % 512 == 511) {
        PyGC_Collect();
    }
    if (round % 128 == 127) {
        struct timespec nap = { 0, 200000 };
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&nap, NULL);
        Py_END_ALLOW_THREADS
    }
}

static bool is_over(const Worker *w)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > w->until.tv_sec || (now.tv_sec == w->until.tv_sec && now.tv_nsec >= w->until.tv_nsec);
}

static void *work(void *arg)
{
    Worker *w = arg;
    char name[32];
    if (standstill_attach(NULL) < 0) {
        fail(__FILE__, __LINE__, standstill_error_message());
        return NULL;
    }
    snprintf(name, sizeof name, "worker %u", w->number);
    w->types = objects_types(w->module);
    w->name = must(PyUnicode_FromString(name));
    w->random = UINT64_C(0x9e3779b97f4a7c15) * (w->number + 1);

    for (unsigned long round = 0; w->rounds != 0 ? round < w->rounds : !is_over(w); round++) {
        if (census_is_full()) {
            break;
        }
        one_round(w, round);
    }

    for (int i = 0; i < KEPT; i++) {
        if (w->kept[i] != NULL) {
            check_known(w, w->kept[i]);
            Py_CLEAR(w->kept[i]);
        }
    }
    Py_CLEAR(w->name);
    /* The ring is left to main: what it watches dies in the last collections. */
    CHECK(standstill_detach() == 0);
    return NULL;
}

/* ---- main ---- */

/* A chain so long that dropping it one inside the other would need more stack than there is. */
static void drop_long_chain(void)
{
    PyObject *head = must(Pair_New(NULL, NULL));
    for (int i = 0; i < CHAIN; i++) {
        PyObject *next = must(Pair_New(head, NULL));
        Py_SETREF(head, next);
    }
    Py_DECREF(head);
}

int main(int argc, char **argv)
{
    unsigned threads = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 4;
    unsigned long rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    if (threads < 1 || threads > MAX_THREADS || argc > 3) {
        fprintf(stderr, "usage: objects [threads (1 to %d) [rounds]]\n", MAX_THREADS);
        return 2;
    }
    standstill_set_misuse_hook(on_misuse, NULL);
    standstill_set_unraisable_hook(on_unraisable, NULL);
    if (!census_open() || standstill_attach(NULL) < 0) {
        fprintf(stderr, "objects: no memory\n");
        return 1;
    }
    long long before = standstill_live_objects();
    int progress = standstill_gc_add_callback(on_progress, NULL);
    /* Often, so that much happens during collections. */
    CHECK(standstill_gc_set_threshold(700, 10, 0) == 0);

    PyObject *module = must(objects_module());
    const Types *types = objects_types(module);
    PyObject *shared = must(List_New(types->list));
    PyObject *returned = must(List_New(types->list));
    for (int i = 0; i < SHARED; i++) {
        CHECK(List_Append(shared, Py_None) == 0);
    }
    nodes_return_to(returned);
    drop_long_chain();

    Worker *workers = must(calloc(threads, sizeof *workers));
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 2;
    for (unsigned i = 0; i < threads; i++) {
        Worker *w = &workers[i];
        w->number = i;
        w->rounds = rounds;
        w->until = until;
        w->module = module;
        w->shared = shared;
        w->returned = returned;
        if (pthread_create(&w->thread, NULL, work, w) != 0) {
            fprintf(stderr, "objects: no more threads\n");
            return 1;
        }
    }
    /* Waiting is done detached: collections would wait for this thread. */
    Py_BEGIN_ALLOW_THREADS
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
    }
    Py_END_ALLOW_THREADS

    /* Drop all references, and collect until nothing is found. */
    nodes_return_to(NULL);
    Py_CLEAR(shared);
    PyObject *node;
    while ((node = List_Pop(returned)) != NULL) {
        Py_DECREF(node);
    }
    Py_CLEAR(returned);
    while (PyGC_Collect() > 0) {
    }
    CHECK(census_is_even(false));
    for (unsigned i = 0; i < threads; i++) {
        for (int j = 0; j < RING; j++) {
            CHECK(atomic_load(&called[i * RING + (unsigned)j]) == workers[i].due[j]);
            if (workers[i].ring[j] != NULL) {
                PyObject *target;
                CHECK(PyWeakref_GetRef(workers[i].ring[j], &target) == 0);
                Py_CLEAR(workers[i].ring[j]);
            }
        }
    }
    free(workers);

    /* The module and its types are garbage, too, after this. */
    Py_DECREF(module);
    while (PyGC_Collect() > 0) {
    }
    standstill_gc_remove_callback(progress);
    CHECK(standstill_live_objects() == before);
    CHECK(standstill_gc_garbage_size() == 0);
    CHECK(PyErr_Occurred() == NULL);
    CHECK(atomic_load(&misuses) == 0);
    CHECK(atomic_load(&unraisables) == 0);

    census_is_even(true);
    printf("%u threads, %llu objects, %llu collections, %llu structures checked, %llu callbacks\n", threads,
           census_total(), (unsigned long long)atomic_load(&collections), (unsigned long long)atomic_load(&verified),
           (unsigned long long)atomic_load(&callbacks));
    if (standstill_live_objects() != before) {
        printf("%lld objects are left\n", standstill_live_objects() - before);
    }
    CHECK(standstill_detach() == 0);
    printf(atomic_load(&failures) == 0 ? "ok\n" : "FAILED\n");
    return atomic_load(&failures) == 0 ? 0 : 1;
}
