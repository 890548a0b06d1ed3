/* SPDX-License-Identifier: Apache-2.0 */
/* frames.h - what travels on a message link: spans whose signature says what they are. */
#ifndef DDL_ENGINE_CALLS_FRAMES_H
#define DDL_ENGINE_CALLS_FRAMES_H

#include "net/link.h"

typedef enum ddl__frame_kind {
    DDL__EAGER = 1, /* a whole message */
    DDL__OFFER,     /* a message that waits for its receive */
    DDL__ACCEPT,    /* the receive is there: send */
    DDL__DATA,      /* the next part of an accepted message */
    DDL__CREDIT,    /* returns credit of eager messages */
    DDL__ANNOUNCE,  /* name messages: an operation was called by its name */
    DDL__ORDER      /* ... and is to be run */
} ddl__frame_kind;

/* Unused fields are zero. */
typedef struct ddl__frame {
    unsigned kind;
    unsigned dtype; /* EAGER, OFFER */
    int64_t count;  /* EAGER, OFFER: elements; CREDIT */
    uint32_t tag;   /* EAGER, OFFER */
    uint32_t id;    /* of its sender: OFFER, ACCEPT */
    uint32_t your;  /* of its receiver, in place of the tag: ACCEPT, DATA */
} ddl__frame;

/* Longest name message: a signature and a name. */
enum { DDL__NAME_MESSAGE_MAX = 16 + DDL_NAME_MAX };

/* The spans of the stream that shares a message link are no frames: where a frame has its kind,
 * their signature has 0. */
enum { DDL__SEQUENCE_BITS = 24 };
static inline bool ddl__is_frame(const ddl__signature *s)
{
    return s->words[0] >> 56;
}

/* Kind 8, dtype 8, count 48 bits; tag or `your` 32, id 32. */
static inline ddl__signature ddl__frame_encode(const ddl__frame *f)
{
    return (ddl__signature){
        {(uint64_t)f->kind << 56 | (uint64_t)f->dtype << 48 | (uint64_t)f->count,
         (uint64_t)(f->tag | f->your) << 32 | f->id}};
}

static inline ddl__frame ddl__frame_decode(const ddl__signature *s)
{
    uint64_t a = s->words[0], b = s->words[1];
    ddl__frame f = {.kind = (unsigned)(a >> 56),
                    .dtype = (unsigned)(a >> 48 & 0xff),
                    .count = (int64_t)(a & (((uint64_t)1 << 48) - 1)),
                    .id = (uint32_t)b};
    if (f.kind == DDL__ACCEPT || f.kind == DDL__DATA)
        f.your = (uint32_t)(b >> 32);
    else
        f.tag = (uint32_t)(b >> 32);
    return f;
}

#endif
