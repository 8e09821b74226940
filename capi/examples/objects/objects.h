/* A small object system on top of standstill: lists, dictionaries, tuples, instances with
 * attributes, pairs, and a class with a value for each thread. The program that uses it is main.c.
 *
 * THREAD SAFETY. There is no global lock. These rules replace it:
 *
 * 1. An object whose members change while other threads can access it has a mutex. Its functions
 *    lock the mutex around each change and each read. Objects with constant members (tuples,
 *    locals) have no mutex.
 *
 * 2. A thread holds a mutex only while it moves some pointers. Meanwhile it reaches no safepoint,
 *    does not detach, and drops no reference: a drop could run a deallocator, which locks mutexes.
 *    A function moves the references that it will drop into local variables, and drops them after
 *    the unlock.
 *
 * 3. So no thread holds a mutex while the world is stopped. An attached thread is stopped at a
 *    safepoint, where rule 2 applies. A detached thread does not access objects. A traverse handler
 *    therefore finds every object between two changes, and needs no mutex. It must not lock one:
 *    a traverse handler may not wait.
 *
 * 4. A clear handler runs while the world runs, so it locks the mutex like any other function.
 *
 * 5. An attached thread that waits for a mutex delays collections. By rule 2 the delay is short.
 */
#ifndef OBJECTS_H
#define OBJECTS_H

#ifndef _POSIX_C_SOURCE
#  define _POSIX_C_SOURCE 200809L
#endif

#include <standstill.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* ---- census.c: every object dies exactly once ---- */

enum kind { LIST, DICT, TUPLE, OBJECT, NODE, LOCAL, PAIR, KINDS };

/* Failed checks so far, and how to report one. */
extern atomic_ullong failures;
void fail(const char *file, int line, const char *what);
#define CHECK(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition))

bool census_open(void);
/* A number for a new object, never 0; 0 when there are no more. */
uint64_t census_born(enum kind kind);
void census_finalized(uint64_t serial);
void census_died(enum kind kind, uint64_t serial);
bool census_is_full(void);
/* Whether everything that was born has died. Prints the table if `loud`. */
bool census_is_even(bool loud);
unsigned long long census_total(void);

/* ---- the module: its state holds the heap types ---- */

typedef struct {
    PyTypeObject *list;
    PyTypeObject *dict;
    PyTypeObject *object;
    PyTypeObject *node;
    PyTypeObject *local;
} Types;

PyObject *objects_module(void);
/* The types, borrowed from the module. */
const Types *objects_types(PyObject *module);
/* The types of the module that an object's type belongs to; NULL and an error. */
const Types *types_of(PyObject *op);

PyTypeObject *list_type(PyObject *module);
PyTypeObject *dict_type(PyObject *module);
PyTypeObject *object_type(PyObject *module);
PyTypeObject *node_type(PyObject *module, PyTypeObject *object);
PyTypeObject *local_type(PyObject *module);

/* A slot is a void *. ISO C converts function pointers to it only through a number. */
#define SLOT(function) ((void *)(uintptr_t)(function))

static inline void lock(pthread_mutex_t *mutex)
{
    if (pthread_mutex_lock(mutex) != 0) {
        fail(__FILE__, __LINE__, "pthread_mutex_lock");
    }
}

static inline void unlock(pthread_mutex_t *mutex)
{
    if (pthread_mutex_unlock(mutex) != 0) {
        fail(__FILE__, __LINE__, "pthread_mutex_unlock");
    }
}

/* All functions below return a new reference, or NULL and an error; or 0, or -1 and an error.
 * Arguments are borrowed. */

/* ---- list.c: as many items as one likes ---- */

PyObject *List_New(PyTypeObject *type);
int List_Append(PyObject *op, PyObject *item);
/* NULL without an error: there is no such item. */
PyObject *List_Get(PyObject *op, Py_ssize_t i);
/* -1 without an error: there is no such item. */
int List_Set(PyObject *op, Py_ssize_t i, PyObject *item);
/* The last item, taken out; NULL without an error: empty. */
PyObject *List_Pop(PyObject *op);
Py_ssize_t List_Size(PyObject *op);
PyObject *List_AsTuple(PyObject *op);

/* ---- dict.c: keys are strings, by what they say, or other objects, by identity ---- */

PyObject *Dict_New(PyTypeObject *type);
int Dict_Set(PyObject *op, PyObject *key, PyObject *value);
/* NULL without an error: no such key. */
PyObject *Dict_Get(PyObject *op, PyObject *key);
/* 1: removed; 0: no such key. */
int Dict_Remove(PyObject *op, PyObject *key);
Py_ssize_t Dict_Size(PyObject *op);

/* ---- tuple.c: immutable, items inside the object, a static type ---- */

extern PyTypeObject Tuple_Type;
PyObject *Tuple_New(PyObject *const *items, Py_ssize_t n);
/* For List_AsTuple: room for n items, not tracked, and what follows. */
PyObject *Tuple_Begin(Py_ssize_t n);
PyObject **Tuple_Items(PyObject *op);
PyObject *Tuple_End(PyObject *op, Py_ssize_t n);
/* Borrowed: a tuple does not change. */
PyObject *Tuple_Get(PyObject *op, Py_ssize_t i);

/* ---- instance.c: instances with a managed dictionary, and a derived class with a member ---- */

PyObject *Object_New(PyTypeObject *type);
PyObject *Node_New(PyTypeObject *type);
int Node_SetNext(PyObject *op, PyObject *next);
PyObject *Node_GetNext(PyObject *op);
/* A new class, derived from `base`. */
PyObject *Class_New(PyTypeObject *base, const char *name);
/* Where finalizers of some nodes put them, to bring them back to life; NULL: nowhere. */
void nodes_return_to(PyObject *list);

/* ---- local.c: one value for each thread ---- */

PyObject *Local_New(PyTypeObject *type, PyObject *args, PyObject *kw);
/* The dictionary of the thread with this name, made on first use. */
PyObject *Local_ForThread(PyObject *op, PyObject *thread_name);

/* ---- pair.c: two members, a static type ---- */

extern PyTypeObject Pair_Type;
PyObject *Pair_New(PyObject *foo, PyObject *bar);
/* `member`: 0 is foo, 1 is bar. */
int Pair_Set(PyObject *op, int member, PyObject *value);
PyObject *Pair_Get(PyObject *op, int member);

#endif /* OBJECTS_H */
