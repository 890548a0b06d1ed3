/* SPDX-License-Identifier: Apache-2.0 */
/* messages.h - sends and receives, matched by source and tag, over their own links. */
#ifndef DDL_ENGINE_MESSAGES_MESSAGES_H
#define DDL_ENGINE_MESSAGES_MESSAGES_H

#include <pthread.h>

#include "engine/calls/work.h"
#include "engine/named/name_messages.h"
#include "engine/recorder/recorder.h"

/* The message state of one comm. Only the driver uses it, except for posting. */
typedef struct ddl__messages ddl__messages;

/* Create the message state of a comm. `links` and `names` are indexed by rank; the link to this
 * rank is NULL. Both are borrowed, as are the engine's `lock` and its counter of unsent name
 * messages. Return NULL if out of memory. */
ddl__messages *ddl__messages_create(int rank, int size, ddl__link *const *links, char *const *names,
                                    pthread_mutex_t *lock, atomic_uint *names_unsent);

/* Record sends and receives in this recorder, which must outlive the message state. */
void ddl__messages_record(ddl__messages *messages, ddl__recorder *recorder);
void ddl__messages_destroy(ddl__messages *messages);

/* Under the lock: post a send or receive. */
void ddl__messages_post(ddl__messages *messages, ddl_work *work);

/* Make all progress that is possible now. Return false if there was none. */
bool ddl__messages_run(ddl__messages *messages);

/* Set whether named operations are pending. If so, name messages may arrive: on rank 0 from every
 * rank, on the others from rank 0. `runs` is true if a named operation is running: its stream then
 * shares the links, so the frames of all ranks must be received, because they could block the
 * stream. */
void ddl__messages_set_named(ddl__messages *messages, bool named, bool runs);

/* Return true if messages of all peers are awaited and events show which have arrived. The driver
 * then handles events before each run. */
bool ddl__messages_go_by_events(const ddl__messages *messages);

/* Note that a link was opened, or will never open. Any thread may call this. */
void ddl__messages_links_changed(ddl__messages *messages);

/* Send a name message to another rank, after earlier ones. Return false if out of memory. */
bool ddl__messages_send_name(ddl__messages *messages, int rank, unsigned kind, const void *payload,
                             size_t bytes);

/* Return the next received name message, or NULL. The caller frees it. */
ddl__name_message *ddl__messages_take_name(ddl__messages *messages);

/* Return the works that have succeeded since the last call, linked by `next`. */
ddl_work *ddl__messages_finished(ddl__messages *messages);

/* After a run that did nothing: fail if a peer that a work waits for has left or is lost. */
void ddl__messages_check_peers(ddl__messages *messages);

/* Fail if a work has exceeded its time limit. */
void ddl__messages_check_limits(ddl__messages *messages);

/* Return a time before which no work exceeds its limit. */
int64_t ddl__messages_deadline(const ddl__messages *messages);

/* Return the failure that ends the comm, and its text; DDL_OK if there is none. */
ddl_status ddl__messages_failure(const ddl__messages *messages, const char **text);

/* Return the rank whose lost link is the reason for the failure, or -1. */
int ddl__messages_lost(const ddl__messages *messages);

/* Under the lock: drop all works because the comm is dead. Returns them, linked by `next`. */
ddl_work *ddl__messages_drop(ddl__messages *messages);

/* Call the function `sleeping` of the links for which works wait now. */
void ddl__messages_sleeping(ddl__messages *messages, bool asleep);

#endif
