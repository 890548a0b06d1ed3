/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/algorithms/exchanges.h"

#include <stdlib.h>
#include <string.h>

#include "plan/builder.h"

/* A part of the range that a group holds; `owner` owns it. */
typedef struct piece {
    int64_t start;
    uint32_t owner;
} piece;

/* The ranges that the groups of a level hold. The pieces of group g begin at pieces[first[g]] and
 * end before pieces[first[g + 1]]. */
typedef struct holdings {
    piece *pieces;
    uint32_t *first;
    uint32_t n, room;
} holdings;

enum {
    PIECES = 16 /* largest average number of pieces for each rank and level of a division */
};

typedef struct division {
    ddl__exchanges *exchanges;
    const ddl__hierarchy *hierarchy;
    int rank, level;
    int64_t count;
    bool regular; /* every rank owns at most one piece so far */
    holdings below, above;
    uint32_t *children; /* children of the current group */
    uint32_t *at;       /* for each child: index of the piece that contains the current cut */
    uint32_t *columns;  /* owners, by cut and child */
    uint32_t column_room;
    uint64_t *pairs; /* scratch memory of count_pairs */
    uint32_t pair_room;
} division;

int64_t ddl__part_start(const ddl__exchanges *exchanges, const ddl__exchange *x, int i)
{
    /* The boundary is rounded down in proportion, so that half of a half ends where a quarter
     * ends. */
    int64_t units = x->count / exchanges->unit + (x->count % exchanges->unit != 0);
    int64_t offset = units * i / x->parts * exchanges->unit;
    return x->start + (offset < x->count ? offset : x->count);
}

/* Append the parts of an exchange to the pieces that the group holds. */
static bool hold_parts(division *d, const ddl__exchange *x, const uint32_t *members)
{
    holdings *h = &d->above;
    if (!ddl__grow(&h->pieces, &h->room, h->n + (uint32_t)x->parts, sizeof *h->pieces))
        return false;
    for (int i = 0; i < x->parts; i++) {
        int64_t start = ddl__part_start(d->exchanges, x, i);
        if (start < ddl__part_start(d->exchanges, x, i + 1))
            h->pieces[h->n++] = (piece){start, members[i]};
    }
    return true;
}

static bool note_exchange(division *d, ddl__exchange x, const uint32_t *members)
{
    ddl__exchanges *l = d->exchanges;
    if (!ddl__grow(&l->list, &l->list_room, l->n_list + 1, sizeof *l->list) ||
        !ddl__grow(&l->members, &l->member_room, l->n_members + (uint32_t)x.members,
                   sizeof *l->members))
        return false;
    x.member = l->n_members;
    l->list[l->n_list++] = x;
    memcpy(l->members + l->n_members, members, (size_t)x.members * sizeof *members);
    l->n_members += (uint32_t)x.members;
    return true;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Update pair_ranges, the largest number of ranges that any two ranks of different children
 * exchange in a group. Return false if out of memory. */
static bool count_pairs(division *d, uint32_t cuts, int n)
{
    int *most = &d->exchanges->pair_ranges;
    if (!ddl__grow(&d->pairs, &d->pair_room, cuts, sizeof *d->pairs))
        return false;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a && *most <= DDL__PAIR_RANGES; b++) {
            for (uint32_t c = 0; c < cuts; c++) {
                const uint32_t *column = d->columns + c * (uint32_t)n;
                d->pairs[c] = (uint64_t)column[a] << 32 | column[b];
            }
            qsort(d->pairs, cuts, sizeof *d->pairs, ascending);
            for (uint32_t c = 0, run = 0; c < cuts; c++) {
                run = c && d->pairs[c] == d->pairs[c - 1] ? run + 1 : 1;
                *most = (int)run > *most ? (int)run : *most;
            }
        }
    return true;
}

static int64_t end_of(const division *d, uint32_t child, uint32_t at)
{
    return at + 1 < d->below.first[child + 1] ? d->below.pieces[at + 1].start : d->count;
}

/* Let the children of a group exchange the pieces that they hold. Set `irregular` if their cuts
 * differ. Return false if out of memory. */
static bool join_group(division *d, int n, int parts, bool *irregular)
{
    uint32_t cuts = 0;
    bool alike = true;
    for (int c = 0; c < n; c++)
        d->at[c] = d->below.first[d->children[c]];
    for (int64_t start = 0, end; start < d->count; start = end, cuts++) {
        if (!ddl__grow(&d->columns, &d->column_room, (cuts + 1) * (uint32_t)n, sizeof *d->columns))
            return false;
        uint32_t *column = d->columns + cuts * (uint32_t)n;
        int self = -1;
        end = d->count;
        for (int c = 0; c < n; c++) {
            column[c] = d->below.pieces[d->at[c]].owner;
            self = column[c] == (uint32_t)d->rank ? c : self;
            int64_t its = end_of(d, d->children[c], d->at[c]);
            alike = alike && (c == 0 || its == end);
            end = its < end ? its : end;
        }
        ddl__exchange x = {
            .start = start, .count = end - start, .members = n, .parts = parts, .self = self};
        if (!hold_parts(d, &x, column) || (self >= 0 && n > 1 && !note_exchange(d, x, column)))
            return false;
        for (int c = 0; c < n; c++)
            d->at[c] += end_of(d, d->children[c], d->at[c]) == end;
    }
    if (alike && d->regular)
        return true; /* no two ranks exchange more than one range */
    *irregular = *irregular || !alike;
    return count_pairs(d, cuts, n);
}

/* List the groups of the lower level, sorted by the group of the upper level that contains them. */
static void list_children(const division *d, uint32_t *first, uint32_t *list)
{
    const int *below = ddl__hierarchy_groups(d->hierarchy, d->level);
    const int *above = ddl__hierarchy_groups(d->hierarchy, d->level + 1);
    int n_above = d->hierarchy->n_groups[d->level + 1];
    memset(first, 0, ((size_t)n_above + 1) * sizeof *first);
    for (int r = 0, seen = 0; r < d->hierarchy->size; r++)
        if (below[r] == seen) {
            first[above[r] + 1]++;
            seen++;
        }
    for (int g = 0; g < n_above; g++)
        first[g + 1] += first[g];
    for (int r = 0, seen = 0; r < d->hierarchy->size; r++)
        if (below[r] == seen)
            list[first[above[r]]++] = (uint32_t)seen++;
    memmove(first + 1, first, (size_t)n_above * sizeof *first);
    first[0] = 0;
}

/* Let the groups of one level exchange their pieces within each group of the next level. Return
 * false if out of memory. */
static bool join_all(division *d, uint32_t *first, uint32_t *list)
{
    const ddl__hierarchy *hierarchy = d->hierarchy;
    int n_above = hierarchy->n_groups[d->level + 1], least = hierarchy->size;
    list_children(d, first, list);
    for (int g = 0; g < n_above; g++) {
        int n = (int)(first[g + 1] - first[g]);
        least = n < least ? n : least;
    }
    bool irregular = false, caps = hierarchy->capped && d->level == 0 && hierarchy->inside;
    d->above.n = 0;
    d->exchanges->first[d->level] = d->exchanges->n_list;
    for (int g = 0; g < n_above && d->exchanges->pair_ranges <= DDL__PAIR_RANGES; g++) {
        int n = (int)(first[g + 1] - first[g]);
        d->children = list + first[g];
        d->above.first[g] = d->above.n;
        if (!join_group(d, n, caps ? least : n, &irregular))
            return false;
        if (d->above.n > PIECES * (uint32_t)hierarchy->size)
            d->exchanges->pair_ranges = DDL__PAIR_RANGES + 1;
    }
    d->regular = d->regular && !irregular;
    d->above.first[n_above] = d->above.n;
    d->exchanges->first[d->level + 1] = d->exchanges->n_list;
    return true;
}

static bool start_with_ranks(division *d)
{
    uint32_t size = (uint32_t)d->hierarchy->size;
    if (!ddl__grow(&d->below.pieces, &d->below.room, size, sizeof *d->below.pieces))
        return false;
    for (uint32_t r = 0; r <= size; r++) {
        d->below.first[r] = r;
        if (r < size)
            d->below.pieces[r] = (piece){0, r};
    }
    return true;
}

bool ddl__exchanges_create(ddl__exchanges *exchanges, const ddl__hierarchy *hierarchy, int rank,
                           int64_t count, int64_t unit)
{
    size_t size = (size_t)hierarchy->size;
    *exchanges = (ddl__exchanges){.n = hierarchy->n, .unit = unit, .pair_ranges = 1};
    division d = {.exchanges = exchanges,
                  .hierarchy = hierarchy,
                  .rank = rank,
                  .count = count,
                  .regular = true};
    uint32_t *scratch = calloc(5 * (size + 1), sizeof *scratch), *first = scratch + 2 * (size + 1);
    bool good = scratch;
    if (good) {
        d.below.first = scratch;
        d.above.first = scratch + size + 1;
        d.at = first + 2 * (size + 1);
        good = start_with_ranks(&d);
    }
    for (; good && d.level < hierarchy->n && exchanges->pair_ranges <= DDL__PAIR_RANGES;
         d.level++) {
        good = join_all(&d, first, first + size + 1);
        holdings joined = d.above;
        d.above = d.below;
        d.below = joined;
    }
    free(d.above.pieces);
    free(d.below.pieces);
    free(d.columns);
    free(d.pairs);
    free(scratch);
    if (!good)
        ddl__exchanges_destroy(exchanges);
    return good;
}

void ddl__exchanges_destroy(ddl__exchanges *exchanges)
{
    free(exchanges->list);
    free(exchanges->members);
    exchanges->list = NULL;
    exchanges->members = NULL;
}
