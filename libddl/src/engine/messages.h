/* messages.h - sends and receives: matched by source and tag, moved over links of their own. */
#ifndef DDL_ENGINE_MESSAGES_H
#define DDL_ENGINE_MESSAGES_H

#include <pthread.h>

#include "engine/name_messages.h"
#include "engine/recorder.h"
#include "engine/work.h"

/* The messages of one comm. The driver's alone, but for posting. */
typedef struct ddl__messages ddl__messages;

/* Links and names by rank, NULL for our own link; borrowed, as the engine's lock. NULL when out of
 * memory. */
ddl__messages *ddl__messages_create(int rank, int size, ddl__link *const *links, char *const *names,
                                    pthread_mutex_t *lock);

/* Record sends and receives here, which outlives the messages. */
void ddl__messages_record(ddl__messages *messages, ddl__recorder *recorder);
void ddl__messages_destroy(ddl__messages *messages);

/* A send or receive was submitted. Under the lock. */
void ddl__messages_post(ddl__messages *messages, ddl_work *work);

/* Do what can be done now; false when that is nothing. */
bool ddl__messages_run(ddl__messages *messages);

/* Operations by name are under way: name messages may come from everywhere, and a stream shares the
 * links.
 */
void ddl__messages_set_named(ddl__messages *messages, bool named);

/* Send a name message to another rank, behind earlier ones; false when out of memory. */
bool ddl__messages_send_name(ddl__messages *messages, int rank, unsigned kind, const void *payload,
                             size_t bytes);

/* Whether name messages wait to be sent; NULL has none. Any thread. */
bool ddl__messages_names_unsent(const ddl__messages *messages);

/* The next name message that has come, or NULL; the caller frees it. */
ddl__name_message *ddl__messages_take_name(ddl__messages *messages);

/* The works that have succeeded since the last call, linked by `next`. */
ddl_work *ddl__messages_finished(ddl__messages *messages);

/* After a run that found nothing to do: notice who will never come. */
void ddl__messages_check_peers(ddl__messages *messages);

/* Notice what has run past its limit. */
void ddl__messages_check_limits(ddl__messages *messages);

/* No work runs past its limit before this moment. */
int64_t ddl__messages_deadline(const ddl__messages *messages);

/* What has gone wrong and ends the comm, in words; DDL_OK: nothing. */
ddl_status ddl__messages_failure(const ddl__messages *messages, const char **text);

/* The comm is dead: forget all works; they are returned, linked by `next`. Under the lock. */
ddl_work *ddl__messages_drop(ddl__messages *messages);

/* As the link's verb, on the links that matter now. */
void ddl__messages_sleeping(ddl__messages *messages, bool asleep);

#endif
