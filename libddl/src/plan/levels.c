#include "plan/levels.h"

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------------- ladder */

static int *rung(const ddl__ladder *ladder, int level)
{
    return ladder->groups + (size_t)level * (size_t)ladder->size;
}

/* How many groups of the level below each group has; in `children`, by group. */
static void count_children(const ddl__ladder *ladder, const int *below, int n_below,
                           const int *above, int *children)
{
    memset(children, 0, (size_t)ladder->size * sizeof *children);
    for (int r = 0, seen = 0; r < ladder->size && seen < n_below; r++)
        if (below[r] == seen) { /* its first rank, as they are numbered by those */
            children[above[r]]++;
            seen++;
        }
}

static int smallest(const int *children, int n)
{
    int least = children[0];
    for (int g = 1; g < n; g++)
        least = children[g] < least ? children[g] : least;
    return least;
}

static int largest(const int *children, int n)
{
    int most = children[0];
    for (int g = 1; g < n; g++)
        most = children[g] > most ? children[g] : most;
    return most;
}

/* Put into `divided` groups of `each` groups of the rung below within those of `above`; their
 * number. `scratch` has room for 3 * size. */
static int divide(const ddl__ladder *ladder, const int *below, const int *above, int each,
                  int *divided, int *scratch)
{
    size_t size = (size_t)ladder->size;
    int n = 0, seen = 0;
    int *of_child = scratch, *filled = scratch + size, *open = scratch + 2 * size;
    memset(filled, 0, size * sizeof *filled); /* children of each group above so far ... */
    for (int r = 0; r < ladder->size; r++) {
        int a = above[r];
        if (below[r] == seen) {
            if (filled[a]++ % each == 0)
                open[a] = n++; /* ... and where the next one goes */
            of_child[seen++] = open[a];
        }
        divided[r] = of_child[below[r]];
    }
    return n;
}

/* The largest number up to DDL__RADIX by which n can be divided; 1: none. */
static int divisor(int n)
{
    int d = DDL__RADIX;
    while (n % d)
        d--;
    return d;
}

/* Child `i` of `n`: in which of 2^doublings about equal parts of them. */
static int part_of(int i, int n, int doublings)
{
    return (int)(((int64_t)i << doublings) / n);
}

/* Append the partition `above`, and before it those of its groups' halves, quarters, ..., as many
 * as the largest group's children have. */
static void climb_by_halves(ddl__ladder *ladder, const int *above, int n_above, int *scratch)
{
    size_t size = (size_t)ladder->size;
    const int *base = rung(ladder, ladder->n);
    int n_base = ladder->n_groups[ladder->n], doublings = 0;
    int *children = scratch, *filled = scratch + size, *open = scratch + 2 * size;
    int *of_base = scratch + 4 * size; /* behind what climb's callers keep */
    if (n_above == n_base)
        return;
    count_children(ladder, base, n_base, above, children);
    while (1 << doublings < largest(children, n_above))
        doublings++;
    while (--doublings >= 0) {
        int *next = rung(ladder, ladder->n + 1), n = 0;
        memset(filled, 0, size * sizeof *filled);
        for (int r = 0, seen = 0; r < ladder->size; r++) {
            int a = above[r];
            if (base[r] == seen) {
                int i = filled[a]++, part = part_of(i, children[a], doublings);
                if (i == 0 || part != part_of(i - 1, children[a], doublings))
                    open[a] = n++;
                of_base[seen++] = open[a];
            }
            next[r] = of_base[base[r]];
        }
        ladder->n_groups[++ladder->n] = n;
    }
}

/* Append the partition `above`; before it, when it joins many groups, some that lie between. */
static void climb(ddl__ladder *ladder, const int *above, int n_above, bool divides, int *scratch)
{
    size_t bytes = (size_t)ladder->size * sizeof *above;
    if (ladder->halves && divides) {
        climb_by_halves(ladder, above, n_above, scratch);
        return;
    }
    for (;;) {
        const int *below = rung(ladder, ladder->n);
        int n_below = ladder->n_groups[ladder->n], *next = rung(ladder, ladder->n + 1);
        if (n_above == n_below)
            return;
        count_children(ladder, below, n_below, above, scratch);
        int most = largest(scratch, n_above), each = divisor(most);
        bool alike = most == smallest(scratch, n_above);
        if (!divides || !alike || most <= DDL__RADIX || each == 1 ||
            ladder->n + 2 > DDL__LADDER - DDL__GROUPINGS) {
            memcpy(next, above, bytes);
            ladder->n_groups[++ladder->n] = n_above;
            return;
        }
        ladder->n_groups[ladder->n + 1] = divide(ladder, below, above, each, next, scratch);
        ladder->n++;
    }
}

bool ddl__ladder_create(ddl__ladder *ladder, const ddl__topology *t, bool halves, int coarseness)
{
    size_t size = (size_t)t->size;
    *ladder = (ddl__ladder){
        .size = t->size, .halves = halves && coarseness < 2, .capped = coarseness % 2};
    ladder->groups = calloc((DDL__LADDER + 1) * size, sizeof *ladder->groups);
    int *scratch = calloc(5 * size, sizeof *scratch);
    if (!ladder->groups || !scratch) {
        free(scratch);
        ddl__ladder_destroy(ladder);
        return false;
    }
    const int *everyone = scratch + 3 * size; /* in one group: 0 */
    int hosts = t->groups[DDL__HOSTS];
    ladder->n_groups[0] = t->size;
    for (int r = 0; r < t->size; r++)
        ladder->groups[r] = r;
    if (t->node && coarseness == 0)
        climb(ladder, t->node, t->nodes, false, scratch);
    climb(ladder, t->group, hosts, false, scratch);
    ladder->inside = ladder->n;
    for (int g = DDL__RACKS; g < DDL__GROUPINGS && coarseness < 2; g++)
        climb(ladder, t->group + g * t->size, t->groups[g], true, scratch);
    climb(ladder, everyone, 1, hosts > 1 && coarseness < DDL__COARSEST, scratch);
    free(scratch);
    return true;
}

void ddl__ladder_destroy(ddl__ladder *ladder)
{
    free(ladder->groups);
    ladder->groups = NULL;
}

/* --------------------------------------------------------------------------------------- levels */

/* From `start` on the rank `owner` owns what its group holds. */
typedef struct piece {
    int64_t start;
    uint32_t owner;
} piece;

/* Of all groups of one rung: what each holds, those of group g from first[g] to first[g + 1]. */
typedef struct holdings {
    piece *pieces;
    uint32_t *first;
    uint32_t n, room;
} holdings;

enum { PIECES = 16 /* per rank and level on average; with more a topology is too unequal */ };

typedef struct division {
    ddl__levels *levels;
    const ddl__ladder *ladder;
    int rank, level;
    int64_t count;
    bool regular; /* so far every rank owns one piece */
    holdings below, above;
    uint32_t *children; /* those of a group */
    uint32_t *at;       /* by child: its piece in which the present cut lies */
    uint32_t *columns;  /* by cut and child: the owners, of one group */
    uint32_t column_room;
    uint64_t *pairs; /* scratch to count them */
    uint32_t pair_room;
} division;

static bool reserve(void *items, uint32_t *room, uint32_t needed, size_t size)
{
    void **at = items;
    if (needed <= *room)
        return true;
    uint32_t more = needed > 2 * *room ? needed : 2 * *room;
    void *moved = realloc(*at, more * size);
    if (!moved)
        return false;
    *at = moved;
    *room = more;
    return true;
}

int64_t ddl__part_start(const ddl__levels *levels, const ddl__exchange *x, int i)
{
    /* In proportion, so that halves of a half end where quarters do. */
    int64_t units = x->count / levels->unit + (x->count % levels->unit != 0);
    int64_t offset = units * i / x->parts * levels->unit;
    return x->start + (offset < x->count ? offset : x->count);
}

/* Append the parts of an exchange to what the group holds. */
static bool hold_parts(division *d, const ddl__exchange *x, const uint32_t *members)
{
    holdings *h = &d->above;
    if (!reserve(&h->pieces, &h->room, h->n + (uint32_t)x->parts, sizeof *h->pieces))
        return false;
    for (int i = 0; i < x->parts; i++) {
        int64_t start = ddl__part_start(d->levels, x, i);
        if (start < ddl__part_start(d->levels, x, i + 1))
            h->pieces[h->n++] = (piece){start, members[i]};
    }
    return true;
}

static bool note_exchange(division *d, ddl__exchange x, const uint32_t *members)
{
    ddl__levels *l = d->levels;
    if (!reserve(&l->exchanges, &l->exchange_room, l->n_exchanges + 1, sizeof *l->exchanges) ||
        !reserve(&l->members, &l->member_room, l->n_members + (uint32_t)x.members,
                 sizeof *l->members))
        return false;
    x.member = l->n_members;
    l->exchanges[l->n_exchanges++] = x;
    memcpy(l->members + l->n_members, members, (size_t)x.members * sizeof *members);
    l->n_members += (uint32_t)x.members;
    return true;
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* How often the same two owners meet in a group's cuts. */
static bool count_pairs(division *d, uint32_t cuts, int n)
{
    int *most = &d->levels->pair_runs;
    if (!reserve(&d->pairs, &d->pair_room, cuts, sizeof *d->pairs))
        return false;
    for (int a = 0; a < n; a++)
        for (int b = 0; b < a && *most <= DDL__PAIR_RUNS; b++) {
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

/* The children of one group exchange what they hold. Tells whether their cuts differ. */
static bool join_group(division *d, int n, int parts, bool *irregular)
{
    uint32_t cuts = 0;
    bool alike = true;
    for (int c = 0; c < n; c++)
        d->at[c] = d->below.first[d->children[c]];
    for (int64_t start = 0, end; start < d->count; start = end, cuts++) {
        if (!reserve(&d->columns, &d->column_room, (cuts + 1) * (uint32_t)n, sizeof *d->columns))
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
        return true; /* no two owners met twice */
    *irregular = *irregular || !alike;
    return count_pairs(d, cuts, n);
}

/* List the groups of the rung below by the group above to which they belong. */
static void list_children(const division *d, uint32_t *first, uint32_t *list)
{
    const int *below = rung(d->ladder, d->level), *above = rung(d->ladder, d->level + 1);
    int n_above = d->ladder->n_groups[d->level + 1];
    memset(first, 0, ((size_t)n_above + 1) * sizeof *first);
    for (int r = 0, seen = 0; r < d->ladder->size; r++)
        if (below[r] == seen) {
            first[above[r] + 1]++;
            seen++;
        }
    for (int g = 0; g < n_above; g++)
        first[g + 1] += first[g];
    for (int r = 0, seen = 0; r < d->ladder->size; r++)
        if (below[r] == seen)
            list[first[above[r]]++] = (uint32_t)seen++;
    memmove(first + 1, first, (size_t)n_above * sizeof *first);
    first[0] = 0;
}

/* From one rung to the next. */
static bool join_all(division *d, uint32_t *first, uint32_t *list)
{
    const ddl__ladder *ladder = d->ladder;
    int n_above = ladder->n_groups[d->level + 1], least = ladder->size;
    list_children(d, first, list);
    for (int g = 0; g < n_above; g++) {
        int n = (int)(first[g + 1] - first[g]);
        least = n < least ? n : least;
    }
    bool irregular = false, caps = ladder->capped && d->level == 0 && ladder->inside;
    d->above.n = 0;
    d->levels->first[d->level] = d->levels->n_exchanges;
    for (int g = 0; g < n_above && d->levels->pair_runs <= DDL__PAIR_RUNS; g++) {
        int n = (int)(first[g + 1] - first[g]);
        d->children = list + first[g];
        d->above.first[g] = d->above.n;
        if (!join_group(d, n, caps ? least : n, &irregular))
            return false;
        if (d->above.n > PIECES * (uint32_t)ladder->size)
            d->levels->pair_runs = DDL__PAIR_RUNS + 1; /* as good as */
    }
    d->regular = d->regular && !irregular;
    d->above.first[n_above] = d->above.n;
    d->levels->first[d->level + 1] = d->levels->n_exchanges;
    return true;
}

static bool start_with_ranks(division *d)
{
    uint32_t size = (uint32_t)d->ladder->size;
    if (!reserve(&d->below.pieces, &d->below.room, size, sizeof *d->below.pieces))
        return false;
    for (uint32_t r = 0; r <= size; r++) {
        d->below.first[r] = r;
        if (r < size)
            d->below.pieces[r] = (piece){0, r};
    }
    return true;
}

bool ddl__levels_create(ddl__levels *levels, const ddl__ladder *ladder, int rank, int64_t count,
                        int64_t unit)
{
    size_t size = (size_t)ladder->size;
    *levels = (ddl__levels){.n = ladder->n, .unit = unit, .pair_runs = 1};
    division d = {
        .levels = levels, .ladder = ladder, .rank = rank, .count = count, .regular = true};
    uint32_t *scratch = calloc(5 * (size + 1), sizeof *scratch), *first = scratch + 2 * (size + 1);
    bool good = scratch;
    if (good) {
        d.below.first = scratch;
        d.above.first = scratch + size + 1;
        d.at = first + 2 * (size + 1);
        good = start_with_ranks(&d);
    }
    for (; good && d.level < ladder->n && levels->pair_runs <= DDL__PAIR_RUNS; d.level++) {
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
        ddl__levels_destroy(levels);
    return good;
}

void ddl__levels_destroy(ddl__levels *levels)
{
    free(levels->exchanges);
    free(levels->members);
    levels->exchanges = NULL;
    levels->members = NULL;
}
