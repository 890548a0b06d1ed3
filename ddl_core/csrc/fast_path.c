/* SPDX-License-Identifier: Apache-2.0 */
/* fast_path.c - a comm's handle for Python: its users, and a fast path for plain calls.
 *
 * A FastPath counts the threads that use the handle in the library, so that closing the comm knows
 * when to free it. Its operations take NumPy arrays only, and of the options only a name. They need
 * a tenth of the time of the general way (arguments.py), which is most of the time of a short
 * operation. They decline other calls by returning False, or None where they return an array; the
 * general way then says what is wrong.
 *
 * Design notes. A thread increments `users` before it reads `closed`; the closing thread sets
 * `closed` before it reads `users`. Both are sequentially consistent, so one of the two sees the
 * other, also without a GIL.
 *
 * A blocking call waits in slices and checks for signals in between. It releases the GIL and waits
 * its first slice within the library. Small operations of ranks that have a core each are submitted
 * with the GIL held, which is cheaper: if the peers are there already, they complete at once. Where
 * ranks share cores, most calls have to wait. Then a submission would let the library's thread wake
 * up every millisecond, and each time it takes the core from a rank. An interrupted call leaves its
 * operation running, like an asynchronous one, so its arrays are kept.
 *
 * Arrays are read through NumPy's array interface, __array_struct__: unlike the buffer protocol it
 * can be used with the stable ABI of Python 3.10. */
#include "fast_path.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static PyObject *interface_name, *array_type, *name_option;

/* ------------------------------------------------------------------------------------- arrays */

/* As the array interface, version 3, lays it out. */
typedef struct array_interface {
    int two;
    int dimensions;
    char kind;
    int item_bytes;
    int flags;
    Py_ssize_t *shape, *strides;
    void *data;
    PyObject *description;
} array_interface;

enum { C_CONTIGUOUS = 0x1, NATIVE_ORDER = 0x200, WRITABLE = 0x400 };

typedef struct plain {
    void *data;
    int64_t count;
    ddl_dtype dtype;
} plain;

/* What was being read is something else: leave no exception set. */
static bool decline(void)
{
    PyErr_Clear();
    return false;
}

/* 0 for the types that the array interface has no letter for, like bfloat16. */
static ddl_dtype dtype_of(const array_interface *array)
{
    static const struct {
        char kind;
        int bytes;
        ddl_dtype dtype;
    } known[] = {{'f', 4, DDL_F32}, {'f', 8, DDL_F64},  {'f', 2, DDL_F16},  {'i', 8, DDL_I64},
                 {'i', 4, DDL_I32}, {'u', 1, DDL_U8},   {'b', 1, DDL_BOOL}, {'i', 1, DDL_I8},
                 {'i', 2, DDL_I16}, {'u', 2, DDL_U16},  {'u', 4, DDL_U32},  {'u', 8, DDL_U64},
                 {'c', 8, DDL_C64}, {'c', 16, DDL_C128}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].kind == array->kind && known[i].bytes == array->item_bytes)
            return known[i].dtype;
    return 0;
}

/* The memory of a NumPy array; false, with no exception set, for anything else. It lives as long as
 * the array, which the caller holds. */
static bool read_array(PyObject *object, bool write, plain *out)
{
    if ((PyObject *)Py_TYPE(object) != array_type)
        return false;
    PyObject *capsule = PyObject_GetAttr(object, interface_name);
    const array_interface *array = capsule ? PyCapsule_GetPointer(capsule, NULL) : NULL;
    int needed = C_CONTIGUOUS | NATIVE_ORDER | (write ? WRITABLE : 0);
    bool known = array && array->two == 2 && (array->flags & needed) == needed &&
                 (out->dtype = dtype_of(array)) != 0;
    if (known) {
        out->data = array->data;
        out->count = 1;
        for (int i = 0; i < array->dimensions; i++)
            out->count *= array->shape[i];
    }
    Py_XDECREF(capsule);
    return known || decline();
}

/* Both buffers of an operation, of one dtype; twice the same one where recv is None. */
static bool read_pair(PyObject *send, PyObject *recv, plain *from, plain *to)
{
    if (recv == Py_None) {
        if (!read_array(send, true, to))
            return false;
        *from = *to;
        return true;
    }
    return read_array(send, false, from) && read_array(recv, true, to) && from->dtype == to->dtype;
}

/* ------------------------------------------------------------------------- the handle's users */

/* __enter__: counts this thread in any case; returns whether the comm is open. In C, since Python
 * checks for signals between the entry and the body of a context manager written in Python, and a
 * thread interrupted there would be counted forever. */
static PyObject *enter(PyObject *self, PyObject *none)
{
    fast_path *path = (fast_path *)self;
    (void)none;
    atomic_fetch_add_explicit(&path->users, 1, memory_order_seq_cst);
    return PyBool_FromLong(!atomic_load_explicit(&path->closed, memory_order_seq_cst));
}

static PyObject *leave(PyObject *self, PyObject *none)
{
    (void)none;
    fast_path_leave((fast_path *)self);
    Py_RETURN_NONE;
}

static PyObject *fast_path_close(PyObject *self, PyObject *none)
{
    (void)none;
    fast_path *path = (fast_path *)self;
    atomic_store_explicit(&path->closed, true, memory_order_seq_cst);
    return PyLong_FromLong(atomic_load_explicit(&path->users, memory_order_seq_cst));
}

/* ---------------------------------------------------------------------------- the operations */

/* True, or the exception. False for what the library refuses, with nothing changed: the general way
 * says why in Python's terms. */
static PyObject *outcome(ddl_status status)
{
    if (status == DDL_OK)
        Py_RETURN_TRUE;
    if (status == DDL_EINVAL)
        Py_RETURN_FALSE;
    PyObject *lib = PyImport_ImportModule("ddl_core.base._lib");
    PyObject *error = lib ? PyObject_CallMethod(lib, "to_error", "i", (int)status) : NULL;
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(lib);
    return NULL;
}

enum { SMALL = 512 }; /* elements; see the design notes */

ddl_status fast_path_wait(fast_path *self, ddl_work *work, int milliseconds)
{
    if (fast_path_enter(self)) {
        ddl_status status = ddl_work_wait(work, milliseconds);
        fast_path_leave(self);
        return status;
    }
    /* Closed, which completes its works. */
    ddl_status status = ddl_work_test(work);
    if (status != DDL_INPROGRESS)
        return status;
    struct timespec pause = {.tv_nsec = 1000000};
    nanosleep(&pause, NULL);
    return DDL_ETIMEDOUT;
}

void fast_path_drop(fast_path *self, ddl_work *work, PyObject *first, PyObject *second)
{
    if (ddl_work_test(work) != DDL_INPROGRESS) {
        ddl_work_destroy(work);
        return;
    }
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *entry = Py_BuildValue("(N(OO))", PyLong_FromVoidPtr(work), first, second);
    if (!entry || PyList_Append(self->dropped, entry)) {
        /* Out of memory: they are never freed. */
        Py_INCREF(first);
        Py_INCREF(second);
    }
    Py_XDECREF(entry);
    PyErr_Restore(kind, value, trace);
}

/* The result of a call: complete if it has no work, else it waits for the work. */
static PyObject *finish(fast_path *path, ddl_status status, ddl_work *work, PyObject *send,
                        PyObject *recv)
{
    if (!work)
        return outcome(status);
    status = ddl_work_test(work);
    while (status == DDL_INPROGRESS || status == DDL_ETIMEDOUT) {
        PyThreadState *state = PyEval_SaveThread();
        status = fast_path_wait(path, work, SLICE_MS);
        PyEval_RestoreThread(state);
        if (status == DDL_ETIMEDOUT && PyErr_CheckSignals()) {
            fast_path_drop(path, work, send, recv);
            return NULL;
        }
    }
    ddl_work_destroy(work);
    return outcome(status);
}

/* Return the result of `call`, which reads and writes so many elements of these arrays, takes the
 * options `given` and stores `work`. Only the general way destroys dropped works, so it takes the
 * call if there are any. */
#define RUN(path, elements, send, recv, call)                                                      \
    do {                                                                                           \
        ddl_work *work = NULL;                                                                     \
        PyThreadState *outside = NULL;                                                             \
        if (PyList_Size((path)->dropped) || !fast_path_enter(path))                                \
            Py_RETURN_FALSE;                                                                       \
        if ((elements) > SMALL || (path)->shares_cores) {                                          \
            options.wait_ms = SLICE_MS;                                                            \
            outside = PyEval_SaveThread();                                                         \
        }                                                                                          \
        const ddl_options *given = outside || options.name ? &options : NULL;                      \
        ddl_status status = (call);                                                                \
        if (outside)                                                                               \
            PyEval_RestoreThread(outside);                                                         \
        fast_path_leave(path);                                                                     \
        return finish(path, status, work, send, recv);                                             \
    } while (0)

#define DEFAULTS ((ddl_options){.struct_size = sizeof(ddl_options)})

/* An int; false, with no exception set, for anything else. */
static bool read_int(PyObject *object, int *out)
{
    long value = PyLong_Check(object) ? PyLong_AsLong(object) : -1;
    PyErr_Clear();
    *out = (int)value;
    return value >= 0 && value <= INT_MAX;
}

/* The name of a matched operation, or None: by order. False, with no exception set, for anything
 * else. It lives as long as the object. */
static bool read_name(PyObject *object, ddl_options *out)
{
    Py_ssize_t length = 0;
    *out = DEFAULTS;
    if (object == Py_None)
        return true;
    if (PyUnicode_Check(object))
        out->name = PyUnicode_AsUTF8AndSize(object, &length);
    PyErr_Clear();
    return out->name && length && strlen(out->name) == (size_t)length;
}

/* The options of a call: none, or a name. False, with no exception set, for anything else. */
static bool read_options(PyObject *options, ddl_options *out)
{
    *out = DEFAULTS;
    Py_ssize_t n = PyDict_Size(options);
    if (n == 0)
        return true;
    PyObject *name = n == 1 ? PyDict_GetItemWithError(options, name_option) : NULL;
    return name ? read_name(name, out) : decline();
}

/* An op by its name; false, with no exception set, for anything else. */
static bool read_op(const fast_path *path, PyObject *object, ddl_op *out)
{
    PyObject *value =
        PyUnicode_CheckExact(object) ? PyDict_GetItemWithError(path->ops, object) : NULL;
    *out = value ? (ddl_op)PyLong_AsLong(value) : 0;
    return value || decline();
}

typedef struct reduction {
    plain from, to;
    ddl_op op;
    ddl_options options;
} reduction;

/* (send, recv, op, options) */
static bool read_reduction(const fast_path *path, PyObject *const *args, Py_ssize_t n,
                           reduction *out)
{
    return n == 4 && read_op(path, args[2], &out->op) && read_options(args[3], &out->options) &&
           read_pair(args[0], args[1], &out->from, &out->to) && out->from.count == out->to.count;
}

static ddl_status reduce(fast_path *path, const reduction *r, const ddl_options *given,
                         ddl_work **work)
{
    return ddl_allreduce(path->comm, r->from.data, r->to.data, r->to.count, r->to.dtype, r->op,
                         given, work);
}

static PyObject *run_allreduce(fast_path *path, PyObject *const *args, const reduction *r)
{
    ddl_options options = r->options;
    RUN(path, r->to.count, args[0], args[1], reduce(path, r, given, &work));
}

/* allreduce(send, recv, op, options): the array with the result, or None. */
static PyObject *fast_path_allreduce(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    fast_path *path = (fast_path *)self;
    reduction r;
    if (!read_reduction(path, args, n, &r))
        Py_RETURN_NONE;
    PyObject *taken = run_allreduce(path, args, &r);
    PyObject *result = taken == Py_False ? Py_None : args[1] == Py_None ? args[0] : args[1];
    Py_XDECREF(taken);
    return taken ? Py_NewRef(result) : NULL;
}

/* allreduce_async(comm, type, send, recv, op, options): the work, or None. */
static PyObject *fast_path_allreduce_async(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    fast_path *path = (fast_path *)self;
    reduction r;
    if (n < 2 || PyList_Size(path->dropped) || !read_reduction(path, args + 2, n - 2, &r) ||
        !fast_path_enter(path))
        Py_RETURN_NONE;
    ddl_work *work;
    PyThreadState *state = PyEval_SaveThread();
    ddl_status status = reduce(path, &r, r.options.name ? &r.options : NULL, &work);
    PyEval_RestoreThread(state);
    fast_path_leave(path);
    if (status == DDL_EINVAL)
        Py_RETURN_NONE;
    if (status != DDL_OK)
        return outcome(status);
    PyObject *recv = args[3] == Py_None ? args[2] : args[3];
    return pending_make((PyTypeObject *)args[1], args[0], self, work, recv, args[2]);
}

static PyObject *fast_path_broadcast(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    fast_path *path = (fast_path *)self;
    plain buffer;
    int root;
    if (n != 2 || !read_int(args[1], &root) || !read_array(args[0], true, &buffer))
        Py_RETURN_FALSE;
    ddl_options options = DEFAULTS;
    RUN(path, buffer.count, args[0], Py_None,
        ddl_broadcast(path->comm, buffer.data, buffer.count, buffer.dtype, root, given, &work));
}

static PyObject *fast_path_allgather(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    fast_path *path = (fast_path *)self;
    plain from, to;
    if (n != 2 || args[1] == Py_None || !read_pair(args[0], args[1], &from, &to) ||
        from.count * path->size != to.count)
        Py_RETURN_FALSE;
    ddl_options options = DEFAULTS;
    RUN(path, to.count, args[0], args[1],
        ddl_allgather(path->comm, from.data, to.data, from.count, from.dtype, given, &work));
}

static PyObject *fast_path_reduce_scatter(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    fast_path *path = (fast_path *)self;
    plain from, to;
    ddl_op op;
    if (n != 3 || args[1] == Py_None || !read_op(path, args[2], &op) ||
        !read_pair(args[0], args[1], &from, &to) || to.count * path->size != from.count)
        Py_RETURN_FALSE;
    ddl_options options = DEFAULTS;
    RUN(path, from.count, args[0], args[1],
        ddl_reduce_scatter(path->comm, from.data, to.data, to.count, to.dtype, op, given, &work));
}

static PyObject *fast_path_barrier(PyObject *self, PyObject *none)
{
    (void)none;
    fast_path *path = (fast_path *)self;
    ddl_options options = DEFAULTS;
    RUN(path, 0, Py_None, Py_None, ddl_barrier(path->comm, given, &work));
}

/* drop(work, keep): fast_path_drop, of a work's address. */
static PyObject *fast_path_drop_work(PyObject *self, PyObject *args)
{
    PyObject *address, *keep;
    if (!PyArg_ParseTuple(args, "OO:drop", &address, &keep))
        return NULL;
    ddl_work *work = PyLong_AsVoidPtr(address);
    if (!work)
        return NULL;
    fast_path_drop((fast_path *)self, work, keep, Py_None);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------------------------- the module */

/* FastPath(handle, dropped, ops): of the ddl_comm at this address. */
static PyObject *fast_path_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *handle, *dropped, *ops;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "OOO", &handle, &dropped, &ops))
        return NULL;
    ddl_comm *comm = PyLong_AsVoidPtr(handle);
    if (PyErr_Occurred())
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    fast_path *self = (fast_path *)allocate(type, 0);
    if (self) {
        self->comm = comm;
        self->size = ddl_comm_size(comm);
        self->shares_cores = ddl_comm_local_size(comm) > sysconf(_SC_NPROCESSORS_ONLN);
        self->dropped = Py_NewRef(dropped);
        self->ops = Py_NewRef(ops);
        atomic_init(&self->users, 0);
        atomic_init(&self->closed, false);
    }
    return (PyObject *)self;
}

static void fast_path_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    Py_XDECREF(((fast_path *)self)->dropped);
    Py_XDECREF(((fast_path *)self)->ops);
    release(self);
    Py_DECREF(type);
}

static PyObject *fast_path_users(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(atomic_load_explicit(&((fast_path *)self)->users, memory_order_seq_cst));
}

#define OPERATION(name)                                                                            \
    {                                                                                              \
#name, (PyCFunction)(void (*)(void))fast_path_##name, METH_FASTCALL, NULL                  \
    }
static PyMethodDef fast_path_methods[] = {{"__enter__", enter, METH_NOARGS, NULL},
                                          {"__exit__", leave, METH_VARARGS, NULL},
                                          {"close", fast_path_close, METH_NOARGS, NULL},
                                          {"barrier", fast_path_barrier, METH_NOARGS, NULL},
                                          {"drop", fast_path_drop_work, METH_VARARGS, NULL},
                                          OPERATION(allreduce),
                                          OPERATION(allreduce_async),
                                          OPERATION(broadcast),
                                          OPERATION(allgather),
                                          OPERATION(reduce_scatter),
                                          {NULL, NULL, 0, NULL}};
static PyGetSetDef fast_path_properties[] = {{"users", fast_path_users, NULL, NULL, NULL},
                                             {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot fast_path_slots[] = {{Py_tp_new, fast_path_new},
                                        {Py_tp_dealloc, fast_path_dealloc},
                                        {Py_tp_methods, fast_path_methods},
                                        {Py_tp_getset, fast_path_properties},
                                        {0, NULL}};
static PyType_Spec fast_path_spec = {.name = "ddl_core._fast_path.FastPath",
                                     .basicsize = sizeof(fast_path),
                                     .flags = Py_TPFLAGS_DEFAULT,
                                     .slots = fast_path_slots};

/* address(array): where a NumPy array's elements begin, as an int; faster than the ways that
 * NumPy itself offers to Python. */
static PyObject *address_of(PyObject *module, PyObject *array)
{
    (void)module;
    PyObject *capsule = PyObject_GetAttr(array, interface_name);
    const array_interface *found = capsule ? PyCapsule_GetPointer(capsule, NULL) : NULL;
    PyObject *result = found ? PyLong_FromVoidPtr(found->data) : NULL;
    Py_XDECREF(capsule);
    return result;
}

/* test(work), destroy(work): of a work's address, not destroyed yet. */
static PyObject *test(PyObject *module, PyObject *work)
{
    (void)module;
    ddl_work *pending = PyLong_AsVoidPtr(work);
    return pending ? PyLong_FromLong(ddl_work_test(pending)) : NULL;
}

static PyObject *destroy(PyObject *module, PyObject *work)
{
    (void)module;
    ddl_work_destroy(PyLong_AsVoidPtr(work));
    Py_RETURN_NONE;
}

/* Python drops exceptions that its exit handlers raise, and the exit code with them. */
static bool exit_failed;

static void fail_at_exit(int status)
{
    if (!exit_failed || status != 0)
        return;
    fflush(NULL);
    _exit(1);
}

#ifdef __GLIBC__
static void fail_at_exit_with(int status, void *unused)
{
    (void)unused;
    fail_at_exit(status);
}
#else
static void fail_at_any_exit(void)
{
    fail_at_exit(0);
}
#endif

static PyObject *fail_exit(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    exit_failed = true;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"address", address_of, METH_O, NULL},
                                  {"test", test, METH_O, NULL},
                                  {"destroy", destroy, METH_O, NULL},
                                  {"fail_exit", fail_exit, METH_NOARGS, NULL},
                                  {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_fast_path", .m_size = -1,
                                        .m_methods = functions};

PyMODINIT_FUNC PyInit__fast_path(void)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *module = numpy ? PyModule_Create(&definition) : NULL;
    PyObject *type = module ? PyType_FromSpec(&fast_path_spec) : NULL;
    array_type = type ? PyObject_GetAttrString(numpy, "ndarray") : NULL;
    interface_name = array_type ? PyUnicode_InternFromString("__array_struct__") : NULL;
    name_option = interface_name ? PyUnicode_InternFromString("name") : NULL;
    PyObject *pending = name_option ? pending_type() : NULL;
    Py_XDECREF(numpy);
    /* Among the first to be registered, so that it is called among the last. */
#ifdef __GLIBC__
    on_exit(fail_at_exit_with, NULL);
#else
    atexit(fail_at_any_exit);
#endif
    if (pending && !PyModule_AddObject(module, "Pending", pending)) {
        if (!PyModule_AddObject(module, "FastPath", type))
            return module;
    } else {
        Py_XDECREF(pending);
    }
    Py_XDECREF(type);
    Py_XDECREF(module);
    return NULL;
}
