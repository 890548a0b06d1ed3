/* forks.h - closes our descriptors in a forked child. Otherwise the children of a process, such as
 * data loader workers, would keep its connections open after its end. The child cannot use the
 * objects that it inherits. */
#ifndef DDL_BASE_FORKS_H
#define DDL_BASE_FORKS_H

/* Close this descriptor in every child that is forked before ddl__close_guarded. Returns fd, which
 * may be negative. */
int ddl__guard(int fd);

/* Close a descriptor here; a negative one is ignored. */
void ddl__close_guarded(int fd);

/* The number of forks between the first process and this one. An object stores it when it is
 * created. */
unsigned ddl__generation(void);

#endif
