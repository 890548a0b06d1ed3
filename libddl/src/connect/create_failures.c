/* SPDX-License-Identifier: Apache-2.0 */
#include "connect/create_failures.h"

#include <string.h>

static bool is_known(const ddl__create_failures *failures, ddl__digest comm, int from,
                     uint32_t attempt)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++) {
        const ddl__create_failure *entry = &failures->list[i];
        if (ddl__digest_equal(entry->comm, comm) && entry->from == from &&
            entry->attempt == attempt)
            return true;
    }
    return false;
}

void ddl__create_failures_add(ddl__create_failures *failures, ddl__digest comm, int from,
                              uint32_t attempt, ddl_status status, const char *text)
{
    if (is_known(failures, comm, from, attempt))
        return;
    /* Replace the oldest that does not count, else the oldest. */
    unsigned i = failures->next, n = 0;
    while (n < DDL__CREATE_FAILURES_MAX && failures->list[i].status != DDL_OK) {
        i = (i + 1) % DDL__CREATE_FAILURES_MAX;
        n++;
    }
    failures->next = (failures->next + 1) % DDL__CREATE_FAILURES_MAX;
    ddl__create_failure *entry = &failures->list[i];
    *entry =
        (ddl__create_failure){.comm = comm, .from = from, .attempt = attempt, .status = status};
    memcpy(entry->text, text, strnlen(text, sizeof entry->text - 1));
    ddl__sanitize_text(entry->text, sizeof entry->text);
}

void ddl__create_failures_forget(ddl__create_failures *failures, ddl__digest comm, int from)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++) {
        ddl__create_failure *entry = &failures->list[i];
        if (ddl__digest_equal(entry->comm, comm) && (from < 0 || entry->from == from))
            entry->status = DDL_OK;
    }
}

bool ddl__create_failures_find(const ddl__create_failures *failures, ddl__digest comm,
                               ddl__create_failure *failure)
{
    for (int i = 0; i < DDL__CREATE_FAILURES_MAX; i++)
        if (failures->list[i].status != DDL_OK && ddl__digest_equal(failures->list[i].comm, comm)) {
            *failure = failures->list[i];
            return true;
        }
    return false;
}
