/* SPDX-License-Identifier: Apache-2.0 */
/* fast_path.h - what the two types of the module _fast_path share. */
#ifndef DDL_FAST_PATH_H
#define DDL_FAST_PATH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ddl/ddl.h"

/* fast_path.c explains how `users` and `closed` work together. */
typedef struct fast_path {
    PyObject_HEAD ddl_comm *comm; /* for threads counted in `users` */
    int64_t size;
    bool shares_cores; /* this host has more ranks than cores */
    PyObject *dropped; /* the comm's list of works dropped while pending, with their arrays */
    PyObject *ops;     /* a dict: the number of an op by its name */
    atomic_long users;
    atomic_bool closed;
} fast_path;

/* False: the comm is closed. */
static inline bool fast_path_enter(fast_path *self)
{
    atomic_fetch_add_explicit(&self->users, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&self->closed, memory_order_seq_cst))
        return true;
    atomic_fetch_sub_explicit(&self->users, 1, memory_order_release);
    return false;
}

static inline void fast_path_leave(fast_path *self)
{
    atomic_fetch_sub_explicit(&self->users, 1, memory_order_release);
}

enum { SLICE_MS = 100 }; /* how long one call waits; signals are handled in between */

/* The status of a work after at most so many milliseconds; DDL_ETIMEDOUT while it is pending.
 * Without the GIL. */
ddl_status fast_path_wait(fast_path *self, ddl_work *work, int milliseconds);

/* Drop a work. If it is pending, the comm gets it, with what must live until it is complete. Calls
 * no Python code, and keeps an exception that is set. */
void fast_path_drop(fast_path *self, ddl_work *work, PyObject *first, PyObject *second);

/* pending.c: an asynchronous operation of the Python type `type`, a subclass of Pending; takes over
 * the work, also when it fails. */
PyObject *pending_make(PyTypeObject *type, PyObject *comm, PyObject *path, ddl_work *work,
                       PyObject *result, PyObject *keep);
PyObject *pending_type(void);

#endif
