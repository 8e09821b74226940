#include <standstill.h>
int traverse(PyObject *self, visitproc callback, void *data);
int traverse(PyObject *self, visitproc callback, void *data) {
    (void)callback;
    (void)data;
    Py_VISIT(self);
    return 0;
}
