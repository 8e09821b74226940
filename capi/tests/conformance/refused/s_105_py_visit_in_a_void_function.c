/* Refused because of: return */
#include <standstill.h>
#ifdef ACCEPTED
#define RESULT int
#else
#define RESULT void
#endif
RESULT traverse(PyObject *self, visitproc visit, void *arg);
RESULT traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(self);
#ifdef ACCEPTED
    return 0;
#endif
}
