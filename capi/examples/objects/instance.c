/* Instances: objects whose attributes the library keeps (a managed dictionary), and Node, a derived class that adds
 * a member and a finalizer. Node does not know how large its base is: it asks for its part of the object. */
#include "objects.h"

/* ---- Object ---- */

typedef struct {
    PyObject_HEAD
    uint64_t serial;
    enum kind kind;
    pthread_mutex_t mutex; /* of what derived classes add; attributes have a lock of their own */
} Object;

static int object_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return PyObject_VisitManagedDict(op, visit, arg);
}

static int object_clear(PyObject *op)
{
    PyObject_ClearManagedDict(op);
    return 0;
}

/* Of derived classes, too: what they add is released by their clear handler. */
static void object_dealloc(PyObject *op)
{
    Object *self = (Object *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (PyObject_CallFinalizerFromDealloc(op) < 0) {
        return; /* alive again */
    }
    PyObject_GC_UnTrack(op);
    PyObject_ClearWeakRefs(op);
    type->tp_clear(op);
    pthread_mutex_destroy(&self->mutex);
    census_died(self->kind, self->serial);
    type->tp_free(op);
    Py_DECREF(type);
}

PyTypeObject *object_type(PyObject *module)
{
    PyType_Slot slots[] = {
        { Py_tp_traverse, SLOT(object_traverse) },
        { Py_tp_clear, SLOT(object_clear) },
        { Py_tp_dealloc, SLOT(object_dealloc) },
        { 0, NULL },
    };
    PyType_Spec spec = {
        .name = "objects.Object",
        .basicsize = sizeof(Object),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_MANAGED_DICT,
        .slots = slots,
    };
    return (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
}

static PyObject *new_instance(PyTypeObject *type, enum kind kind)
{
    Object *self = (Object *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    pthread_mutex_init(&self->mutex, NULL);
    self->kind = kind;
    self->serial = census_born(kind);
    return (PyObject *)self;
}

PyObject *Object_New(PyTypeObject *type)
{
    return new_instance(type, OBJECT);
}

PyObject *Class_New(PyTypeObject *base, const char *name)
{
    PyType_Slot slots[] = { { 0, NULL } };
    /* No flag and no handlers: inherited, all of them. */
    PyType_Spec spec = { .name = name, .flags = Py_TPFLAGS_DEFAULT, .slots = slots };
    return PyType_FromSpecWithBases(&spec, (PyObject *)base);
}

/* ---- Node ---- */

typedef struct {
    PyObject *next;
} NodeData;

static int node_traverse(PyObject *op, visitproc visit, void *arg);
static int node_clear(PyObject *op);
static void node_finalize(PyObject *op);

static PyType_Slot node_slots[] = {
    { Py_tp_traverse, SLOT(node_traverse) },
    { Py_tp_clear, SLOT(node_clear) },
    { Py_tp_finalize, SLOT(node_finalize) },
    { Py_tp_token, Py_TP_USE_SPEC },
    { 0, NULL },
};

/* Its address is the token by which the class is found among the bases of an object's type. */
static PyType_Spec node_spec = {
    .name = "objects.Node",
    .basicsize = -(int)sizeof(NodeData),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_MANAGED_DICT,
    .slots = node_slots,
};

static NodeData *node_data(PyObject *op)
{
    PyTypeObject *cls;
    if (PyType_GetBaseByToken(Py_TYPE(op), &node_spec, &cls) != 1) {
        return NULL;
    }
    NodeData *data = PyObject_GetTypeData(op, cls);
    Py_DECREF(cls);
    return data;
}

static int node_traverse(PyObject *op, visitproc visit, void *arg)
{
    PyTypeObject *cls;
    if (PyType_GetBaseByToken_DuringGC(Py_TYPE(op), &node_spec, &cls) == 1) {
        NodeData *data = PyObject_GetTypeData_DuringGC(op, cls);
        if (data != NULL) {
            Py_VISIT(data->next);
        }
    }
    /* The base's handler visits the type and the attributes, so this one does not. */
    return object_traverse(op, visit, arg);
}

static int node_clear(PyObject *op)
{
    Object *self = (Object *)op;
    NodeData *data = node_data(op);
    if (data != NULL) {
        lock(&self->mutex);
        PyObject *next = data->next;
        data->next = NULL;
        unlock(&self->mutex);
        Py_XDECREF(next);
    }
    return object_clear(op);
}

static _Atomic(PyObject *) haven;

void nodes_return_to(PyObject *list)
{
    atomic_store(&haven, list);
}

/* Counts, and now and then makes the node reachable again: it dies later then, without another call. */
static void node_finalize(PyObject *op)
{
    Object *self = (Object *)op;
    PyObject *list = atomic_load(&haven);
    census_finalized(self->serial);
    if (list != NULL && self->serial % 16 == 0) {
        CHECK(List_Append(list, op) == 0);
    }
}

PyTypeObject *node_type(PyObject *module, PyTypeObject *object)
{
    return (PyTypeObject *)PyType_FromModuleAndSpec(module, &node_spec, (PyObject *)object);
}

PyObject *Node_New(PyTypeObject *type)
{
    return new_instance(type, NODE);
}

int Node_SetNext(PyObject *op, PyObject *next)
{
    Object *self = (Object *)op;
    NodeData *data = node_data(op);
    if (data == NULL) {
        return -1;
    }
    lock(&self->mutex);
    PyObject *old = data->next;
    data->next = Py_XNewRef(next);
    unlock(&self->mutex);
    Py_XDECREF(old);
    return 0;
}

PyObject *Node_GetNext(PyObject *op)
{
    Object *self = (Object *)op;
    NodeData *data = node_data(op);
    if (data == NULL) {
        return NULL;
    }
    lock(&self->mutex);
    PyObject *next = Py_XNewRef(data->next);
    unlock(&self->mutex);
    return next;
}
