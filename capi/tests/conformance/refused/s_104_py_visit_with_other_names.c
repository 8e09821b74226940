/* Refused because of: visit */
#include <standstill.h>
#ifdef ACCEPTED
#define callback visit
#define data arg
#endif
int traverse(PyObject *self, visitproc callback, void *data);
int traverse(PyObject *self, visitproc callback, void *data) {
    (void)callback;
    (void)data;
    Py_VISIT(self);
    return 0;
}
