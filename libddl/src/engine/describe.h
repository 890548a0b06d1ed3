/* describe.h - operations in words, for messages. */
#ifndef DDL_ENGINE_DESCRIBE_H
#define DDL_ENGINE_DESCRIBE_H

#include "engine/work.h"

enum { DDL__CALL_MAX = 128 };

/* What two ranks compare: sequence, kind, dtype, op, even or uneven, root and count. */
ddl__signature ddl__signature_of(const ddl__call *call, uint32_t sequence);

/* The same of a group: how many calls, and a digest of all of them. */
ddl__signature ddl__signature_of_group(const ddl_group *group);

/* The signature of a block's spans in an operation on uneven blocks: its count is the block's,
 * since the others' need not be known to both ranks. */
void ddl__sign_block(ddl__signature *signature, int64_t count);

/* "all-reduce"; and the kind that is called so, 0 when there is none. */
const char *ddl__kind_name(ddl__kind kind);
ddl__kind ddl__kind_named(const char *name);

/* "all-reduce(f32, 100, sum)" */
void ddl__describe_operation(char *text, size_t size, const ddl__signature *signature);

/* Whether two ranks have called the same, as far as their signatures tell: the counts of uneven
 * blocks are each rank's own. */
bool ddl__signatures_agree(const ddl__signature *one, const ddl__signature *other);

/* The same of an operation as one rank has called it: without a count where it is uneven. */
void ddl__describe_whole(char *text, size_t size, const ddl__signature *signature);

/* "all-reduce(f32, 100, sum) as operation 57" */
void ddl__describe_signature(char *text, size_t size, const ddl__signature *signature);

/* What a signature says of a call: kind, dtype, count, op and root. */
ddl__call ddl__call_of(const ddl__signature *signature);

/* "receive(f32, 100, from any rank, tag 7)": a message. */
void ddl__describe_call(char *text, size_t size, const ddl__call *call);

#endif
