#include <standstill.h>
int traverse(PyObject *self, visitproc visit, void *arg);
int traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(self);
    return 0;
}
