/* The smallest collected C type: an object with one reference. Two of them refer to each other, are
 * dropped, and are collected. */
#include <standstill.h>
#include <stdio.h>

typedef struct {
    PyObject_HEAD
    PyObject *other;
} Link;

/* Reports the object's reference. */
static int link_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(((Link *)op)->other);
    return 0;
}

/* Drops it. */
static int link_clear(PyObject *op)
{
    Py_CLEAR(((Link *)op)->other);
    return 0;
}

/* Runs when the last reference is dropped. */
static void link_dealloc(PyObject *op)
{
    PyObject_GC_UnTrack(op);
    link_clear(op);
    Py_TYPE(op)->tp_free(op);
    puts("a link died");
}

static PyTypeObject Link_Type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "minimal.Link",
    .tp_basicsize = sizeof(Link),
    .tp_dealloc = link_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_traverse = link_traverse,
    .tp_clear = link_clear,
};

int main(void)
{
    if (standstill_attach(NULL) < 0 || PyType_Ready(&Link_Type) < 0) {
        fprintf(stderr, "%s\n", standstill_error_message());
        return 1;
    }
    Link *a = (Link *)Link_Type.tp_alloc(&Link_Type, 0);
    Link *b = (Link *)Link_Type.tp_alloc(&Link_Type, 0);
    if (a == NULL || b == NULL) {
        fprintf(stderr, "%s\n", standstill_error_message());
        return 1;
    }
    a->other = Py_NewRef(b);
    b->other = Py_NewRef(a);
    Py_DECREF(a);
    Py_DECREF(b); /* only they refer to each other now */

    Py_ssize_t collected = PyGC_Collect();
    printf("collected %ld objects\n", (long)collected);
    standstill_detach();
    return collected == 2 ? 0 : 1;
}
