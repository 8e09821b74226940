#include <standstill.h>
static int visit(PyObject *object, void *arg) { return object == arg; }
extern const visitproc for_traverse;
extern const gcvisitobjects_t for_all_objects;
const visitproc for_traverse = visit;
const gcvisitobjects_t for_all_objects = visit;
