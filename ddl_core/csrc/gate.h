/* gate.h - what the two types of the module _gate share. */
#ifndef DDL_GATE_H
#define DDL_GATE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ddl/ddl.h"

/* gate.c: see there for how the two counters work together. */
typedef struct gate {
    PyObject_HEAD ddl_comm *comm; /* not to be used by who is not inside */
    int64_t size;
    PyObject *dropped; /* the comm's list of works given up while pending, with what they use */
    atomic_long inside;
    atomic_bool shut;
} gate;

/* False: the comm is closed. */
static inline bool gate_enter(gate *self)
{
    atomic_fetch_add_explicit(&self->inside, 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&self->shut, memory_order_seq_cst))
        return true;
    atomic_fetch_sub_explicit(&self->inside, 1, memory_order_release);
    return false;
}

static inline void gate_leave(gate *self)
{
    atomic_fetch_sub_explicit(&self->inside, 1, memory_order_release);
}

enum { SLICE_MS = 100 }; /* how long one call waits, so that Ctrl-C is noticed in between */

/* The status of a work after at most so many milliseconds; DDL_ETIMEDOUT while it is pending.
 * Without the GIL. */
ddl_status gate_wait(gate *self, ddl_work *work, int milliseconds);

/* Give a work up. A pending one goes to the comm, with what must live until it is complete; it is
 * known to nobody else. Calls no Python code, and leaves an exception that is set as it is. */
void gate_drop(gate *self, ddl_work *work, PyObject *first, PyObject *second);

/* pending.c: an asynchronous operation of the Python type `type`, a subclass of Pending; takes over
 * the work, also when it fails. */
PyObject *pending_make(PyTypeObject *type, PyObject *comm, PyObject *entrance, ddl_work *work,
                       PyObject *result, PyObject *keep);
PyObject *pending_type(void);

#endif
