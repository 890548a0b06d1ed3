/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions for memory that members on this host read in place. */
#include "api/check_object.h"

ddl_status ddl_alloc(ddl_endpoint *endpoint, size_t bytes, void **memory)
{
    if (!memory)
        return ddl__fail(DDL_EINVAL, "memory is NULL");
    ddl_status status = ddl__check_endpoint(endpoint);
    if (status != DDL_OK)
        return status;
    void *made = ddl__memory_alloc(ddl__endpoint_regions(endpoint), bytes);
    if (!made)
        return DDL_ENOMEM;
    *memory = made;
    return DDL_OK;
}

void ddl_free(void *memory)
{
    ddl__memory_free(memory);
}
