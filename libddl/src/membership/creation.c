/* SPDX-License-Identifier: Apache-2.0 */
#include "membership/creation.h"

uint32_t ddl__creation_propose(uint32_t used, uint32_t seen)
{
    return seen > used ? seen : used + 1;
}

uint32_t ddl__creation_raise(uint32_t used, uint32_t number)
{
    return number && used < number - 1 ? number - 1 : used;
}

ddl__creation_verdict ddl__creation_judge(uint32_t own, uint32_t theirs, bool is_missing)
{
    return theirs == own  ? DDL__CREATION_JOIN
           : theirs < own ? DDL__CREATION_REFUSE
           : is_missing   ? DDL__CREATION_YIELD
                          : DDL__CREATION_KEEP;
}

bool ddl__creation_concerns(uint32_t failed, uint32_t own)
{
    return failed >= own;
}

ddl__creation_audience ddl__creation_audience_of(ddl_status status, bool is_own, bool is_linked)
{
    /* A member that is late may still come: this one may try again, too. */
    bool may_come = status == DDL_ETIMEDOUT || status == DDL__SUPERSEDED;
    return is_linked             ? DDL__CREATION_CLOSE_LINK
           : is_own && !may_come ? DDL__CREATION_SEND_NOTICE
                                 : DDL__CREATION_TELL_NOTHING;
}

bool ddl__creation_begins_again(ddl_status status, int64_t now, int64_t deadline)
{
    return status == DDL__SUPERSEDED && now < deadline;
}
