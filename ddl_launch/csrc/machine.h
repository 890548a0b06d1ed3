/* machine.h - a described machine as the planner knows it. For simulation.c and check.c. */
#ifndef DDL_CORE_MACHINE_H
#define DDL_CORE_MACHINE_H

#include "plan/plan.h"
#include "simulation.h"

enum { DDL_WINDOW = 2 << 20 /* as libddl's comms have it */ };

/* Freed with free; NULL when out of memory. */
ddl__topology *ddl_topology_of(const ddl_machine *machine);

/* What rank 0 asks for, in place. */
ddl__request ddl_request_of(const ddl_machine *machine, const ddl_question *question,
                            const ddl__topology *topology);

#endif
