/* Refused because of: deprecated */
#ifndef ACCEPTED
#define STANDSTILL_UNSTABLE __attribute__((deprecated))
#endif
#include <standstill.h>

void walk(gcvisitobjects_t visit);
void walk(gcvisitobjects_t visit) { PyUnstable_GC_VisitObjects(visit, 0); }
