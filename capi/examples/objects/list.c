/* Lists: an array that grows, outside of the object. */
#include "objects.h"

#include <stdlib.h>

typedef struct {
    PyObject_HEAD
    uint64_t serial;
    pthread_mutex_t mutex; /* of the three members below */
    Py_ssize_t length;
    Py_ssize_t capacity;
    PyObject **items;      /* `length` strong references */
} List;

static int list_traverse(PyObject *op, visitproc visit, void *arg)
{
    List *self = (List *)op;
    Py_VISIT(Py_TYPE(op));
    for (Py_ssize_t i = 0; i < self->length; i++) {
        Py_VISIT(self->items[i]);
    }
    return 0;
}

static int list_clear(PyObject *op)
{
    List *self = (List *)op;
    lock(&self->mutex);
    PyObject **items = self->items;
    Py_ssize_t length = self->length;
    self->items = NULL;
    self->length = 0;
    self->capacity = 0;
    unlock(&self->mutex);
    while (length > 0) {
        Py_DECREF(items[--length]);
    }
    free(items);
    return 0;
}

static void list_dealloc(PyObject *op)
{
    List *self = (List *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject_ClearWeakRefs(op);
    list_clear(op);
    pthread_mutex_destroy(&self->mutex);
    census_died(LIST, self->serial);
    type->tp_free(op);
    Py_DECREF(type);
}

PyTypeObject *list_type(PyObject *module)
{
    PyType_Slot slots[] = {
        { Py_tp_traverse, SLOT(list_traverse) },
        { Py_tp_clear, SLOT(list_clear) },
        { Py_tp_dealloc, SLOT(list_dealloc) },
        { 0, NULL },
    };
    PyType_Spec spec = {
        .name = "objects.List",
        .basicsize = sizeof(List),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
        .slots = slots,
    };
    return (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
}

PyObject *List_New(PyTypeObject *type)
{
    /* Tracked from the start, which is harmless: there are no items, and this thread reaches no safepoint before the
     * mutex is there. */
    List *self = (List *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    pthread_mutex_init(&self->mutex, NULL);
    self->serial = census_born(LIST);
    return (PyObject *)self;
}

int List_Append(PyObject *op, PyObject *item)
{
    List *self = (List *)op;
    int result = 0;
    lock(&self->mutex);
    if (self->length == self->capacity) {
        Py_ssize_t capacity = self->capacity < 4 ? 4 : self->capacity * 2;
        PyObject **items = realloc(self->items, (size_t)capacity * sizeof *items);
        if (items == NULL) {
            result = -1;
        } else {
            self->items = items;
            self->capacity = capacity;
        }
    }
    if (result == 0) {
        self->items[self->length++] = Py_NewRef(item);
    }
    unlock(&self->mutex);
    if (result < 0) {
        PyErr_NoMemory();
    }
    return result;
}

PyObject *List_Get(PyObject *op, Py_ssize_t i)
{
    List *self = (List *)op;
    PyObject *item = NULL;
    lock(&self->mutex);
    /* The new reference is made before the unlock: afterwards the list may have dropped its own. */
    if (i >= 0 && i < self->length) {
        item = Py_NewRef(self->items[i]);
    }
    unlock(&self->mutex);
    return item;
}

int List_Set(PyObject *op, Py_ssize_t i, PyObject *item)
{
    List *self = (List *)op;
    PyObject *old = NULL;
    lock(&self->mutex);
    if (i >= 0 && i < self->length) {
        old = self->items[i];
        self->items[i] = Py_NewRef(item);
    }
    unlock(&self->mutex);
    if (old == NULL) {
        return -1;
    }
    Py_DECREF(old);
    return 0;
}

PyObject *List_Pop(PyObject *op)
{
    List *self = (List *)op;
    PyObject *item = NULL;
    lock(&self->mutex);
    if (self->length > 0) {
        item = self->items[--self->length];
    }
    unlock(&self->mutex);
    return item;
}

Py_ssize_t List_Size(PyObject *op)
{
    List *self = (List *)op;
    lock(&self->mutex);
    Py_ssize_t length = self->length;
    unlock(&self->mutex);
    return length;
}

PyObject *List_AsTuple(PyObject *op)
{
    List *self = (List *)op;
    Py_ssize_t room = List_Size(op);
    /* Allocated without the mutex; the list may be longer or shorter by now. */
    PyObject *tuple = Tuple_Begin(room);
    if (tuple == NULL) {
        return NULL;
    }
    PyObject **to = Tuple_Items(tuple);
    lock(&self->mutex);
    Py_ssize_t n = self->length < room ? self->length : room;
    for (Py_ssize_t i = 0; i < n; i++) {
        to[i] = Py_NewRef(self->items[i]);
    }
    unlock(&self->mutex);
    return Tuple_End(tuple, n);
}
