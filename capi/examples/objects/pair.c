/* Pairs: a static type with two members, and the handler that older versions of CPython's page show: the members and
 * nothing else, since instances of static types do not own their type. */
#include "objects.h"

typedef struct {
    PyObject_HEAD
    uint64_t serial;
    pthread_mutex_t mutex; /* of the members below */
    PyObject *foo;
    PyObject *bar;
} Pair;

static int pair_traverse(PyObject *op, visitproc visit, void *arg)
{
    Pair *self = (Pair *)op;
    Py_VISIT(self->foo);
    Py_VISIT(self->bar);
    return 0;
}

static int pair_clear(PyObject *op)
{
    Pair *self = (Pair *)op;
    lock(&self->mutex);
    PyObject *foo = self->foo, *bar = self->bar;
    self->foo = NULL;
    self->bar = NULL;
    unlock(&self->mutex);
    Py_XDECREF(foo);
    Py_XDECREF(bar);
    return 0;
}

static void pair_dealloc(PyObject *op)
{
    Pair *self = (Pair *)op;
    PyObject_GC_UnTrack(op);
    PyObject_ClearWeakRefs(op);
    pair_clear(op);
    pthread_mutex_destroy(&self->mutex);
    census_died(PAIR, self->serial);
    Py_TYPE(op)->tp_free(op);
}

PyTypeObject Pair_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "objects.Pair",
    .tp_basicsize = sizeof(Pair),
    .tp_dealloc = pair_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = pair_traverse,
    .tp_clear = pair_clear,
};

PyObject *Pair_New(PyObject *foo, PyObject *bar)
{
    Pair *self = (Pair *)Pair_Type.tp_alloc(&Pair_Type, 0);
    if (self == NULL) {
        return NULL;
    }
    pthread_mutex_init(&self->mutex, NULL);
    self->serial = census_born(PAIR);
    self->foo = Py_XNewRef(foo);
    self->bar = Py_XNewRef(bar);
    return (PyObject *)self;
}

int Pair_Set(PyObject *op, int member, PyObject *value)
{
    Pair *self = (Pair *)op;
    PyObject **field = member == 0 ? &self->foo : &self->bar;
    lock(&self->mutex);
    PyObject *old = *field;
    *field = Py_XNewRef(value);
    unlock(&self->mutex);
    Py_XDECREF(old);
    return 0;
}

PyObject *Pair_Get(PyObject *op, int member)
{
    Pair *self = (Pair *)op;
    lock(&self->mutex);
    PyObject *value = Py_XNewRef(member == 0 ? self->foo : self->bar);
    unlock(&self->mutex);
    return value;
}
