/* Tuples: a static type of objects with items. Immutable, so they need no mutex and no clear handler: a cycle
 * through a tuple goes through something that can change, too, and that has one. */
#include "objects.h"

#include <stddef.h>

typedef struct {
    PyObject_VAR_HEAD
    uint64_t serial;
    PyObject *items[1]; /* Py_SIZE of them */
} Tuple;

static int tuple_traverse(PyObject *op, visitproc visit, void *arg)
{
    /* No visit of the type: it is static. */
    Tuple *self = (Tuple *)op;
    for (Py_ssize_t i = 0, n = Py_SIZE(op); i < n; i++) {
        Py_VISIT(self->items[i]);
    }
    return 0;
}

static void tuple_dealloc(PyObject *op)
{
    Tuple *self = (Tuple *)op;
    PyObject_GC_UnTrack(op);
    PyObject_ClearWeakRefs(op);
    for (Py_ssize_t i = Py_SIZE(op); i > 0;) {
        Py_XDECREF(self->items[--i]);
    }
    census_died(TUPLE, self->serial);
    Py_TYPE(op)->tp_free(op);
}

/* The generic one tracks at once. This one leaves it to Tuple_End: what never changes should not be seen before it
 * is complete (by PyUnstable_GC_VisitObjects, for one), and only what is not tracked can be resized. */
static PyObject *tuple_alloc(PyTypeObject *type, Py_ssize_t n)
{
    return (PyObject *)PyObject_GC_NewVar(Tuple, type, n);
}

PyTypeObject Tuple_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "objects.Tuple",
    .tp_basicsize = offsetof(Tuple, items),
    .tp_itemsize = sizeof(PyObject *),
    .tp_dealloc = tuple_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | STANDSTILL_TPFLAGS_ITEMS_ARE_REFERENCES,
    .tp_traverse = tuple_traverse,
    .tp_alloc = tuple_alloc,
};

PyObject *Tuple_Begin(Py_ssize_t n)
{
    Tuple *self = (Tuple *)Tuple_Type.tp_alloc(&Tuple_Type, n);
    if (self == NULL) {
        return NULL;
    }
    self->serial = census_born(TUPLE);
    return (PyObject *)self;
}

PyObject **Tuple_Items(PyObject *op)
{
    return ((Tuple *)op)->items;
}

/* The items from `n` on are NULL. */
PyObject *Tuple_End(PyObject *op, Py_ssize_t n)
{
    if (n < Py_SIZE(op)) {
        Tuple *shorter = PyObject_GC_Resize(Tuple, op, n);
        if (shorter == NULL) {
            /* The old one is as it was, and ours. */
            Py_DECREF(op);
            return NULL;
        }
        op = (PyObject *)shorter;
    }
    PyObject_GC_Track(op);
    return op;
}

PyObject *Tuple_New(PyObject *const *items, Py_ssize_t n)
{
    PyObject *op = Tuple_Begin(n);
    if (op == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        Tuple_Items(op)[i] = Py_NewRef(items[i]);
    }
    return Tuple_End(op, n);
}

PyObject *Tuple_Get(PyObject *op, Py_ssize_t i)
{
    return ((Tuple *)op)->items[i];
}
