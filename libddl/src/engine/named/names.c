/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/named/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned list_of(const char *name, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * 0x100000001b3;
    return (unsigned)((hash >> 32) % DDL__NAME_LISTS);
}

static bool is_called(const char *name, const char *other, size_t length)
{
    return strlen(name) == length && !memcmp(name, other, length);
}

/* ---------------------------------------------------------------------------- this rank's works */

ddl_work *ddl__names_find(const ddl__names *names, const char *name, size_t length)
{
    ddl_work *work = names->lists[list_of(name, length)];
    while (work && !is_called(work->name, name, length))
        work = work->next_named;
    return work;
}

void ddl__names_add(ddl__names *names, ddl_work *work)
{
    ddl_work **list = &names->lists[list_of(work->name, strlen(work->name))];
    work->next_named = *list;
    *list = work;
    atomic_fetch_add_explicit(&names->n, 1, memory_order_relaxed);
}

void ddl__names_remove(ddl__names *names, ddl_work *work)
{
    ddl_work **at = &names->lists[list_of(work->name, strlen(work->name))];
    while (*at != work)
        at = &(*at)->next_named;
    *at = work->next_named;
    atomic_fetch_sub_explicit(&names->n, 1, memory_order_relaxed);
}

/* ---------------------------------------------------------------------------- the announcements */

struct ddl__entry {
    ddl__entry *next;
    ddl__signature signature; /* signature of the first rank that announced the name */
    int first, announced;     /* rank of the first announcement, and number of announcements */
    char *name;
    bool by[]; /* for each rank: true if it has announced the name */
};

static ddl__entry **find(const ddl__announcements *announcements, const char *name, size_t length)
{
    ddl__entry **at = (ddl__entry **)&announcements->entries[list_of(name, length)];
    while (*at && !is_called((*at)->name, name, length))
        at = &(*at)->next;
    return at;
}

static void free_entry(ddl__entry *entry)
{
    free(entry->name);
    free(entry);
}

static ddl__entry *make_entry(int size, int rank, const char *name, size_t length,
                              const ddl__signature *signature)
{
    ddl__entry *entry = calloc(1, sizeof *entry + (size_t)size * sizeof *entry->by);
    char *copy = malloc(length + 1); /* the name has no terminator */
    if (!entry || !copy) {
        free(entry);
        free(copy);
        return NULL;
    }
    entry->first = rank;
    entry->signature = *signature;
    entry->name = copy;
    memcpy(copy, name, length);
    copy[length] = '\0';
    return entry;
}

bool ddl__announcements_open(ddl__announcements *announcements, int size)
{
    announcements->size = size;
    announcements->last = calloc((size_t)size, sizeof *announcements->last);
    return announcements->last;
}

ddl__announce_result ddl__announcements_add(ddl__announcements *announcements, int rank,
                                            const char *name, size_t length,
                                            const ddl__signature *signature, int *first,
                                            ddl__signature *theirs)
{
    ddl__entry **at = find(announcements, name, length), *entry = *at;
    if (!entry && !(entry = *at = make_entry(announcements->size, rank, name, length, signature)))
        return DDL__NO_MEMORY;
    if (memcmp(&entry->signature, signature, sizeof *signature) != 0) {
        *first = entry->first;
        *theirs = entry->signature;
        return DDL__DIFFERENT;
    }
    memcpy(announcements->last[rank], name, length);
    announcements->last[rank][length] = 0;
    entry->announced += !entry->by[rank];
    entry->by[rank] = true;
    if (entry->announced < announcements->size)
        return DDL__ANNOUNCED;
    *at = entry->next;
    free_entry(entry);
    return DDL__COMPLETE;
}

bool ddl__announcements_has(const ddl__announcements *announcements, const char *name, int rank)
{
    const ddl__entry *entry = *find(announcements, name, strlen(name));
    return entry && entry->by[rank];
}

bool ddl__announcements_lacks(const ddl__announcements *announcements, const char *name, int rank)
{
    const ddl__entry *entry = *find(announcements, name, strlen(name));
    return entry && !entry->by[rank];
}

void ddl__announcements_close(ddl__announcements *announcements)
{
    free(announcements->last);
    announcements->last = NULL;
    for (unsigned i = 0; i < DDL__NAME_LISTS; i++)
        for (ddl__entry *entry = announcements->entries[i], *next; entry; entry = next) {
            next = entry->next;
            free_entry(entry);
        }
}
