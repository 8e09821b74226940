#include <standstill.h>
typedef struct {
    PyObject_HEAD
    PyObject *member;
} Mine;
void both(Mine *mine, PyObject *object);
void both(Mine *mine, PyObject *object) {
    PyObject_GC_Track(mine);
    PyObject_GC_Track(object);
    PyObject_GC_UnTrack(mine);
    PyObject_GC_UnTrack(object);
    PyObject_GC_Del(mine);
}
