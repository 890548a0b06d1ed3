/* SPDX-License-Identifier: Apache-2.0 */
/* frames.h - the frames on a message link: spans whose signature contains the frame. */
#ifndef DDL_ENGINE_CALLS_FRAMES_H
#define DDL_ENGINE_CALLS_FRAMES_H

#include "net/link.h"

typedef enum ddl__frame_kind {
    DDL__EAGER = 1, /* a whole message */
    DDL__OFFER,     /* a message that waits for its receive */
    DDL__ACCEPT,    /* accepts an offer: the receive is posted */
    DDL__DATA,      /* the next part of an accepted message */
    DDL__CREDIT,    /* returns credit that eager messages have used */
    DDL__ANNOUNCE,  /* name message: an operation was called by its name */
    DDL__ORDER      /* name message: run the operation of this name */
} ddl__frame_kind;

/* A frame. Comments name the kinds that use a field; in other kinds it is 0. */
typedef struct ddl__frame {
    unsigned kind;
    unsigned dtype; /* EAGER, OFFER */
    int64_t count;  /* EAGER, OFFER: elements; CREDIT: bytes */
    uint32_t tag;   /* EAGER, OFFER */
    uint32_t id;    /* OFFER, ACCEPT: the number that the frame's sender has given its work */
    uint32_t your;  /* ACCEPT, DATA: the number that the frame's receiver has given its work;
                     * stored in place of the tag */
} ddl__frame;

/* Longest name message: a signature and a name. */
enum { DDL__NAME_MESSAGE_MAX = 16 + DDL_NAME_MAX };

/* The named stream shares the message links, and its spans are not frames: their signature has 0 in
 * the bits that hold a frame's kind. */
enum { DDL__SEQUENCE_BITS = 24 };
static inline bool ddl__is_frame(const ddl__signature *s)
{
    return s->words[0] >> 56;
}

/* Layout: kind 8 bits, dtype 8, count 48; tag or `your` 32, id 32. */
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
