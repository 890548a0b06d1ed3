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

ddl_status ddl_send(ddl_comm *comm, const void *buffer, int64_t count, ddl_dtype dtype, int dest,
                    int tag, const ddl_options *options, ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_send is not there yet");
}

ddl_status ddl_recv(ddl_comm *comm, void *buffer, int64_t count, ddl_dtype dtype, int source,
                    int tag, int *sender, const ddl_options *options, ddl_work **work)
{
    return ddl__fail(DDL_EUNSUPPORTED, "ddl_recv is not there yet");
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
