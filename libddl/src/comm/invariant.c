/* SPDX-License-Identifier: Apache-2.0 */
/* Invariant sums: the comm's setting, and its order of additions. */
#include <stdio.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "comm/comm.h"
#include "engine/calls/describe.h"
#include "engine/calls/ordered.h"

const char *ddl__invariant_text(int32_t invariant, char text[DDL__INVARIANT_TEXT])
{
    if (invariant > 0)
        snprintf(text, DDL__INVARIANT_TEXT, "ranks:%d", (int)invariant);
    return invariant > 0 ? text : invariant == DDL_INVARIANT_SIZE ? "size" : "none";
}

ddl_status ddl__comm_set_order(ddl_comm *comm)
{
    int32_t invariant = comm->config.invariant;
    if (invariant != DDL_INVARIANT_SIZE && invariant != comm->size)
        return DDL_OK;
    if (comm->size > DDL__WORKERS_MAX)
        return ddl__fail(DDL_EUNSUPPORTED,
                         "DDL_INVARIANT is size, but the comm has %d ranks; must have at most %d",
                         comm->size, DDL__WORKERS_MAX);
    if (comm->size == 1)
        return DDL_OK;
    int *owners = malloc((size_t)comm->size * sizeof *owners);
    for (int r = 0; owners && r < comm->size; r++)
        owners[r] = r;
    comm->order = owners ? ddl__order_create(owners, comm->size, comm->size) : NULL;
    free(owners);
    if (!comm->order)
        return ddl__fail(DDL_ENOMEM, "out of memory for the order of %d ranks", comm->size);
    ddl__engine_set_order(comm->engine, comm->order);
    return DDL_OK;
}

ddl_status ddl__check_invariant(const ddl_comm *comm, const ddl__call *call)
{
    int32_t workers = comm->config.invariant;
    ddl__class class = ddl__dtype_class(call->dtype);
    bool depends = class == DDL__COMPLEX ||
                   (class == DDL__FLOAT && call->op != DDL_MIN && call->op != DDL_MAX);
    if (workers == comm->size || !depends)
        return DDL_OK;
    const char *kind = ddl__kind_name(call->kind);
    if (workers < comm->size)
        return ddl__fail(DDL_EINVAL,
                         "DDL_INVARIANT is ranks:%d, but the comm has %d ranks: %s of one operand "
                         "for each rank would depend on the number of ranks. Choose at least as "
                         "many workers as ranks",
                         (int)workers, comm->size, kind);
    return ddl__fail(DDL_EINVAL,
                     "DDL_INVARIANT is ranks:%d, but the comm has %d ranks: %s of one operand for "
                     "each rank would depend on the number of ranks. Pass the parts of this rank's "
                     "workers %lld to %lld instead: %s",
                     (int)workers, comm->size, kind, (long long)comm->rank * workers / comm->size,
                     ((long long)comm->rank + 1) * workers / comm->size - 1,
                     call->kind == DDL__REDUCE_SCATTER
                         ? "ddl_reduce_scatter_ordered; in Python comm.reduce_scatter_ordered, and "
                           "reduce_scatter_parts of ddl_torch and ddl_jax"
                         : "ddl_allreduce_ordered; in Python comm.allreduce_ordered, and "
                           "allreduce_parts of ddl_torch and ddl_jax");
}
