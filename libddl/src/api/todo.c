/* Declared and not yet there. */
#include "base/status.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

ddl_status ddl_comm_split(ddl_comm *comm, int color, int key, const ddl_comm_config *config,
                          ddl_comm **part)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_comm_split is not there yet");
}

ddl_status ddl_comm_subset(ddl_comm *comm, const int *ranks, int size,
                           const ddl_comm_config *config, ddl_comm **part)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_comm_subset is not there yet");
}

ddl_status ddl_comm_duplicate(ddl_comm *comm, const ddl_comm_config *config, ddl_comm **twin)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_comm_duplicate is not there yet");
}

ddl_status ddl_comm_fd(ddl_comm *comm, int *fd)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_comm_fd is not there yet");
}

ddl_status ddl_reduce_scatterv(ddl_comm *comm, const void *send, void *recv, const int64_t *counts,
                               ddl_dtype dtype, ddl_op op, const ddl_options *options,
                               ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_reduce_scatterv is not there yet");
}

ddl_status ddl_allgatherv(ddl_comm *comm, const void *send, void *recv, const int64_t *counts,
                          const int64_t *displs, ddl_dtype dtype, const ddl_options *options,
                          ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_allgatherv is not there yet");
}

ddl_status ddl_reduce(ddl_comm *comm, const void *send, void *recv, int64_t count, ddl_dtype dtype,
                      ddl_op op, int root, const ddl_options *options, ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_reduce is not there yet");
}

ddl_status ddl_gather(ddl_comm *comm, const void *send, void *recv, int64_t count, ddl_dtype dtype,
                      int root, const ddl_options *options, ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_gather is not there yet");
}

ddl_status ddl_gatherv(ddl_comm *comm, const void *send, int64_t count, void *recv,
                       const int64_t *counts, const int64_t *displs, ddl_dtype dtype, int root,
                       const ddl_options *options, ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_gatherv is not there yet");
}

ddl_status ddl_scatter(ddl_comm *comm, const void *send, void *recv, int64_t count, ddl_dtype dtype,
                       int root, const ddl_options *options, ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_scatter is not there yet");
}

ddl_status ddl_scatterv(ddl_comm *comm, const void *send, const int64_t *counts,
                        const int64_t *displs, void *recv, int64_t count, ddl_dtype dtype, int root,
                        const ddl_options *options, ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_scatterv is not there yet");
}

ddl_status ddl_alltoall(ddl_comm *comm, const void *send, void *recv, int64_t count,
                        ddl_dtype dtype, const ddl_options *options, ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_alltoall is not there yet");
}

ddl_status ddl_alltoallv(ddl_comm *comm, const void *send, const int64_t *send_counts,
                         const int64_t *send_displs, void *recv, const int64_t *recv_counts,
                         const int64_t *recv_displs, ddl_dtype dtype, const ddl_options *options,
                         ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_alltoallv is not there yet");
}

ddl_status ddl_sendrecv(ddl_comm *comm, const void *send, int64_t send_count, int dest,
                        int send_tag, void *recv, int64_t recv_count, int source, int recv_tag,
                        ddl_dtype dtype, const ddl_options *options, ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_sendrecv is not there yet");
}

ddl_status ddl_group_create(ddl_comm *comm, ddl_group **group)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_group_create is not there yet");
}

ddl_status ddl_group_submit(ddl_group *group, const ddl_options *options, ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_group_submit is not there yet");
}

void ddl_group_destroy(ddl_group *group)
{
}
