/* The process's allocator, which refuses memory when a test wants it to. A program that has allocator.c is linked with
 * `--wrap` for malloc and its relatives, so that each call of theirs, the library's too, goes through it. */
#ifndef REFUSING_ALLOCATOR_H
#define REFUSING_ALLOCATOR_H

/* The allocation after `after` others is refused, on whatever thread; `lasting`: and all later ones. */
void refuse_memory(long after, int lasting);
/* Nothing is refused any more. 1: something was, since the last call; else 0. */
int grant_memory(void);

#endif
