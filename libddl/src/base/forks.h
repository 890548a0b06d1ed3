/* forks.h - a forked child keeps none of our descriptors, so that a peer's end is seen although its
 * children (data loaders' workers) live on. Its memory of our objects is of no use to it. */
#ifndef DDL_BASE_FORKS_H
#define DDL_BASE_FORKS_H

/* Close this descriptor in every child forked from now on, until it is closed by
 * ddl__close_guarded. Returns fd, which may be negative. */
int ddl__guard(int fd);

/* Close a descriptor here; a negative one is ignored. */
void ddl__close_guarded(int fd);

/* How many forks lie between the first process and this one: objects remember it. */
unsigned ddl__generation(void);

#endif
