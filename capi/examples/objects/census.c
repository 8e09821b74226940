/* Counters that prove that every object died exactly once: a byte for each object ever made. */
#include "objects.h"

#include <stdio.h>
#include <stdlib.h>

enum { BORN = 1, FINALIZED = 2, DIED = 4 };

/* Pages of it that no thread uses take no memory. */
#define LIMIT (UINT64_C(1) << 27)
/* Serials are handed out up to here; the rest is for threads that are in the middle of a round. */
#define ENOUGH (LIMIT - (UINT64_C(1) << 22))

static const char *const names[KINDS] = { "List", "Dict", "Tuple", "Object", "Node", "Local", "Pair" };
static atomic_uchar *states;
static atomic_ullong next_serial = 1;
static atomic_ullong made[KINDS];
static atomic_ullong died[KINDS];
static atomic_ullong finalized;

atomic_ullong failures;

void fail(const char *file, int line, const char *what)
{
    /* The first few say it all. */
    if (atomic_fetch_add(&failures, 1) < 20) {
        fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
    }
}

bool census_open(void)
{
    states = calloc(LIMIT, sizeof *states);
    return states != NULL;
}

uint64_t census_born(enum kind kind)
{
    uint64_t serial = atomic_fetch_add_explicit(&next_serial, 1, memory_order_relaxed);
    if (serial >= LIMIT) {
        return 0;
    }
    atomic_store_explicit(&states[serial], BORN, memory_order_relaxed);
    atomic_fetch_add_explicit(&made[kind], 1, memory_order_relaxed);
    return serial;
}

void census_finalized(uint64_t serial)
{
    CHECK(atomic_fetch_or(&states[serial], FINALIZED) == BORN);
    atomic_fetch_add_explicit(&finalized, 1, memory_order_relaxed);
}

void census_died(enum kind kind, uint64_t serial)
{
    unsigned char before = atomic_fetch_or(&states[serial], DIED);
    /* Nodes have a finalizer, which must have run, once; the others have none. */
    CHECK(before == (kind == NODE ? (BORN | FINALIZED) : BORN));
    atomic_fetch_add_explicit(&died[kind], 1, memory_order_relaxed);
}

bool census_is_full(void)
{
    return atomic_load_explicit(&next_serial, memory_order_relaxed) > ENOUGH;
}

unsigned long long census_total(void)
{
    return atomic_load(&next_serial) - 1;
}

bool census_is_even(bool loud)
{
    bool even = true;
    for (int kind = 0; kind < KINDS; kind++) {
        unsigned long long m = atomic_load(&made[kind]), d = atomic_load(&died[kind]);
        even = even && m == d;
        if (loud) {
            printf("%-8s made %9llu  died %9llu%s\n", names[kind], m, d, m == d ? "" : "  <-- not all");
        }
    }
    uint64_t end = atomic_load(&next_serial);
    for (uint64_t serial = 1; serial < end && serial < LIMIT; serial++) {
        unsigned char state = atomic_load_explicit(&states[serial], memory_order_relaxed);
        even = even && (state == 0 || (state & DIED) != 0);
    }
    return even && atomic_load(&finalized) == atomic_load(&made[NODE]);
}
