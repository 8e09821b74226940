/* Refused because of: incompatible */
#include <standstill.h>
typedef struct {
    PyObject_HEAD
    PyObject *foo;
} my_object;
#ifdef ACCEPTED
#define SELF PyObject
#else
#define SELF my_object
#endif
static int my_traverse(SELF *self, visitproc visit, void *arg) {
    Py_VISIT(((my_object *)self)->foo);
    return 0;
}
extern PyTypeObject my_type;
PyTypeObject my_type = {
    .ob_base = PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "example.my",
    .tp_traverse = my_traverse,
};
