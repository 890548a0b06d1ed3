/* SPDX-License-Identifier: Apache-2.0 */
/* simulation.h - the time that the plans of all ranks of a described machine take.
 *
 * For `ddl plan` and `ddl simulate`. Not in libddl.so: the extension module ddl_launch._plans is
 * built from the same pure layers. */
#ifndef DDL_LAUNCH_SIMULATION_H
#define DDL_LAUNCH_SIMULATION_H

#include <stdint.h>

/* ---- ddl: declarations for the cffi module */

/* Four levels: the shared memory of a host, and the wires that join hosts, racks and aisles. A
 * message between racks goes over the wires of both hosts and of both racks. */
typedef struct ddl_machine {
    int size;
    const int *groups;   /* [3 * size]: host, rack and aisle of each rank, by their first ranks */
    double bandwidth[4]; /* bytes per second: of what a rank reads of another's memory; of a wire,
                            each way */
    double latency[4];   /* seconds */
    double memory;       /* bytes per second of a rank's passes over memory of its own */
    /* What wires cost the cores, of sender and receiver together: seconds for a message, and for
       each of its bytes. */
    double message, byte;
    int cores;         /* of each machine; 0: one for each rank */
    int machine_hosts; /* hosts that are really one machine and share its cores */
} ddl_machine;

typedef struct ddl_question {
    int kind; /* ddl__kind */
    int64_t count;
    int element;       /* bytes of one */
    int wire;          /* ddl_wire: the format of what hosts send each other; 0: elements */
    const int *owners; /* of an ordered sum: the rank of each of `workers` logical workers */
    int workers;
    const char *algorithm; /* NULL: as libddl chooses */
    int64_t spans_max;     /* give up beyond */
    int busy_max;          /* room in answer->busy */
    int sent_max;          /* room in answer->sent */
} ddl_question;

typedef struct ddl_busy { /* a time in which a wire carried data without a pause */
    int level, group, inward;
    double start, end;
} ddl_busy;

typedef struct ddl_sent { /* a part of the buffer, from one rank to another */
    int from, to;
    int64_t bytes;
    double start, end;
} ddl_sent;

typedef struct ddl_answer {
    char name[32];    /* of the plan; also when it sends too many spans */
    int64_t piece;    /* bytes of the longest that is sent at once */
    double estimated; /* seconds, by the costs by which libddl chooses */
    double seconds;
    int64_t spans;
    int64_t bytes[4];   /* sent at each level */
    int64_t busiest[4]; /* the most that one rank sent, one wire carried one way */
    int n_busy;
    ddl_busy *busy; /* the caller's */
    int n_sent;
    ddl_sent *sent; /* the caller's */
} ddl_answer;

/* NULL, or why there is no answer, static. */
const char *ddl_simulate(const ddl_machine *machine, const ddl_question *question,
                         ddl_answer *answer);

/* ---- ddl: end */

#endif
