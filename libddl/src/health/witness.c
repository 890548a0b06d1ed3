/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to the launcher. Its functions are called under the detector's lock, except for
 * opening and closing. */
#include "health/witness.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forks.h"
#include "base/log.h"
#include "base/time_limits.h"
#include "net/socket.h"

enum { REMEMBERED = 256 };

typedef struct record {
    char type[8];
    ddl__digest endpoint;
} record;
_Static_assert(sizeof(record) == 24, "the launcher's format");

enum { CONTINUED = 16 };

/* The attempt of an agreement after which a process may have continued without some members of a
 * comm. */
typedef struct continued {
    uint64_t comm, attempt;
} continued;

typedef struct end {
    ddl__digest endpoint;
    continued continued[CONTINUED];
    unsigned n_continued;
} end;

struct ddl__witness {
    int fd; /* the connection; -1 if the launcher has exited */
    ddl__digest endpoint;
    record in;
    size_t have;                 /* number of bytes in `in` */
    end ended[REMEMBERED], next; /* the last ended processes; the one whose records arrive */
    unsigned n_ended;
};

static bool witness_send(const ddl__witness *w, const char type[8], ddl__digest content)
{
    record r = {.endpoint = content};
    memcpy(r.type, type, sizeof r.type);
    return send(w->fd, &r, sizeof r, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof r;
}

/* Connect to the socket of this name, which must belong to the user of this process. Return -1 with
 * errno on failure. */
static int witness_dial(const char *name)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length + 1 > sizeof to.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(to.sun_path + 1, name, length);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
    int fd = ddl__dial((struct sockaddr *)&to, size, ddl__now() + DDL__WITNESS_DIAL);
    if (fd < 0)
        return -1;
    if (ddl__same_user(fd))
        return ddl__guard(fd);
    close(fd);
    errno = EPERM;
    return -1;
}

ddl__witness *ddl__witness_open(const ddl__digest *endpoint, const char *name)
{
    ddl__witness *w = name ? calloc(1, sizeof *w) : (ddl__witness *)NULL;
    if (!w)
        return NULL;
    w->endpoint = *endpoint;
    w->fd = witness_dial(name);
    if (w->fd >= 0 && witness_send(w, "ddlwitn1", w->endpoint))
        return w;
    ddl__log(DDL__WARN,
             "cannot connect to the launcher at DDL_WITNESS=\"%s\": %s; it cannot confirm that a "
             "process has "
             "ended",
             name, strerror(errno));
    ddl__close_guarded(w->fd);
    free(w);
    return NULL;
}

void ddl__witness_close(ddl__witness *w)
{
    if (!w)
        return;
    if (w->fd >= 0)
        witness_send(w, "ddlleave", w->endpoint);
    ddl__close_guarded(w->fd);
    free(w);
}

int ddl__witness_fd(const ddl__witness *w)
{
    return w->fd;
}

bool ddl__witness_next(ddl__witness *w, ddl__digest *ended)
{
    while (w->fd >= 0) {
        ssize_t n = recv(w->fd, (char *)&w->in + w->have, sizeof w->in - w->have, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return false;
        if (n <= 0) { /* the launcher has exited */
            ddl__close_guarded(w->fd);
            w->fd = -1;
            return false;
        }
        w->have += (size_t)n;
        if (w->have < sizeof w->in)
            continue;
        w->have = 0;
        if (!memcmp(w->in.type, "ddlcontn", sizeof w->in.type)) {
            memcpy(&w->next.continued[w->next.n_continued++ % CONTINUED], &w->in.endpoint,
                   sizeof *w->next.continued);
            continue;
        }
        if (memcmp(w->in.type, "ddlended", sizeof w->in.type) != 0)
            continue;
        *ended = w->next.endpoint = w->in.endpoint;
        w->ended[w->n_ended++ % REMEMBERED] = w->next;
        w->next = (end){.n_continued = 0};
        return true;
    }
    return false;
}

void ddl__witness_continues(const ddl__witness *w, const ddl__digest *comm, uint32_t attempt)
{
    if (w && w->fd >= 0)
        witness_send(w, "ddlcontn", (ddl__digest){{comm->words[0], attempt}});
}

bool ddl__witness_saw(const ddl__witness *w, const ddl__digest *endpoint, const ddl__digest *comm,
                      uint32_t *attempt)
{
    *attempt = 0;
    for (unsigned i = 0; w && i < w->n_ended && i < REMEMBERED; i++) {
        const end *e = &w->ended[i];
        if (!ddl__digest_equal(e->endpoint, *endpoint))
            continue;
        for (unsigned k = 0; k < e->n_continued && k < CONTINUED; k++)
            if ((e->continued[k].comm == comm->words[0] || !e->continued[k].comm) &&
                e->continued[k].attempt > *attempt)
                *attempt = (uint32_t)e->continued[k].attempt;
        return true;
    }
    return false;
}
