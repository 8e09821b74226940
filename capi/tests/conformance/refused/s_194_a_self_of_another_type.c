#include <standstill.h>
typedef struct {
    PyObject_HEAD
    PyObject *foo;
} my_object;
static int my_traverse(my_object *self, visitproc visit, void *arg) {
    Py_VISIT(self->foo);
    return 0;
}
extern PyTypeObject my_type;
PyTypeObject my_type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "example.my",
    .tp_traverse = my_traverse,
};
