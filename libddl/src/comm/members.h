/* SPDX-License-Identifier: Apache-2.0 */
/* members.h - the addresses of a comm's members, as passed by the caller. */
#ifndef DDL_COMM_MEMBERS_H
#define DDL_COMM_MEMBERS_H

#include "connect/endpoint/endpoint.h"

/* Allocate the addresses of `size` members, in one block, which the caller frees. They must be
 * filled by rank, from 0 on. Return NULL if out of memory (message set). */
ddl__address *ddl__members_create(int size);

/* Decode the members' addresses. Return DDL_EINVAL if one is damaged, if two are equal, or if the
 * address of `rank` is not the endpoint's. */
ddl_status ddl__members_decode(const ddl_endpoint *endpoint, const void *const *addresses,
                               const size_t *lengths, int rank, int size, ddl__address *to);

/* Copy the address of one member. */
void ddl__members_copy(ddl__address *to, int rank, int size, const ddl__address *from);

/* Return "rank 3 on host" for each rank, for messages, in one block, which the caller frees. Return
 * NULL if out of memory. */
char **ddl__members_name(const ddl__address *addresses, int size);

#endif
