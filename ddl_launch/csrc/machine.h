/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h - a described machine as the library's planner sees it. */
#ifndef DDL_LAUNCH_MACHINE_H
#define DDL_LAUNCH_MACHINE_H

#include "plan/plan.h"
#include "simulation.h"

enum { MACHINE_WINDOW = 2 << 20 /* bytes, of libddl's comms */ };

/* Freed with free; NULL when out of memory. */
ddl__topology *machine_topology(const ddl_machine *machine);

/* The plan of rank r by the algorithm of the question, or else by `chosen`, which is the one that
 * rank 0 has; "": choose one. NULL if that algorithm cannot do it, or when out of memory. */
ddl__plan *machine_plan(const ddl_question *question, const ddl__topology *topology,
                        const char *chosen, int r);

/* The seconds of the algorithm `name` by the library's costs. */
double machine_estimate(const ddl_question *question, const ddl__topology *topology,
                        const char *name);

#endif
