/* SPDX-License-Identifier: Apache-2.0 */
/* pending.c - an asynchronous operation in Python: it keeps the arrays alive, and destroys or drops
 * the work when it is collected.
 *
 * The base of ddl_core.Work, which adds what not every operation needs. In C, since creating,
 * waiting for and collecting a Work in Python would take longer than a short operation.
 *
 * It holds the GIL except during the wait itself, so several threads may wait.
 *
 * Its comm may refer to it in turn, as to queued works, so it supports garbage collection, and
 * leaves it to the others to break such a cycle. */
#include "fast_path.h"

#include <stddef.h>
#include <structmember.h>

typedef struct pending {
    PyObject_HEAD PyObject *comm; /* the ddl_core.Comm */
    PyObject *path;               /* its FastPath */
    PyObject *result, *keep; /* what wait returns; what must live until it is complete, then NULL */
    PyObject *sender;        /* where a receive stores the rank that it came from; or NULL */
    ddl_work *work;
} pending;

static void *slot(PyTypeObject *type, int which)
{
    return PyType_GetSlot(type, which);
}

PyObject *pending_make(PyTypeObject *type, PyObject *comm, PyObject *path, ddl_work *work,
                       PyObject *result, PyObject *keep)
{
    pending *self = (pending *)((allocfunc)slot(type, Py_tp_alloc))(type, 0);
    if (!self) { /* its arrays cannot be kept: wait for its end */
        PyThreadState *state = PyEval_SaveThread();
        while (fast_path_wait((fast_path *)path, work, SLICE_MS) == DDL_ETIMEDOUT)
            ;
        PyEval_RestoreThread(state);
        ddl_work_destroy(work);
        return NULL;
    }
    self->comm = Py_NewRef(comm);
    self->path = Py_NewRef(path);
    self->result = Py_NewRef(result);
    self->keep = Py_NewRef(keep);
    self->work = work;
    return (PyObject *)self;
}

/* Pending(comm, fast_path, slot, result, keep, sender): takes the work out of the slot, so
 * that an interrupted caller knows whether it still owns the work. */
static PyObject *pending_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *comm, *path, *slot_address, *result, *keep, *sender;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "OOOOOO", &comm, &path, &slot_address, &result, &keep, &sender))
        return NULL;
    ddl_work **from = PyLong_AsVoidPtr(slot_address), *work = from ? *from : NULL;
    if (from)
        *from = NULL;
    PyObject *self = work ? pending_make(type, comm, path, work, result, keep) : NULL;
    if (self && sender != Py_None)
        ((pending *)self)->sender = Py_NewRef(sender);
    return self;
}

static int pending_traverse(PyObject *object, visitproc visit, void *arg)
{
    pending *self = (pending *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->comm);
    Py_VISIT(self->path);
    Py_VISIT(self->result);
    Py_VISIT(self->keep);
    Py_VISIT(self->sender);
    return 0;
}

/* Drop a work that is under way: the comm gets it and its arrays. A finalizer, since the garbage
 * collector calls those before it clears anything. */
static void pending_finalize(PyObject *object)
{
    pending *self = (pending *)object;
    if (!self->work || ddl_work_test(self->work) != DDL_INPROGRESS)
        return;
    fast_path_drop((fast_path *)self->path, self->work, self->keep ? self->keep : Py_None,
                   self->result);
    self->work = NULL;
}

static void pending_dealloc(PyObject *object)
{
    pending *self = (pending *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    pending_finalize(object); /* if it was not called yet */
    ddl_work_destroy(self->work);
    Py_XDECREF(self->comm);
    Py_XDECREF(self->path);
    Py_XDECREF(self->result);
    Py_XDECREF(self->keep);
    Py_XDECREF(self->sender);
    ((freefunc)slot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* The status after at most so many milliseconds; DDL_ETIMEDOUT while it is pending. */
static ddl_status look(pending *self, int milliseconds)
{
    ddl_status status = ddl_work_test(self->work);
    if (status != DDL_INPROGRESS)
        return status;
    if (!milliseconds)
        return DDL_ETIMEDOUT;
    PyThreadState *state = PyEval_SaveThread();
    status = fast_path_wait((fast_path *)self->path, self->work, milliseconds);
    PyEval_RestoreThread(state);
    return status;
}

static PyObject *pending_look(PyObject *self, PyObject *milliseconds)
{
    long value = PyLong_AsLong(milliseconds);
    if (value == -1 && PyErr_Occurred())
        return NULL;
    return PyLong_FromLong(
        look((pending *)self, value < 0 || value > SLICE_MS ? SLICE_MS : (int)value));
}

/* wait(): without a limit. With one it calls `_wait_for`; `_failed` raises errors. */
static PyObject *pending_wait(PyObject *object, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"timeout", NULL};
    pending *self = (pending *)object;
    PyObject *timeout = Py_None;
    bool given = PyTuple_Size(args) || (keywords && PyDict_Size(keywords));
    if (given && !PyArg_ParseTupleAndKeywords(args, keywords, "|O:wait", names, &timeout))
        return NULL;
    if (timeout != Py_None)
        return PyObject_CallMethod(object, "_wait_for", "O", timeout);
    ddl_status status;
    while ((status = look(self, SLICE_MS)) == DDL_ETIMEDOUT)
        if (PyErr_CheckSignals())
            return NULL;
    Py_CLEAR(self->keep);
    if (status != DDL_OK)
        return PyObject_CallMethod(object, "_failed", "i", (int)status);
    return Py_NewRef(self->result);
}

/* done(): whether it is complete. */
static PyObject *pending_done(PyObject *object, PyObject *none)
{
    pending *self = (pending *)object;
    (void)none;
    if (ddl_work_test(self->work) == DDL_INPROGRESS)
        Py_RETURN_FALSE;
    Py_CLEAR(self->keep);
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(
    wait_text,
    "wait($self, /, timeout=None)\n--\n\n"
    "Wait until the operation is complete and return the array that holds its result (None "
    "if there\nis none). Waiting again returns, or raises, the same.\n\n"
    "timeout: seconds, 0 only looks; None: no limit but the operation's own.\n"
    "Raises TimedOut after `timeout`, the work then being pending still; else what the "
    "operation ended\nwith: PeerLost, Mismatch, Aborted, Expired.");
PyDoc_STRVAR(done_text, "done($self, /)\n--\n\n"
                        "Whether the operation is complete, with whatever result. Does not block.");
static PyMethodDef methods[] = {
    {"wait", (PyCFunction)(void (*)(void))pending_wait, METH_VARARGS | METH_KEYWORDS, wait_text},
    {"done", pending_done, METH_NOARGS, done_text},
    {"_look", pending_look, METH_O, NULL},
    {NULL, NULL, 0, NULL}};
static PyMemberDef members[] = {{"_comm", T_OBJECT, offsetof(pending, comm), READONLY, NULL},
                                {"_sender", T_OBJECT, offsetof(pending, sender), READONLY, NULL},
                                {"_result", T_OBJECT, offsetof(pending, result), READONLY, NULL},
                                {"_address", T_PYSSIZET, offsetof(pending, work), READONLY, NULL},
                                {NULL, 0, 0, 0, NULL}};
static PyType_Slot slots[] = {{Py_tp_new, pending_new},
                              {Py_tp_dealloc, pending_dealloc},
                              {Py_tp_traverse, pending_traverse},
                              {Py_tp_finalize, pending_finalize},
                              {Py_tp_methods, methods},
                              {Py_tp_members, members},
                              {0, NULL}};
static PyType_Spec spec = {.name = "ddl_core._fast_path.Pending",
                           .basicsize = sizeof(pending),
                           .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                           .slots = slots};

PyObject *pending_type(void)
{
    return PyType_FromSpec(&spec);
}
