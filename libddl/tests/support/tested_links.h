/* SPDX-License-Identifier: Apache-2.0 */
/* tested_links.h - runs a test's TCP links over UCX instead. */
#ifndef DDL_TESTS_TESTED_LINKS_H
#define DDL_TESTS_TESTED_LINKS_H

#include <stdint.h>
#include <stdlib.h>

#include "ddl/ddl.h"

/* With $DDL_TEST_UCX, UCX takes the place of TCP. */
static inline uint32_t tested_links(uint32_t links)
{
    if (!getenv("DDL_TEST_UCX") || (links && !(links & DDL_LINK_TCP)))
        return links;
    if (!links)
        return DDL_LINK_INPROC | DDL_LINK_SHM | DDL_LINK_UCX;
    return (links & ~(uint32_t)DDL_LINK_TCP) | DDL_LINK_UCX;
}

#endif
