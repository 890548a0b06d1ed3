/* SPDX-License-Identifier: Apache-2.0 */
#include "api/take_struct.h"

#include <string.h>

enum { SIZE_MIN = 8, SIZE_MAX_SANE = 4096 };

ddl_status ddl__take_struct(void *ours, size_t size, const void *theirs, const char *name)
{
    memset(ours, 0, size);
    if (!theirs)
        return DDL_OK;
    uint32_t given;
    memcpy(&given, theirs, sizeof given);
    if (given < SIZE_MIN || given > SIZE_MAX_SANE)
        return ddl__fail(DDL_EINVAL, "%s.struct_size is %u; must be sizeof(%s)", name, given, name);
    for (size_t i = size; i < given; i++)
        if (((const unsigned char *)theirs)[i])
            return ddl__fail(DDL_EUNSUPPORTED,
                             "%s has a nonzero byte at offset %zu, but this libddl knows only its "
                             "first %zu bytes: update libddl",
                             name, i, size);
    memcpy(ours, theirs, given < size ? given : size);
    return DDL_OK;
}
