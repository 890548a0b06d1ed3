/* messages.h - sends and receives: matched by source and tag, moved over links of their own. */
#ifndef DDL_ENGINE_MESSAGES_H
#define DDL_ENGINE_MESSAGES_H

#include "engine/work.h"

/* The messages of one comm. The driver's alone, but for posting. */
typedef struct ddl__messages ddl__messages;

/* Links and names by rank, NULL for our own link; borrowed. NULL when out of memory. */
ddl__messages *ddl__messages_create(int rank, int size, ddl__link *const *links,
                                    char *const *names);
void ddl__messages_destroy(ddl__messages *messages);

/* A send or receive was submitted; in order, under the engine's lock. */
void ddl__messages_post(ddl__messages *messages, ddl_work *work);

/* Whether something was posted; then it is collected, under the lock again. */
bool ddl__messages_posted(const ddl__messages *messages);
void ddl__messages_collect(ddl__messages *messages);

/* Whether works are posted, or wait for others. NULL has none. */
bool ddl__messages_pending(const ddl__messages *messages);

/* Do what can be done now; false when that is nothing. */
bool ddl__messages_run(ddl__messages *messages);

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
