/* locality.h - which ranks share memory, as proven pair by pair.
 *
 * PURE: no I/O, no clock, no threads, no getenv.
 */
#ifndef DDL_TOPO_LOCALITY_H
#define DDL_TOPO_LOCALITY_H

#include <stdbool.h>

typedef struct ddl__locality {
    bool all_shared; /* every pair shares memory */
    int local_rank;  /* among the ranks that share memory with `rank`, in order of rank */
    int local_size;
} ddl__locality;

/* shared[i * size + j] is not 0 if rank i has opened memory of rank j. */
ddl__locality ddl__locality_of(const unsigned char *shared, int rank, int size);

#endif
