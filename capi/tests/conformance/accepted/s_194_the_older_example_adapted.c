#include <standstill.h>
typedef struct {
    PyObject_HEAD
    PyObject *foo;
    PyObject *bar;
} my_object;
static int my_traverse(PyObject *op, visitproc visit, void *arg) {
    my_object *self = (my_object *)op;
    Py_VISIT(self->foo);
    Py_VISIT(self->bar);
    return 0;
}
extern PyTypeObject my_type;
PyTypeObject my_type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "example.my",
    .tp_basicsize = sizeof(my_object),
    .tp_flags = Py_TPFLAGS_HAVE_GC,
    .tp_traverse = my_traverse,
};
