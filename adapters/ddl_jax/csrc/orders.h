/* SPDX-License-Identifier: Apache-2.0 */
/* orders.h - the orders of sums over logical workers. A program contains only their number. */
#ifndef DDL_JAX_ORDERS_H
#define DDL_JAX_ORDERS_H

#include <pthread.h>
#include <stdlib.h>

#include "ddl/ddl.h"

/* Kept until the process exits: libddl keeps the plans of an order, and a program uses few. */
typedef struct order_entry {
    int workers, ranks;
    ddl_order *order;
    struct order_entry *next;
} order_entry;

static pthread_mutex_t orders_lock = PTHREAD_MUTEX_INITIALIZER;
static order_entry *orders; /* guarded by orders_lock */

/* Return the entry of the order in which rank r has the workers from r * workers / ranks, rounded
 * down, to the next rank's; or NULL with the status. */
static inline order_entry *create_order(int workers, int ranks, ddl_status *status)
{
    order_entry *entry = malloc(sizeof *entry);
    int *owners = malloc((size_t)workers * sizeof *owners);
    *status = entry && owners ? DDL_OK : DDL_ENOMEM;
    for (int v = 0; owners && v < workers; v++)
        owners[v] = (int)(((int64_t)(v + 1) * ranks - 1) / workers);
    if (*status == DDL_OK) {
        *entry = (order_entry){.workers = workers, .ranks = ranks};
        *status = ddl_order_create(owners, workers, ranks, &entry->order);
    }
    free(owners);
    if (*status == DDL_OK)
        return entry;
    free(entry);
    return NULL;
}

static inline ddl_status order_of(int workers, int ranks, ddl_order **order)
{
    ddl_status status = DDL_OK;
    pthread_mutex_lock(&orders_lock);
    order_entry *entry = orders;
    while (entry && (entry->workers != workers || entry->ranks != ranks))
        entry = entry->next;
    if (!entry && (entry = create_order(workers, ranks, &status))) {
        entry->next = orders;
        orders = entry;
    }
    pthread_mutex_unlock(&orders_lock);
    if (entry)
        *order = entry->order;
    return status;
}

#endif
