/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/endpoint/create_failures.h"

#include <string.h>

#include "base/text.h"
#include "membership/creation.h"

static bool is_known(const ddl__create_failures *failures, const ddl__create_failure *notice)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++) {
        const ddl__create_failure *entry = &failures->list[i];
        if (ddl__digest_equal(entry->family, notice->family) && entry->from == notice->from &&
            entry->attempt == notice->attempt)
            return true;
    }
    return false;
}

void ddl__create_failures_add(ddl__create_failures *failures, const ddl__create_failure *notice)
{
    if (is_known(failures, notice))
        return;
    /* Replace the oldest notice that no longer counts. If all count, replace the oldest one. */
    unsigned i = failures->next, n = 0;
    while (n < DDL__CREATE_FAILURES_MAX && failures->list[i].status != DDL_OK) {
        i = (i + 1) % DDL__CREATE_FAILURES_MAX;
        n++;
    }
    failures->next = (failures->next + 1) % DDL__CREATE_FAILURES_MAX;
    failures->list[i] = *notice;
    ddl__sanitize_text(failures->list[i].text, sizeof failures->list[i].text);
}

void ddl__create_failures_forget(ddl__create_failures *failures, ddl__digest family,
                                 uint32_t creation, int from)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++) {
        ddl__create_failure *entry = &failures->list[i];
        if (ddl__digest_equal(entry->family, family) && entry->creation <= creation &&
            (from < 0 || entry->from == from))
            entry->status = DDL_OK;
    }
}

const ddl__create_failure *ddl__create_failures_find(const ddl__create_failures *failures,
                                                     ddl__digest family, uint32_t creation)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++) {
        const ddl__create_failure *entry = &failures->list[i];
        if (entry->status != DDL_OK && ddl__digest_equal(entry->family, family) &&
            ddl__creation_concerns(entry->creation, creation))
            return entry;
    }
    return NULL;
}
