/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.h - finds how this process was started, from the variables of its launcher:
 *
 *   ddlrun     DDL_RANK, DDL_SIZE, DDL_RENDEZVOUS
 *   mpirun     OMPI_COMM_WORLD_RANK (Open MPI), PMI_RANK (MPICH, Intel MPI, ...), PMIX_RANK
 *   torchrun   RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
 *   srun       SLURM_PROCID, SLURM_STEP_ID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST
 *
 * in this order, but a launcher that another one started takes precedence.
 * ddl_core/joining/environment.py follows the same rules, so that programs in C and in Python may
 * be ranks of one job. */
#ifndef DDL_COMM_LAUNCHER_H
#define DDL_COMM_LAUNCHER_H

#include "base/status.h"

enum { DDL__URL_MAX = 512, DDL__JOB_MAX = 256 };

typedef struct ddl__world {
    const char *launcher; /* name of the launcher, "alone" if there is none */
    int rank, size;
    char url[DDL__URL_MAX]; /* URL of the ranks' rendezvous, or "" for a single rank */
    /* the launcher's name of this job, used as its secret, or "" if it has none */
    char job[DDL__JOB_MAX];
} ddl__world;

/* Find how this process was started. Return DDL_EINVAL for an incomplete set of a launcher's
 * variables, and for invalid variables; DDL_EUNSUPPORTED under an mpirun of several ranks without
 * $DDL_RENDEZVOUS, because no variable has a rendezvous address. */
ddl_status ddl__launcher_find(ddl__world *world);

#endif
