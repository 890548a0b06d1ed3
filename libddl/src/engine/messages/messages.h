/* SPDX-License-Identifier: Apache-2.0 */
/* messages.h - sends and receives: matched by source and tag, and moved over links of their own. */
#ifndef DDL_ENGINE_MESSAGES_MESSAGES_H
#define DDL_ENGINE_MESSAGES_MESSAGES_H

#include <pthread.h>

#include "engine/calls/work.h"
#include "engine/named/name_messages.h"
#include "engine/recorder/recorder.h"

/* The messages of one comm. Used by the driver only, except for posting. */
typedef struct ddl__messages ddl__messages;

/* Links and names are indexed by rank, with NULL for the own link. They are borrowed, like the lock
 * of the engine and its counter of the name messages that wait to be sent. NULL when out of memory.
 */
ddl__messages *ddl__messages_create(int rank, int size, ddl__link *const *links, char *const *names,
                                    pthread_mutex_t *lock, atomic_uint *names_unsent);

/* Record sends and receives here; the recorder outlives the messages. */
void ddl__messages_record(ddl__messages *messages, ddl__recorder *recorder);
void ddl__messages_destroy(ddl__messages *messages);

/* A send or receive was submitted. Under the lock. */
void ddl__messages_post(ddl__messages *messages, ddl_work *work);

/* Do what can be done now; false when that is nothing. */
bool ddl__messages_run(ddl__messages *messages);

/* Whether named operations are under way: name messages may then come, to rank 0 from every rank
 * and to the others from rank 0. And whether one of them `runs`: the stream shares the links, and
 * no frames may block it, of whichever rank. */
void ddl__messages_set_named(ddl__messages *messages, bool named, bool runs);

/* Whether messages of all peers are waited for, and whether events tell which have come: the
 * driver then handles events before each run. */
bool ddl__messages_go_by_events(const ddl__messages *messages);

/* A link was opened, or will not be. Any thread. */
void ddl__messages_links_changed(ddl__messages *messages);

/* Send a name message to another rank, behind earlier ones; false when out of memory. */
bool ddl__messages_send_name(ddl__messages *messages, int rank, unsigned kind, const void *payload,
                             size_t bytes);

/* The next name message that has come, or NULL; the caller frees it. */
ddl__name_message *ddl__messages_take_name(ddl__messages *messages);

/* The works that have succeeded since the last call, linked by `next`. */
ddl_work *ddl__messages_finished(ddl__messages *messages);

/* After a run that did nothing: fail if a peer that is waited for has left or is lost. */
void ddl__messages_check_peers(ddl__messages *messages);

/* Fail if a work has run past its limit. */
void ddl__messages_check_limits(ddl__messages *messages);

/* No work runs past its limit before this moment. */
int64_t ddl__messages_deadline(const ddl__messages *messages);

/* The failure that ends the comm, and its text; DDL_OK: none. */
ddl_status ddl__messages_failure(const ddl__messages *messages, const char **text);

/* The rank whose lost link is the reason, or -1. */
int ddl__messages_lost(const ddl__messages *messages);

/* The comm is dead: forget all works. They are returned, linked by `next`. Under the lock. */
ddl_work *ddl__messages_drop(ddl__messages *messages);

/* The verb of links, on those that are waited for now. */
void ddl__messages_sleeping(ddl__messages *messages, bool asleep);

#endif
