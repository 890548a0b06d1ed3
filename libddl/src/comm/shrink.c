/* Creates the comm of the survivors; health/agreement.c is how they agree on their list. */
#include "comm/shrink.h"

#include "base/clock.h"
#include "health/agreement.h"

typedef struct next_comm {
    ddl_comm *parent, *comm;
    const ddl_comm_config *config;
} next_comm;

static ddl_status create(void *context, const int *ranks, int n, uint32_t attempt,
                         const ddl__until *until)
{
    next_comm *next = context;
    ddl__digest id = ddl__health_comm(next->parent->health);
    uint64_t mark[] = {attempt, next->config->tag};
    ddl__digest_add(&id, mark, sizeof mark);
    ddl_comm_config config = *next->config;
    config.tag = id.words[0] | 1;
    return ddl__comm_subset(next->parent, ranks, n, &config, until, &next->comm);
}

static void abandon(void *context)
{
    next_comm *next = context;
    ddl__comm_abandon(next->comm);
    next->comm = NULL;
}

ddl_status ddl__comm_shrink(ddl_comm *parent, const ddl_comm_config *config, ddl_comm **comm)
{
    if (!parent->health)
        return ddl__fail(DDL_ESTATE, "the comm has one member, and that is alive");
    int64_t limit_ms =
        config->timeout_ms ? config->timeout_ms : ddl__comm_creation_ms(&parent->config);
    next_comm next = {.parent = parent, .config = config};
    ddl__agreement_handlers handlers = {&next, create, abandon};
    ddl_status status = ddl__agreement_run(parent->health, ddl__deadline(limit_ms), &handlers);
    if (status == DDL_OK)
        *comm = next.comm;
    return status;
}
