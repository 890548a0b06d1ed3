/* SPDX-License-Identifier: Apache-2.0 */
/* The tree over logical workers, the parts of its members, and the additions of all parts, checked
 * with an operator that neither commutes nor associates. */
#include "plan/order.h"

#include "check.h"

enum { WORKERS = 64, DEPTH = DDL__FOLD_DEPTH };

static uint64_t random_state = 7;

static int random_below(int limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (int)((random_state >> 11) % (uint64_t)limit);
}

static uint64_t input(int worker)
{
    return ((uint64_t)worker + 1) * 0x9e3779b97f4a7c15u;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    return (a << 13 | a >> 51) * 0x7fb5d329728ea185u + b;
}

/* Return the sum over [first, first + size) as the contract defines it: nodes start at multiples of
 * powers of two, and are cut off at the number of workers. */
static uint64_t sum_of_node(int first, int size, int workers)
{
    if (size == 1)
        return input(first);
    uint64_t left = sum_of_node(first, size / 2, workers);
    return first + size / 2 < workers ? add(left, sum_of_node(first + size / 2, size / 2, workers))
                                      : left;
}

static uint64_t sum_of(int first, int size)
{
    int whole = 1;
    while (whole < size)
        whole *= 2;
    CHECK(first % whole == 0, "a part of %d workers begins at %d", size, first);
    return sum_of_node(first, whole, first + size);
}

/* Run a program. Return the number of results. */
static int run(const ddl__fold *fold, const uint64_t *operands, uint64_t *results)
{
    uint64_t stack[DEPTH];
    int n = 0, stored = 0;
    for (int i = 0; i < fold->n; i++) {
        if (fold->items[i] == DDL__FOLD_ADD) {
            n--;
            stack[n - 1] = add(stack[n - 1], stack[n]);
        } else if (fold->items[i] == DDL__FOLD_PAIRS) {
            n -= 3;
            stack[n - 1] = add(add(stack[n - 1], stack[n]), add(stack[n + 1], stack[n + 2]));
        } else if (fold->items[i] == DDL__FOLD_STORE) {
            results[stored++] = stack[--n];
        } else {
            CHECK(n < fold->depth && n < DEPTH, "%d on a stack of %d", n, fold->depth);
            stack[n++] = operands[fold->items[i]];
        }
    }
    CHECK(n == 0 && stored == fold->results, "%d left, %d results", n, stored);
    return stored;
}

/* Append the values of a member's parts. Return their number. */
static int bring(const ddl__order *order, int member, uint64_t *values)
{
    ddl__order_part parts[WORKERS];
    int n = ddl__order_parts(order, member, parts, WORKERS), workers = 0;
    for (int i = 0; i < n; i++) {
        CHECK(i == 0 || parts[i].first >= parts[i - 1].first + parts[i - 1].size, "not ascending");
        values[i] = sum_of(parts[i].first, parts[i].size);
        workers += parts[i].size;
        for (int v = parts[i].first; v < parts[i].first + parts[i].size; v++)
            CHECK(order->members[v] == member, "worker %d is of %d, not %d", v, order->members[v],
                  member);
    }
    for (int v = 0; v < order->workers; v++)
        workers -= order->members[v] == member;
    CHECK(workers == 0, "%d workers too many", workers);
    return n;
}

/* Check that the parts of members 0 to n - 1 combine to the parts of them together. */
static void check_order(const ddl__order *order, int n)
{
    uint64_t operands[WORKERS], results[WORKERS], want[WORKERS];
    int together[WORKERS], brought = 0;
    ddl__fold *fold = ddl__order_fold(order, n);
    CHECK(fold && fold->spans == n, "no additions");
    for (int i = 0; i < n; i++) {
        CHECK(fold->first[i] == brought, "span %d", i);
        brought += bring(order, i, operands + brought);
    }
    CHECK(fold->first[n] == brought && fold->operands == brought, "%d operands", brought);
    for (int v = 0; v < order->workers; v++)
        together[v] = order->members[v] < 0 ? -1 : 0;
    ddl__order all = {order->workers, together};
    int wanted = bring(&all, 0, want);
    CHECK(run(fold, operands, results) == wanted, "%d results, not %d", fold->results, wanted);
    for (int i = 0; i < wanted; i++)
        CHECK(results[i] == want[i], "result %d of %d workers, %d members", i, order->workers, n);
    free(fold);
}

/* Groups of members first, then the groups: the same sum. */
static void check_levels(const ddl__order *order, int n)
{
    int of[WORKERS], inside[WORKERS], above[WORKERS], groups = 1 + random_below(n);
    uint64_t sums[WORKERS], all;
    for (int i = 0; i < n; i++)
        of[i] = i < groups ? i : random_below(groups);
    for (int v = 0; v < order->workers; v++)
        above[v] = of[order->members[v]];
    ddl__order outer = {order->workers, above};
    ddl__fold *last = ddl__order_fold(&outer, groups);
    for (int g = 0; g < groups; g++) {
        uint64_t operands[WORKERS];
        int number[WORKERS], members = 0, brought = 0;
        for (int i = 0; i < n; i++) {
            number[i] = of[i] == g ? members++ : -1;
            if (of[i] == g)
                brought += bring(order, i, operands + brought);
        }
        for (int v = 0; v < order->workers; v++)
            inside[v] = number[order->members[v]];
        ddl__order inner = {order->workers, inside};
        ddl__fold *fold = ddl__order_fold(&inner, members);
        int parts = run(fold, operands, sums + last->first[g]);
        CHECK(parts == last->first[g + 1] - last->first[g], "%d parts of a group", parts);
        free(fold);
    }
    CHECK(run(last, sums, &all) == 1 && all == sum_of(0, order->workers), "by groups");
    free(last);
}

static void check_owners(int workers, int ranks, bool contiguous)
{
    int owners[WORKERS], members[WORKERS], number[WORKERS], n = 0;
    for (int r = 0; r < ranks; r++)
        number[r] = -1;
    for (int v = 0; v < workers; v++)
        owners[v] = contiguous ? v * ranks / workers : random_below(ranks);
    for (int v = 0; v < workers; v++) {
        int *mine = &number[owners[v]];
        *mine = *mine < 0 ? n++ : *mine;
        members[v] = *mine;
    }
    ddl__order order = {workers, members};
    check_order(&order, n);
    check_levels(&order, n);
    for (int v = 0; n > 1 && v < workers; v++) /* some pass nothing */
        members[v] = members[v] == n - 1 ? -1 : members[v];
    check_order(&order, n - (n > 1));
}

static void check_pack(void)
{
    const uint64_t operands[] = {3, 1, 2};
    uint64_t results[3];
    ddl__fold *pack = ddl__order_pack(3);
    CHECK(pack->spans == 1 && pack->first[1] == 3 && run(pack, operands, results) == 3, "packing");
    CHECK(results[0] == 3 && results[1] == 1 && results[2] == 2, "packed in another order");
    free(pack);
}

/* The number of parts of contiguous ranges is at most what the design promises. */
static void check_number_of_parts(void)
{
    int owners[WORKERS];
    for (int ranks = 1; ranks <= WORKERS; ranks++) {
        int parts = 0, levels = 0;
        for (int v = 0; v < WORKERS; v++)
            owners[v] = v * ranks / WORKERS;
        ddl__order order = {WORKERS, owners};
        for (int r = 0; r < ranks; r++)
            parts += ddl__order_parts(&order, r, NULL, 0);
        while (ranks << (levels + 1) <= WORKERS)
            levels++;
        CHECK(parts <= ranks + (ranks - 1) * (levels + 1), "%d ranks: %d parts", ranks, parts);
        CHECK((ranks & (ranks - 1)) || parts == ranks, "%d equal ranges: %d parts", ranks, parts);
    }
}

/* The most workers, in the worst mixture. */
static void check_most(void)
{
    static int members[DDL__WORKERS_MAX];
    for (int v = 0; v < DDL__WORKERS_MAX; v++)
        members[v] = v % 3;
    ddl__order order = {DDL__WORKERS_MAX, members};
    ddl__fold *fold = ddl__order_fold(&order, 3);
    CHECK(fold->operands == DDL__WORKERS_MAX && fold->depth == DEPTH, "depth %d", fold->depth);
    free(fold);
}

int main(void)
{
    for (int workers = 1; workers <= WORKERS; workers++)
        for (int ranks = 1; ranks <= workers; ranks++) {
            check_owners(workers, ranks, true);
            for (int i = 0; i < 3; i++)
                check_owners(workers, ranks, false);
        }
    check_pack();
    check_number_of_parts();
    check_most();
}
