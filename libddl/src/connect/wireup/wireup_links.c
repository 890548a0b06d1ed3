/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the links of two members from a connection, and manages control connections. */
#include "connect/wireup/wireup_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/socket.h"

void ddl__wireup_name_connection(const ddl__address *own, int fd, char *name, size_t size)
{
    char ours[INET6_ADDRSTRLEN], theirs[INET6_ADDRSTRLEN];
    ddl__socket_ip(fd, false, ours);
    ddl__socket_ip(fd, true, theirs);
    int i = ddl__address_find(own, ours);
    const char *interface = i < 0 ? "" : own->ips[i].name;
    snprintf(name, size, "%s%s%s to %s", interface, interface[0] ? " " : "", ours, theirs);
}

/* Create a link from a connection, or add the connection to a link as a lane. */
static ddl__link *make_tcp(const ddl__wireup *w, ddl__link *link, unsigned lane, int fd,
                           const ddl__session *session, ddl__side side)
{
    char name[128];
    ddl__seal *seal;
    ddl__wireup_name_connection(ddl__endpoint_address(w->endpoint), fd, name, sizeof name);
    if (ddl__session_seal(ddl__endpoint_job(w->endpoint), session, fd, side, &seal) != DDL_OK)
        return NULL;
    if (!lane)
        link = ddl__tcp_link_create(w->slots, fd, name, seal);
    else if (!ddl__tcp_link_add_lane(link, fd, name, seal))
        link = NULL;
    if (!link)
        ddl__seal_destroy(seal);
    return link;
}

/* Keep the connection of links over shared memory as the control connection. */
static void keep_as_control(const ddl__wireup *w, int peer, int fd)
{
    ddl__control_dial_close(&w->controls[peer]);
    w->controls[peer] = (ddl__control_dial){.fd = fd, .open = true};
}

/* Create the unopened links of a pair from its control connection. */
static bool make_pair(const ddl__wireup *w, int peer, const ddl__session *session, ddl__side side,
                      int fd)
{
    ddl__control_dial *control = &w->controls[peer];
    ddl__seal *seal;
    if (ddl__session_seal(ddl__endpoint_job(w->endpoint), session, fd, side, &seal) != DDL_OK)
        return false;
    if (!ddl__first_use_add(w->first_use, peer, w->slots, &w->links[peer], &w->messages[peer])) {
        ddl__seal_destroy(seal);
        return false;
    }
    ddl__control_dial_close(control);
    *control = (ddl__control_dial){.fd = fd, .open = true, .seal = seal};
    return true;
}

bool ddl__wireup_make_links(const ddl__wireup *w, int peer, const ddl__hello *hello,
                            const ddl__session *session, ddl__side side, int fd, int passed,
                            uint64_t pointer)
{
    ddl__link *link = NULL;
    uint8_t kind = hello->kind;
    if (kind == DDL__CONN_PAIR)
        return make_pair(w, peer, session, side, fd);
    if (ddl__is_over_tcp(kind)) {
        link = kind == DDL__CONN_TCP ? w->links[peer] : w->messages[peer];
        link = make_tcp(w, link, hello->lane, fd, session, side);
        if (!link)
            return false;
    } else {
        ddl__arena *theirs = kind == DDL__CONN_INPROC ? (ddl__arena *)(uintptr_t)pointer
                             : passed >= 0            ? ddl__arena_open(passed, (unsigned)w->rank)
                                                      : NULL;
        if (theirs)
            link = ddl__shm_link_create(w->arena, (unsigned)peer, theirs, (unsigned)w->rank,
                                        kind == DDL__CONN_INPROC);
        else if (passed < 0)
            ddl__fail(DDL_EREFUSED, "the hello did not pass shared memory");
        if (theirs && !link)
            ddl__arena_drop(theirs);
        if (link)
            keep_as_control(w, peer, fd);
    }
    if (passed >= 0)
        close(passed);
    if (kind != DDL__CONN_MESSAGES)
        w->links[peer] = link;
    if (kind != DDL__CONN_TCP)
        w->messages[peer] = ddl__is_over_tcp(kind) || !link ? link : ddl__shm_link_beside(link);
    return link;
}

ddl__control_dial *ddl__controls_create(int size)
{
    ddl__control_dial *controls = calloc((size_t)size, sizeof *controls);
    for (int i = 0; controls && i < size; i++)
        controls[i].fd = -1;
    return controls;
}

void ddl__control_dial_close(ddl__control_dial *control)
{
    if (control->fd >= 0)
        close(control->fd);
    control->fd = -1;
    control->open = false;
    ddl__seal_destroy(control->seal);
    control->seal = NULL;
    ddl__session_end(&control->session);
}

void ddl__controls_destroy(ddl__control_dial *controls, int size)
{
    for (int i = 0; controls && i < size; i++)
        ddl__control_dial_close(&controls[i]);
    free(controls);
}

void ddl__wireup_unmake_links(const ddl__wireup *w, int peer, uint8_t kind)
{
    ddl__link **made = kind == DDL__CONN_MESSAGES ? &w->messages[peer] : &w->links[peer];
    if (kind == DDL__CONN_PAIR) {
        ddl__first_use_remove(w->first_use, peer);
        w->messages[peer]->ops->destroy(w->messages[peer]);
        w->messages[peer] = NULL;
        ddl__control_dial_close(&w->controls[peer]);
    }
    (*made)->ops->destroy(*made);
    *made = NULL;
    if (ddl__is_over_tcp(kind))
        return;
    w->messages[peer] = NULL;
    ddl__control_dial_close(&w->controls[peer]);
}
