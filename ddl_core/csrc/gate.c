/* gate.c - the way from Python into a comm: who is inside, and a short path for plain calls.
 *
 * A Gate counts the threads that are in the library with a comm's handle, so that who closes the
 * comm knows when it may be freed. Its verbs take NumPy arrays and nothing else, with all options
 * as by default but for the name, and need a tenth of the time of the general way (arguments.py),
 * which for short operations is most of it. They decline other calls by returning False, so that
 * the general way tells what is wrong.
 *
 * Design notes. `inside` counts before `shut` is looked at, and who shuts looks at `inside` after
 * it: both sequentially consistent, so one of the two sees the other, also without a GIL.
 *
 * A call that is blocking waits in slices, and looks for signals in between. Small operations are
 * submitted with the GIL held, which takes less time than to give it away: whose peers are there
 * already complete at once. Larger ones wait their first slice within the library, which spares
 * them its thread. Who is interrupted leaves an operation that goes on, as if it had been
 * asynchronous, so its arrays are kept.
 *
 * Arrays are read through NumPy's array interface, its __array_struct__: unlike the buffer protocol
 * it is open to a module for all Pythons from 3.10 on. */
#include "gate.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static PyObject *interface_name, *array_type;

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
    PyErr_Clear();
    return known;
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

/* --------------------------------------------------------------------------------- the gate */

/* with gate as entered: counted in any case, and whether it was open. A context manager of C, since
 * Python looks for signals between the entrance and the body of one that is written in Python: then
 * who has been interrupted there would be inside for ever. */
static PyObject *enter(PyObject *self, PyObject *none)
{
    gate *g = (gate *)self;
    (void)none;
    atomic_fetch_add_explicit(&g->inside, 1, memory_order_seq_cst);
    return PyBool_FromLong(!atomic_load_explicit(&g->shut, memory_order_seq_cst));
}

static PyObject *leave(PyObject *self, PyObject *none)
{
    (void)none;
    gate_leave((gate *)self);
    Py_RETURN_NONE;
}

static PyObject *gate_shut(PyObject *self, PyObject *none)
{
    (void)none;
    gate *g = (gate *)self;
    atomic_store_explicit(&g->shut, true, memory_order_seq_cst);
    return PyLong_FromLong(atomic_load_explicit(&g->inside, memory_order_seq_cst));
}

/* --------------------------------------------------------------------------------- the verbs */

/* True, or the exception. False for what the library refuses, with nothing changed: the general way
 * says why in Python's terms. */
static PyObject *outcome(ddl_status status)
{
    if (status == DDL_OK)
        Py_RETURN_TRUE;
    if (status == DDL_EINVAL)
        Py_RETURN_FALSE;
    PyObject *lib = PyImport_ImportModule("ddl_core._lib");
    PyObject *error = lib ? PyObject_CallMethod(lib, "to_error", "i", (int)status) : NULL;
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_XDECREF(lib);
    return NULL;
}

enum { QUICK = 512 }; /* elements: less work than to give the GIL away */

ddl_status gate_wait(gate *self, ddl_work *work, int milliseconds)
{
    if (gate_enter(self)) {
        ddl_status status = ddl_work_wait(work, milliseconds);
        gate_leave(self);
        return status;
    }
    /* Closed, which completes its works. */
    ddl_status status = ddl_work_test(work);
    if (status != DDL_INPROGRESS)
        return status;
    struct timespec moment = {.tv_nsec = 1000000};
    nanosleep(&moment, NULL);
    return DDL_ETIMEDOUT;
}

void gate_drop(gate *self, ddl_work *work, PyObject *first, PyObject *second)
{
    if (ddl_work_test(work) != DDL_INPROGRESS) {
        ddl_work_destroy(work);
        return;
    }
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *entry = Py_BuildValue("(N(OO))", PyLong_FromVoidPtr(work), first, second);
    if (!entry || PyList_Append(self->dropped, entry)) {
        /* Without memory to remember them by, they are never freed. */
        Py_INCREF(first);
        Py_INCREF(second);
    }
    Py_XDECREF(entry);
    PyErr_Restore(kind, value, trace);
}

/* What a call has come to: complete without a work, or else when its work is. */
static PyObject *finish(gate *g, ddl_status status, ddl_work *work, PyObject *send, PyObject *recv)
{
    if (!work)
        return outcome(status);
    status = ddl_work_test(work);
    while (status == DDL_INPROGRESS || status == DDL_ETIMEDOUT) {
        PyThreadState *state = PyEval_SaveThread();
        status = gate_wait(g, work, SLICE_MS);
        PyEval_RestoreThread(state);
        if (status == DDL_ETIMEDOUT && PyErr_CheckSignals()) {
            gate_drop(g, work, send, recv);
            return NULL;
        }
    }
    ddl_work_destroy(work);
    return outcome(status);
}

/* Return what a call gives that reads and writes so many elements of these arrays. It takes
 * `given`, its options, and stores `work`. Works that were dropped are for the general way to look
 * after. */
#define RUN(g, elements, send, recv, call)                                                         \
    do {                                                                                           \
        ddl_work *work = NULL;                                                                     \
        PyThreadState *outside = NULL;                                                             \
        if (PyList_Size((g)->dropped) || !gate_enter(g))                                           \
            Py_RETURN_FALSE;                                                                       \
        if ((elements) > QUICK) {                                                                  \
            options.wait_ms = SLICE_MS;                                                            \
            outside = PyEval_SaveThread();                                                         \
        }                                                                                          \
        const ddl_options *given = outside || options.name ? &options : NULL;                      \
        ddl_status status = (call);                                                                \
        if (outside)                                                                               \
            PyEval_RestoreThread(outside);                                                         \
        gate_leave(g);                                                                             \
        return finish(g, status, work, send, recv);                                                \
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

typedef struct reduction {
    plain from, to;
    ddl_op op;
    ddl_options options;
} reduction;

/* (send, recv, op, name) */
static bool read_reduction(PyObject *const *args, Py_ssize_t n, reduction *out)
{
    int op;
    bool known = n == 4 && read_int(args[2], &op) && read_name(args[3], &out->options) &&
                 read_pair(args[0], args[1], &out->from, &out->to) &&
                 out->from.count == out->to.count;
    out->op = known ? (ddl_op)op : 0;
    return known;
}

static ddl_status reduce(gate *g, const reduction *r, const ddl_options *given, ddl_work **work)
{
    return ddl_allreduce(g->comm, r->from.data, r->to.data, r->to.count, r->to.dtype, r->op, given,
                         work);
}

static PyObject *gate_allreduce(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    gate *g = (gate *)self;
    reduction r;
    if (!read_reduction(args, n, &r))
        Py_RETURN_FALSE;
    ddl_options options = r.options;
    RUN(g, r.to.count, args[0], args[1], reduce(g, &r, given, &work));
}

/* allreduce_async(comm, type, send, recv, op, name): the work; None where the others return False.
 */
static PyObject *gate_allreduce_async(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    gate *g = (gate *)self;
    reduction r;
    if (n < 2 || PyList_Size(g->dropped) || !read_reduction(args + 2, n - 2, &r) || !gate_enter(g))
        Py_RETURN_NONE;
    ddl_work *work;
    PyThreadState *state = PyEval_SaveThread();
    ddl_status status = reduce(g, &r, r.options.name ? &r.options : NULL, &work);
    PyEval_RestoreThread(state);
    gate_leave(g);
    if (status == DDL_EINVAL)
        Py_RETURN_NONE;
    if (status != DDL_OK)
        return outcome(status);
    PyObject *recv = args[3] == Py_None ? args[2] : args[3];
    return pending_make((PyTypeObject *)args[1], args[0], self, work, recv, args[2]);
}

static PyObject *gate_broadcast(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    gate *g = (gate *)self;
    plain buffer;
    int root;
    if (n != 2 || !read_int(args[1], &root) || !read_array(args[0], true, &buffer))
        Py_RETURN_FALSE;
    ddl_options options = DEFAULTS;
    RUN(g, buffer.count, args[0], Py_None,
        ddl_broadcast(g->comm, buffer.data, buffer.count, buffer.dtype, root, given, &work));
}

static PyObject *gate_allgather(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    gate *g = (gate *)self;
    plain from, to;
    if (n != 2 || args[1] == Py_None || !read_pair(args[0], args[1], &from, &to) ||
        from.count * g->size != to.count)
        Py_RETURN_FALSE;
    ddl_options options = DEFAULTS;
    RUN(g, to.count, args[0], args[1],
        ddl_allgather(g->comm, from.data, to.data, from.count, from.dtype, given, &work));
}

static PyObject *gate_reduce_scatter(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    gate *g = (gate *)self;
    plain from, to;
    int op;
    if (n != 3 || args[1] == Py_None || !read_int(args[2], &op) ||
        !read_pair(args[0], args[1], &from, &to) || to.count * g->size != from.count)
        Py_RETURN_FALSE;
    ddl_options options = DEFAULTS;
    RUN(g, from.count, args[0], args[1],
        ddl_reduce_scatter(g->comm, from.data, to.data, to.count, to.dtype, (ddl_op)op, given,
                           &work));
}

static PyObject *gate_barrier(PyObject *self, PyObject *none)
{
    (void)none;
    gate *g = (gate *)self;
    ddl_options options = DEFAULTS;
    RUN(g, 0, Py_None, Py_None, ddl_barrier(g->comm, given, &work));
}

/* drop(work, keep): gate_drop, of a work's address. */
static PyObject *gate_drop_work(PyObject *self, PyObject *args)
{
    PyObject *address, *keep;
    if (!PyArg_ParseTuple(args, "OO:drop", &address, &keep))
        return NULL;
    ddl_work *work = PyLong_AsVoidPtr(address);
    if (!work)
        return NULL;
    gate_drop((gate *)self, work, keep, Py_None);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------------------------- the module */

/* Gate(handle, dropped): of the ddl_comm at this address. */
static PyObject *gate_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *handle, *dropped;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "OO", &handle, &dropped))
        return NULL;
    ddl_comm *comm = PyLong_AsVoidPtr(handle);
    if (PyErr_Occurred())
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    gate *self = (gate *)allocate(type, 0);
    if (self) {
        self->comm = comm;
        self->size = ddl_comm_size(comm);
        self->dropped = Py_NewRef(dropped);
        atomic_init(&self->inside, 0);
        atomic_init(&self->shut, false);
    }
    return (PyObject *)self;
}

static void gate_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    Py_XDECREF(((gate *)self)->dropped);
    release(self);
    Py_DECREF(type);
}

static PyObject *gate_inside(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(atomic_load_explicit(&((gate *)self)->inside, memory_order_seq_cst));
}

#define VERB(name)                                                                                 \
    {                                                                                              \
#name, (PyCFunction)(void (*)(void))gate_##name, METH_FASTCALL, NULL                       \
    }
static PyMethodDef gate_methods[] = {{"__enter__", enter, METH_NOARGS, NULL},
                                     {"__exit__", leave, METH_VARARGS, NULL},
                                     {"shut", gate_shut, METH_NOARGS, NULL},
                                     {"barrier", gate_barrier, METH_NOARGS, NULL},
                                     {"drop", gate_drop_work, METH_VARARGS, NULL},
                                     VERB(allreduce),
                                     VERB(allreduce_async),
                                     VERB(broadcast),
                                     VERB(allgather),
                                     VERB(reduce_scatter),
                                     {NULL, NULL, 0, NULL}};
static PyGetSetDef gate_properties[] = {{"inside", gate_inside, NULL, NULL, NULL},
                                        {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot gate_slots[] = {{Py_tp_new, gate_new},
                                   {Py_tp_dealloc, gate_dealloc},
                                   {Py_tp_methods, gate_methods},
                                   {Py_tp_getset, gate_properties},
                                   {0, NULL}};
static PyType_Spec gate_spec = {.name = "ddl_core._gate.Gate",
                                .basicsize = sizeof(gate),
                                .flags = Py_TPFLAGS_DEFAULT,
                                .slots = gate_slots};

/* address(array): where a NumPy array's elements begin, as an int; quicker than the ways that
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
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_gate", .m_size = -1,
                                        .m_methods = functions};

PyMODINIT_FUNC PyInit__gate(void)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    PyObject *module = numpy ? PyModule_Create(&definition) : NULL;
    PyObject *type = module ? PyType_FromSpec(&gate_spec) : NULL;
    array_type = type ? PyObject_GetAttrString(numpy, "ndarray") : NULL;
    interface_name = array_type ? PyUnicode_InternFromString("__array_struct__") : NULL;
    PyObject *pending = interface_name ? pending_type() : NULL;
    Py_XDECREF(numpy);
    /* Among the first to be registered, so that it is called among the last. */
#ifdef __GLIBC__
    on_exit(fail_at_exit_with, NULL);
#else
    atexit(fail_at_any_exit);
#endif
    if (pending && !PyModule_AddObject(module, "Pending", pending)) {
        if (!PyModule_AddObject(module, "Gate", type))
            return module;
    } else {
        Py_XDECREF(pending);
    }
    Py_XDECREF(type);
    Py_XDECREF(module);
    return NULL;
}
