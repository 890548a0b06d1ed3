/* SPDX-License-Identifier: Apache-2.0 */
/* packed_values.h - operands for the tests of wire formats, their exact sums, and the errors that
 * packing may cause. */
#ifndef DDL_TESTS_PACKED_VALUES_H
#define DDL_TESTS_PACKED_VALUES_H

#include <math.h>
#include <stdlib.h>

#include "comm/comm.h"
#include "ranks.h"

enum { RANKS = 8, LONGEST = SANITIZED ? 40000 : 200000, STRETCH = 1000, BLOCK = 128 };

/* by ddl_wire; errors are at most 1/limit of the greatest magnitude */
static const double limits[] = {[DDL_WIRE_INT8] = 127, [DDL_WIRE_INT4] = 7, [DDL_WIRE_BF16] = 256};
static float inputs[RANKS][LONGEST], results[RANKS][LONGEST];
static double exact[LONGEST];
static pthread_barrier_t turns;

/* The magnitude of the inputs, different in each stretch. */
static double magnitude(int64_t i)
{
    return ldexp(1, (int)(i / STRETCH % 37) - 18);
}

/* The greatest magnitude in a block that element i may be in. */
static double near_magnitude(int64_t i)
{
    double before = magnitude(i < BLOCK ? 0 : i - BLOCK), after = magnitude(i + BLOCK);
    return fmax(fmax(before, after), magnitude(i));
}

static void fill(int rank, int64_t count)
{
    uint64_t state = (uint64_t)rank + 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double unit = (double)(int32_t)(state >> 32) / 2147483648.0;
        inputs[rank][i] = i % 11 ? (float)(unit * magnitude(i)) : 0;
    }
}

static void check_equal(int64_t count, int size)
{
    for (int r = 1; r < size; r++)
        CHECK(!memcmp(results[r], results[0], (size_t)count * sizeof(float)),
              "ranks 0 and %d of %d differ", r, size);
}

/* Fill all inputs; rank 0 adds them. */
static void prepare(int rank, int size, int64_t count)
{
    fill(rank, count);
    pthread_barrier_wait(&turns);
    for (int64_t i = 0; rank == 0 && i < count; i++) {
        exact[i] = 0;
        for (int r = 0; r < size; r++)
            exact[i] += inputs[r][i];
    }
    pthread_barrier_wait(&turns);
}

/* The last wire format that a program tests, beginning with int8. The argument "int8" after the
 * links selects that one alone. */
static ddl_wire last_format(int argc, char **argv)
{
    CHECK(argc < 3 || !strcmp(argv[2], "int8"), "which format is %s?", argv[2]);
    return argc < 3 ? DDL_WIRE_BF16 : DDL_WIRE_INT8;
}

/* The fewest elements that are packed. */
static int64_t least(const ddl_comm *comm)
{
    int hosts = comm->topology->groups[DDL__HOSTS];
    return hosts > 2 ? 2048 * hosts : 4096;
}

#endif
