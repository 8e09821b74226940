/* Shared by the tests of the conformance table: checks, recorders of reports, some types, threads.
 *
 * A test runs in a process of its own, on a thread that is attached to a fresh heap (check_heap).
 * When it returns, it must have expected every misuse report and every unraisable error with
 * EXPECT_MISUSE or EXPECT_UNRAISABLE, and no error may be pending. So a test without mistakes also
 * shows that nothing is reported. */

#ifndef CHECK_H
#define CHECK_H

#include <standstill.h>

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Registration --------------------------------------------------------------------------------- */

enum {
    CHECKED_ONLY = 1,   /* needs checked mode */
    UNCHECKED_ONLY = 2, /* shows what holds without it */
    BARE = 4            /* no heap, not attached: the test does that itself */
};

struct test {
    const char *name;
    void (*run)(void);
    unsigned how;
};

#define TEST(fn) { #fn, fn, 0 }
#define TEST_AS(fn, how) { #fn, fn, how }
#define TESTS_END { NULL, NULL, 0 }

/* Checks --------------------------------------------------------------------------------------- */

void check_failed(const char *file, int line, const char *format, ...);

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition))                                                                        \
            check_failed(__FILE__, __LINE__, "%s", #condition);                                  \
    } while (0)

#define CHECK_INT(found, wanted)                                                                 \
    do {                                                                                         \
        long long check_found = (long long)(found), check_wanted = (long long)(wanted);          \
        if (check_found != check_wanted)                                                         \
            check_failed(__FILE__, __LINE__, "%s is %lld, not %s (%lld)", #found, check_found,   \
                         #wanted, check_wanted);                                                 \
    } while (0)

/* A library function's own failure inside a helper. */
#define MUST(condition)                                                                          \
    do {                                                                                         \
        if (!(condition))                                                                        \
            check_failed(__FILE__, __LINE__, "%s: error %d: %s", #condition,                     \
                         standstill_error_code(),                                                \
                         standstill_error_message() ? standstill_error_message() : "-");         \
    } while (0)

/* The indicator holds exactly this code; it is cleared. */
#define EXPECT_ERROR(code) check_error(__FILE__, __LINE__, code)
/* Exactly n reports of this code were made since the last call; n < 0: one or more. The reports are
 * then forgotten. A report that a traverse handler causes is made when the world runs again, so a
 * test expects it after the collection. */
#define EXPECT_MISUSE(code, n) check_misuse(__FILE__, __LINE__, code, n)
/* Exactly n unraisable errors; n < 0: one or more. */
#define EXPECT_UNRAISABLE(n) check_unraisable(__FILE__, __LINE__, n)

void check_error(const char *file, int line, int code);
void check_misuse(const char *file, int line, int code, int n);
void check_unraisable(const char *file, int line, int n);
/* Runs `run` with standard error going to a file, and says how many of its lines contain `part`. */
int lines_of(void (*run)(void), const char *part);
int misuses(int code); /* not yet expected; 0: of all codes */
/* Reports of this code by this function that were not yet expected. */
int misuses_in(int code, const char *function);
int unraisables(void);
void forget_misuses(void);

struct report {
    int code;
    const void *object;
    char function[64];
    char type[64];
    char text[256];
};
extern struct report last_misuse;     /* copied when the report was made */
extern struct report last_unraisable; /* function: the kind; text: the message */

/* Counters are changed by handlers that may run on several threads at once. */
#define ADD(counter) ((void)__atomic_add_fetch(&(counter), 1, __ATOMIC_SEQ_CST))
#define GET(counter) __atomic_load_n(&(counter), __ATOMIC_SEQ_CST)
#define PUT(variable, value) __atomic_store_n(&(variable), value, __ATOMIC_SEQ_CST)

/* A function as the slot of a spec takes it: ISO C has no direct conversion. */
#define FN(function) ((void *)(uintptr_t)(function))

extern standstill_heap *check_heap;
extern int check_is_checked;

#define LIVE() ((long long)standstill_live_objects())

/* Types ---------------------------------------------------------------------------------------- */

#define TYPE_HEAD .ob_base = PyVarObject_HEAD_INIT(NULL, 0)

/* Two references, and a number that no handler reads. */
typedef struct {
    PyObject_HEAD
    PyObject *a;
    PyObject *b;
    long tag;
} Pair;

/* Any number of references. */
typedef struct {
    PyObject_VAR_HEAD
    PyObject *items[1];
} Row;

/* One reference, of a type that does not take part in collections. */
typedef struct {
    PyObject_HEAD
    PyObject *ref;
} Holder;

/* No reference. */
typedef struct {
    PyObject_HEAD
    long number;
} Leaf;

extern PyTypeObject Pair_Type; /* and a base for types with other handlers */
extern PyTypeObject Row_Type;
extern PyTypeObject Holder_Type;
extern PyTypeObject Leaf_Type;
#define ROW_SIZE ((Py_ssize_t)offsetof(Row, items))

/* Calls of the handlers of Pair and of the types that inherit them. */
struct calls {
    long traversed, cleared, finalized, freed;
};
extern struct calls calls;

int pair_traverse(PyObject *self, visitproc visit, void *arg);
int pair_clear(PyObject *self);
void pair_dealloc(PyObject *self);
void heap_pair_dealloc(PyObject *self); /* drops the type as well */
void pair_finalize(PyObject *self); /* counts */
int row_traverse(PyObject *self, visitproc visit, void *arg);
int row_clear(PyObject *self);
void row_dealloc(PyObject *self);
int heap_pair_traverse(PyObject *self, visitproc visit, void *arg);
int nothing_traverse(PyObject *self, visitproc visit, void *arg);

void ready(PyTypeObject *type); /* must work */

/* New instances with new references to a and b. */
Pair *pair_of(PyTypeObject *type, void *a, void *b);
#define pair(a, b) pair_of(&Pair_Type, a, b)
Holder *holder(void *ref);
Leaf *leaf(void);
Row *row(Py_ssize_t n); /* tracked, empty */

/* A ring of n pairs. `a` of each refers to the next. The caller owns a reference to the first. */
Pair *ring_of(PyTypeObject *type, int n);
/* The same, without a reference from outside. The result is an address to compare with. */
Pair *garbage_ring_of(PyTypeObject *type, int n);
#define ring(n) ring_of(&Pair_Type, n)
#define garbage_ring(n) garbage_ring_of(&Pair_Type, n)
void set_a(void *pair, void *object); /* a new reference; the old one is dropped */
void set_b(void *pair, void *object);

/* A heap type with Pairs as instances, which visit their type. `flags` are added to its flags.
 * `more` is NULL, or slots that follow its own, up to a slot 0. */
PyTypeObject *heap_pair_type(const char *name, unsigned int flags, const PyType_Slot *more);
/* A heap type with these slots alone. NULL on failure. */
PyTypeObject *type_of_slots(const char *name, int basicsize, int itemsize, unsigned int flags,
                            PyType_Slot *slots);

int is_alive(PyObject *weak);       /* of a weak reference */
PyObject *weak_to(void *object);    /* without a callback */
PyObject *counting_weak(void *object, long *counter);

/* Runs `run` attached to a heap that holds a few pages of objects and no more. */
void in_small_heap(void (*run)(void));

/* Threads -------------------------------------------------------------------------------------- */

typedef struct {
    pthread_t id;
    void (*run)(void *);
    void *arg;
    int attach;
} thread;

/* Starts a thread, attached to check_heap. */
void start(thread *t, void (*run)(void *), void *arg);
/* Starts a thread that is not attached. */
void start_raw(thread *t, void (*run)(void *), void *arg);
/* Waits, detached. */
void join(thread *t);
void run_on_thread(void (*run)(void *), void *arg);
/* Waits, attached and passing safe points, until *flag is not 0; fails after 20 seconds. */
void wait_for(int *flag);
/* The same without safe points: for handlers. */
void block_for(int *flag);

#endif
