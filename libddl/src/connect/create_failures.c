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

static ddl__create_failure *add_entry(ddl__create_failures *failures, ddl__digest comm, int from,
                                      uint32_t attempt)
{
    unsigned i = 0; /* replace the oldest entry that does not count, else the oldest */
    while (i < DDL__CREATE_FAILURES_MAX &&
           failures->list[(failures->next + i) % DDL__CREATE_FAILURES_MAX].status != DDL_OK)
        i++;
    ddl__create_failure *entry =
        &failures->list[(failures->next + i % DDL__CREATE_FAILURES_MAX) % DDL__CREATE_FAILURES_MAX];
    failures->next = (failures->next + 1) % DDL__CREATE_FAILURES_MAX;
    *entry =
        (ddl__create_failure){.comm = comm, .from = from, .attempt = attempt, .status = DDL_OK};
    return entry;
}

void ddl__create_failures_add(ddl__create_failures *failures, const ddl__hello *hello)
{
    int from = (int)hello->from;
    if (is_known(failures, hello->comm, from, hello->attempt))
        return;
    ddl__create_failure *entry = add_entry(failures, hello->comm, from, hello->attempt);
    entry->status = hello->status < 0 ? (ddl_status)hello->status : DDL_EPEER;
    _Static_assert(sizeof entry->text == sizeof hello->text, "all of it");
    memcpy(entry->text, hello->text, sizeof entry->text);
    ddl__sanitize_text(entry->text, sizeof entry->text);
}

void ddl__create_failures_ignore(ddl__create_failures *failures, ddl__digest comm, int from,
                                 uint32_t attempt)
{
    if (!is_known(failures, comm, from, attempt))
        add_entry(failures, comm, from, attempt);
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
