/* SPDX-License-Identifier: Apache-2.0 */
/* Plans the additions of a reduction in the order that the request prescribes. */
#include <stdlib.h>

#include "plan/builder.h"

bool ddl__ranks_are_in_order(const ddl__request *request)
{
    const ddl__order *order = request->order;
    int last = 0;
    if (!order)
        return true;
    for (int v = 0; v < order->workers; v++) {
        int step = order->members[v] - (v ? last : -1);
        if (step < 0 || step > 1)
            return false;
        last = order->members[v];
    }
    return request->wide == 1 && last == request->size - 1 &&
           ddl__order_count(order) == request->size;
}

/* Return the request's order with operands instead of ranks as members. The caller frees the
 * members with free. */
static ddl__order order_of(const ddl__request *request, const int *number)
{
    const ddl__order *order = request->order;
    int *members = malloc((size_t)order->workers * sizeof *members);
    for (int v = 0; members && v < order->workers; v++)
        members[v] = number[order->members[v]];
    return (ddl__order){order->workers, members};
}

bool ddl__groups_are_subtrees(const ddl__request *request, const int *group, int groups)
{
    ddl__order order = order_of(request, group);
    bool are = order.members && ddl__order_count(&order) == groups;
    free((void *)(uintptr_t)order.members);
    return are;
}

ddl__fold *ddl__sum_create(const ddl__request *request, const int *number, int operands)
{
    ddl__order order = order_of(request, number);
    ddl__fold *fold = order.members ? ddl__order_fold(&order, operands) : NULL;
    free((void *)(uintptr_t)order.members);
    return fold;
}

static ddl__fold *sum_of_ranks(const ddl__request *request)
{
    return ddl__order_fold(request->order, request->size);
}

/* Return true if the fold has the same additions as one pass over the operands in their order. */
static bool is_one_pass(const ddl__request *request, const ddl__fold *fold)
{
    bool is = request->wide == 1 && fold->results == 1 && fold->operands == fold->spans &&
              (fold->operands < 3 || !request->rounds) && fold->n == 2 * fold->operands;
    for (int i = 0; is && i < fold->operands; i++)
        is = fold->items[i ? 2 * i - 1 : 0] == i && (i == 0 || fold->items[2 * i] == DDL__FOLD_ADD);
    return is;
}

void ddl__builder_add_sum(ddl__builder *builder, ddl__step step, uint8_t fold, const int *number,
                          ddl__ranks operands, ddl__ranks targets)
{
    const ddl__request *request = builder->request;
    ddl__fold **sum = &builder->plan->folds[fold];
    bool has_own = !number || number[request->rank] >= 0;
    step.kind = DDL__REDUCE;
    if (request->order && !*sum)
        *sum = number ? ddl__sum_create(request, number, operands.n) : sum_of_ranks(request);
    if (request->order && !*sum)
        builder->failed = true;
    else if (request->order && !(has_own && is_one_pass(request, *sum)))
        step.kind = DDL__FOLD;
    step.fold = fold;
    ddl__builder_add(builder, step, operands, targets);
}
