/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/handshake/hello.h"

#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(ddl__hello) == 280, "equal on every platform");

ddl__hello ddl__hello_answer(const ddl__hello *hello, ddl_status status, const char *text)
{
    ddl__hello answer = *hello;
    answer.magic = DDL__HELLO_MAGIC;
    answer.protocol = DDL__PROTOCOL;
    answer.from = hello->to;
    answer.to = hello->from;
    answer.status = status;
    answer.arena = 0;
    memset(answer.proof, 0, sizeof answer.proof);
    memset(answer.text, 0, sizeof answer.text);
    snprintf(answer.text, sizeof answer.text, "%s", text ? text : "");
    return answer;
}

ddl_status ddl__hello_check(const ddl__hello *hello)
{
    if (hello->magic == __builtin_bswap32(DDL__HELLO_MAGIC))
        return ddl__fail(DDL_EREFUSED, DDL__OTHER_ENDIAN);
    if (hello->magic != DDL__HELLO_MAGIC)
        return ddl__fail(DDL_EREFUSED, "it does not speak libddl's protocol");
    if (hello->protocol != DDL__PROTOCOL)
        return ddl__fail(DDL_EREFUSED,
                         "it speaks protocol %u, but this libddl speaks protocol %d: install one "
                         "version on all hosts",
                         hello->protocol, DDL__PROTOCOL);
    return DDL_OK;
}
