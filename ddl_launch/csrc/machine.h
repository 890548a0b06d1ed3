/* machine.h - a described machine in the planner's terms, for simulation.c. */
#ifndef DDL_LAUNCH_MACHINE_H
#define DDL_LAUNCH_MACHINE_H

#include "plan/plan.h"
#include "simulation.h"

enum { DDL_WINDOW = 2 << 20 /* as libddl's comms have it */ };

/* Freed with free; NULL when out of memory. */
ddl__topology *ddl_topology_of(const ddl_machine *machine);

/* The request of rank 0, in place. */
ddl__request ddl_request_of(const ddl_machine *machine, const ddl_question *question,
                            const ddl__topology *topology);

#endif
