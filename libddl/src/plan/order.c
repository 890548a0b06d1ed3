/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/order.h"

#include <stdbool.h>
#include <stdlib.h>

enum {
    NOBODY = -1, /* some workers of the sum belong to no member */
    SEVERAL = -2 /* the workers of the sum belong to several members */
};

/* Return the number of workers in the first half of a sum over n > 1. */
static int first_half(int n)
{
    int half = 1;
    while (2 * half < n)
        half *= 2;
    return half;
}

/* Return the member that owns all workers of a sum, or NOBODY or SEVERAL. */
static int member_of(const ddl__order *order, int first, int size)
{
    int member = order->members[first];
    for (int v = first; v < first + size; v++) {
        if (order->members[v] < 0)
            return NOBODY;
        if (order->members[v] != member)
            member = SEVERAL;
    }
    return member;
}

/* ------------------------------------------------------------------------------------- a part */

typedef struct part_list {
    ddl__order_part *parts;
    int n, capacity;
} part_list;

static void find_parts(const ddl__order *order, int member, int first, int size, part_list *list)
{
    int found = member_of(order, first, size), half = first_half(size);
    if (found == member) {
        if (list->n < list->capacity)
            list->parts[list->n] = (ddl__order_part){first, size};
        list->n++;
    } else if (size > 1 && found < 0) {
        find_parts(order, member, first, half, list);
        find_parts(order, member, first + half, size - half, list);
    }
}

int ddl__order_parts(const ddl__order *order, int member, ddl__order_part *parts, int capacity)
{
    part_list list = {parts, 0, capacity};
    find_parts(order, member, 0, order->workers, &list);
    return list.n;
}

static int count_parts(const ddl__order *order, int first, int size)
{
    int found = member_of(order, first, size), half = first_half(size);
    if (found >= 0)
        return 1;
    return size == 1
               ? 0
               : count_parts(order, first, half) + count_parts(order, first + half, size - half);
}

int ddl__order_count(const ddl__order *order)
{
    return count_parts(order, 0, order->workers);
}

/* -------------------------------------------------------------------------------- the additions */

/* `at[m]` is the number of the next operand of member m. */
typedef struct writer {
    const ddl__order *order;
    ddl__fold *fold;
    uint16_t *at;
    int pushed; /* number of operands on the stack */
} writer;

static void write_item(writer *w, int item)
{
    ddl__fold *fold = w->fold;
    fold->items[fold->n++] = (int16_t)item;
    w->pushed += item >= 0 ? 1 : item == DDL__FOLD_PAIRS ? -3 : -1;
    fold->depth = w->pushed > fold->depth ? w->pushed : fold->depth;
    fold->results += item == DDL__FOLD_STORE;
}

/* Write the additions of a sum. `whole` is true if the sum is part of a larger sum; otherwise its
 * result is stored. */
static void write_sum(writer *w, int first, int size, bool whole)
{
    int found = member_of(w->order, first, size), half = first_half(size);
    if (found >= 0) {
        write_item(w, w->at[found]++);
    } else if (found == SEVERAL && member_of(w->order, first, half) == SEVERAL &&
               member_of(w->order, first + half, size - half) == SEVERAL) {
        int quarter = first_half(size - half);
        write_sum(w, first, half / 2, true);
        write_sum(w, first + half / 2, half / 2, true);
        write_sum(w, first + half, quarter, true);
        write_sum(w, first + half + quarter, size - half - quarter, true);
        write_item(w, DDL__FOLD_PAIRS);
    } else if (size > 1) {
        write_sum(w, first, half, found == SEVERAL);
        write_sum(w, first + half, size - half, found == SEVERAL);
        if (found == SEVERAL)
            write_item(w, DDL__FOLD_ADD);
    }
    if (!whole && found != NOBODY)
        write_item(w, DDL__FOLD_STORE);
}

/* Allocate a fold with room for `operands` pushes, fewer additions, and as many stores. */
static ddl__fold *fold_allocate(int operands, int spans)
{
    size_t items = 3 * (size_t)operands, firsts = (size_t)spans + 1;
    ddl__fold *fold = calloc(1, sizeof *fold + (items + firsts) * sizeof *fold->items);
    if (!fold)
        return NULL;
    fold->first = (uint16_t *)(fold->items + items);
    fold->operands = operands;
    fold->spans = spans;
    return fold;
}

ddl__fold *ddl__order_fold(const ddl__order *order, int n)
{
    int operands = 0;
    uint16_t *at = calloc((size_t)n + 1, sizeof *at);
    for (int i = 0; at && i < n; i++) {
        at[i] = (uint16_t)operands;
        operands += ddl__order_parts(order, i, NULL, 0);
    }
    ddl__fold *fold = at ? fold_allocate(operands, n) : NULL;
    if (fold) {
        for (int i = 0; i < n; i++)
            fold->first[i] = at[i];
        fold->first[n] = (uint16_t)operands;
        write_sum(&(writer){.order = order, .fold = fold, .at = at}, 0, order->workers, false);
    }
    free(at);
    return fold;
}

ddl__fold *ddl__order_pack(int n)
{
    ddl__fold *fold = fold_allocate(n, 1);
    writer w = {.fold = fold};
    for (int i = 0; fold && i < n; i++) {
        write_item(&w, i);
        write_item(&w, DDL__FOLD_STORE);
    }
    if (fold)
        fold->first[1] = (uint16_t)n;
    return fold;
}
