/* Shared by the cases and the program that runs them. */
#ifndef REFUSED_PROGRAM_H
#define REFUSED_PROGRAM_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standstill.h"

/* One call of one function. `act` returns the result of the function as a number: 1 for a pointer,
 * 0 for NULL. `failure` is the number that means failure. */
struct refused_case {
    const char *function; /* the exported name without its prefix */
    const char *name;
    void (*prepare)(void);
    long (*act)(void);
    long failure;
    int bare;   /* 1: nothing was attached or made before */
    int itself; /* 1: `act` calls `refuse` and `grant` itself */
};

#define NO_FAILURE (-77777L)

void refused_add(const struct refused_case *one);

/* From `refuse` to `grant` the allocator refuses memory, as the program has set it. */
void refuse(void);
void grant(void);

#define REGISTER(id, fn, label, prepared, called, failed, is_bare, is_itself)                    \
    static void prepare_##id(void) { prepared; }                                                 \
    static long act_##id(void) { called; }                                                       \
    __attribute__((constructor)) static void add_##id(void)                                      \
    {                                                                                            \
        static const struct refused_case one = {                                                 \
            fn, label, prepare_##id, act_##id, failed, is_bare, is_itself };                     \
        refused_add(&one);                                                                       \
    }

/* A pointer is expected. */
#define POINTER(function, prepared, expression) \
    REGISTER(function, #function, #function, prepared, return (expression) != NULL, 0, 0, 0)
/* A number is expected; -1 is the failure. */
#define NUMBER(function, prepared, expression) \
    REGISTER(function, #function, #function, prepared, return (long)(expression), -1, 0, 0)
/* A number that cannot be a failure. */
#define ANSWER(function, prepared, expression) \
    REGISTER(function, #function, #function, prepared, return (long)(expression), NO_FAILURE, 0, 0)
/* No result. */
#define NOTHING(function, prepared, statement) \
    REGISTER(function, #function, #function, prepared, statement; return 0, NO_FAILURE, 0, 0)
/* In a traverse handler. */
#define IN_TRAVERSAL(function, expression)                                     \
    static void probe_##function(void) { probed = (long)(expression); }        \
    REGISTER(function, #function, #function, , return in_traversal(probe_##function), NO_FAILURE, \
             0, 1)
/* A further case of a function. */
#define ALSO(id, function, prepared, called, failed) \
    REGISTER(id, #function, #id, prepared, return (long)(called), failed, 0, 0)
/* On a thread that has done nothing before. */
#define FIRST(id, function, prepared, called, failed) \
    REGISTER(id, #function, #id, prepared, return (long)(called), failed, 1, 0)

#endif
