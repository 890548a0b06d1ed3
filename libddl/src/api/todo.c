/* Declared and not yet there. */
#include "base/status.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

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
