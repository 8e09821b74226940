/* The allocator of the process. A test can make it refuse memory. A program with allocator.c is
 * linked with `--wrap` for malloc and its relatives, so all their calls, also those of the library,
 * go through it. */
#ifndef REFUSING_ALLOCATOR_H
#define REFUSING_ALLOCATOR_H

/* Refuses the allocation after `after` others, on any thread. `lasting`: also all later ones. */
void refuse_memory(long after, int lasting);
/* Refuses nothing any more. 1: an allocation was refused since the last call; otherwise 0. */
int grant_memory(void);

#endif
