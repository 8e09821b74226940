/* Locals: an object with another dictionary for each thread that asks, and the handler that CPython's page shows for
 * such a class: type, args, kw, dict. */
#include "objects.h"

typedef struct {
    PyObject_HEAD
    uint64_t serial;
    /* Set before others see the object, and emptied by the clear handler, when no thread can reach it any more: no
     * mutex. */
    PyObject *args;
    PyObject *kw;
    PyObject *dict; /* the name of a thread -> its dictionary */
} Local;

static int local_traverse(PyObject *op, visitproc visit, void *arg)
{
    Local *self = (Local *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->args);
    Py_VISIT(self->kw);
    Py_VISIT(self->dict);
    return 0;
}

static int local_clear(PyObject *op)
{
    Local *self = (Local *)op;
    Py_CLEAR(self->args);
    Py_CLEAR(self->kw);
    Py_CLEAR(self->dict);
    return 0;
}

static void local_dealloc(PyObject *op)
{
    Local *self = (Local *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject_ClearWeakRefs(op);
    local_clear(op);
    census_died(LOCAL, self->serial);
    type->tp_free(op);
    Py_DECREF(type);
}

PyTypeObject *local_type(PyObject *module)
{
    PyType_Slot slots[] = {
        { Py_tp_traverse, SLOT(local_traverse) },
        { Py_tp_clear, SLOT(local_clear) },
        { Py_tp_dealloc, SLOT(local_dealloc) },
        { 0, NULL },
    };
    PyType_Spec spec = {
        .name = "objects.Local",
        .basicsize = sizeof(Local),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
        .slots = slots,
    };
    return (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
}

PyObject *Local_New(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    Local *self = (Local *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->serial = census_born(LOCAL);
    self->args = Py_XNewRef(args);
    self->kw = Py_XNewRef(kw);
    const Types *types = types_of((PyObject *)self);
    if (types == NULL || (self->dict = Dict_New(types->dict)) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

PyObject *Local_ForThread(PyObject *op, PyObject *thread_name)
{
    Local *self = (Local *)op;
    PyObject *mine = Dict_Get(self->dict, thread_name);
    if (mine != NULL) {
        return mine;
    }
    /* No other thread uses this name, so none puts a value there meanwhile. */
    mine = Dict_New(Py_TYPE(self->dict));
    if (mine != NULL && Dict_Set(self->dict, thread_name, mine) < 0) {
        Py_CLEAR(mine);
    }
    return mine;
}
