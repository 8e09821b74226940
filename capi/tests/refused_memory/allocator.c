#include "allocator.h"

#include <errno.h>
#include <stddef.h>

static int armed, lasts, refused;
/* Allocations until the one to refuse; negative: it is over. */
static long left;

static int deny(void) {
    long before;
    if (!__atomic_load_n(&armed, __ATOMIC_SEQ_CST))
        return 0;
    before = __atomic_fetch_sub(&left, 1, __ATOMIC_SEQ_CST);
    if (before > 0 || (before < 0 && !lasts))
        return 0;
    __atomic_store_n(&refused, 1, __ATOMIC_SEQ_CST);
    return 1;
}

void refuse_memory(long after, int lasting) {
    left = after;
    lasts = lasting;
    __atomic_store_n(&armed, 1, __ATOMIC_SEQ_CST);
}

int grant_memory(void) {
    __atomic_store_n(&armed, 0, __ATOMIC_SEQ_CST);
    return __atomic_exchange_n(&refused, 0, __ATOMIC_SEQ_CST);
}

/* The names that the linker gives to the allocator's own functions, and to those that stand in their places. */
void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
int __real_posix_memalign(void **, size_t, size_t);
void *__real_aligned_alloc(size_t, size_t);
void *__wrap_malloc(size_t);
void *__wrap_calloc(size_t, size_t);
void *__wrap_realloc(void *, size_t);
int __wrap_posix_memalign(void **, size_t, size_t);
void *__wrap_aligned_alloc(size_t, size_t);

void *__wrap_malloc(size_t n) { return deny() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t a, size_t b) { return deny() ? NULL : __real_calloc(a, b); }
void *__wrap_realloc(void *p, size_t n) { return deny() ? NULL : __real_realloc(p, n); }
int __wrap_posix_memalign(void **p, size_t a, size_t n) { return deny() ? ENOMEM : __real_posix_memalign(p, a, n); }
void *__wrap_aligned_alloc(size_t a, size_t n) { return deny() ? NULL : __real_aligned_alloc(a, n); }
