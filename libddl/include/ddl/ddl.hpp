// SPDX-License-Identifier: Apache-2.0
/* ddl.hpp - ddl.h for C++11 and later: owning handles, exceptions, dtypes from element types.
 *
 *     ddl::Endpoint endpoint;
 *     ddl::Comm comm = endpoint.rendezvous();
 *     comm.allreduce(x.data(), x.data(), x.size());                       // blocking, in place
 *     ddl::Work work = comm.allreduce_async(x.data(), x.data(), x.size());
 *     work.wait();
 *
 * This header needs no library but libddl. The comments of ddl.h on each function, its threads and
 * its buffers apply here too. Every failure throws ddl::Error. Objects own their handles; they can
 * be moved, not copied. As in ddl.h, destroy groups before their comm and comms before their
 * endpoint; C++ does so if they are declared in the order above. Buffers are pointers to elements.
 * If one is null, name the type: comm.gather<float>(x, nullptr, n, 0). For dtypes that are known
 * only at run time, call ddl.h with get(). */
#ifndef DDL_HPP
#define DDL_HPP

#include <complex>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "ddl.h"

namespace ddl
{

/* The exception of a failed call: what() is the message (ddl_last_error), status() the status. */
class Error : public std::runtime_error
{
  public:
    Error(ddl_status status, const char *message) : std::runtime_error(message), status_(status)
    {
    }

    ddl_status status() const noexcept
    {
        return status_;
    }

  private:
    ddl_status status_;
};

/* dtype_of<T>::value is the ddl_dtype of an element type. To add your own type, for example half:
 *     template <> struct ddl::dtype_of<half> : ddl::dtype_constant<DDL_F16> {}; */
template <ddl_dtype dtype> struct dtype_constant {
    static constexpr ddl_dtype value = dtype;
};

namespace detail
{

inline void check(ddl_status status)
{
    if (status != DDL_OK)
        throw Error(status, ddl_last_error());
}

/* The integer dtype of this size and sign. */
template <std::size_t size, bool is_signed> struct integer;
template <> struct integer<1, true> : dtype_constant<DDL_I8> {
};
template <> struct integer<1, false> : dtype_constant<DDL_U8> {
};
template <> struct integer<2, true> : dtype_constant<DDL_I16> {
};
template <> struct integer<2, false> : dtype_constant<DDL_U16> {
};
template <> struct integer<4, true> : dtype_constant<DDL_I32> {
};
template <> struct integer<4, false> : dtype_constant<DDL_U32> {
};
template <> struct integer<8, true> : dtype_constant<DDL_I64> {
};
template <> struct integer<8, false> : dtype_constant<DDL_U64> {
};

struct Destroy {
    void operator()(ddl_endpoint *endpoint) const noexcept
    {
        ddl_endpoint_destroy(endpoint);
    }

    void operator()(ddl_comm *comm) const noexcept
    {
        ddl_comm_destroy(comm);
    }

    void operator()(ddl_group *group) const noexcept
    {
        ddl_group_destroy(group);
    }

    void operator()(ddl_order *order) const noexcept
    {
        ddl_order_destroy(order);
    }

    /* The caller may free the buffers next, so the work must be complete. */
    void operator()(ddl_work *work) const noexcept
    {
        ddl_work_wait(work, -1);
        ddl_work_destroy(work);
    }
};

template <class Handle> using Owner = std::unique_ptr<Handle, Destroy>;

struct Free {
    void operator()(void *memory) const noexcept
    {
        ddl_free(memory);
    }
};

} // namespace detail

template <class T>
struct dtype_of; /* not defined for other types; to add your own type, see dtype_of above */
template <> struct dtype_of<bool> : dtype_constant<DDL_BOOL> {
    static_assert(sizeof(bool) == 1, "DDL_BOOL is one byte");
};
template <> struct dtype_of<signed char> : detail::integer<1, true> {
};
template <> struct dtype_of<unsigned char> : detail::integer<1, false> {
};
template <> struct dtype_of<short> : detail::integer<sizeof(short), true> {
};
template <> struct dtype_of<unsigned short> : detail::integer<sizeof(short), false> {
};
template <> struct dtype_of<int> : detail::integer<sizeof(int), true> {
};
template <> struct dtype_of<unsigned> : detail::integer<sizeof(unsigned), false> {
};
template <> struct dtype_of<long> : detail::integer<sizeof(long), true> {
};
template <> struct dtype_of<unsigned long> : detail::integer<sizeof(long), false> {
};
template <> struct dtype_of<long long> : detail::integer<sizeof(long long), true> {
};
template <> struct dtype_of<unsigned long long> : detail::integer<sizeof(long long), false> {
};
template <> struct dtype_of<float> : dtype_constant<DDL_F32> {
};
template <> struct dtype_of<double> : dtype_constant<DDL_F64> {
};
template <> struct dtype_of<std::complex<float>> : dtype_constant<DDL_C64> {
};
template <> struct dtype_of<std::complex<double>> : dtype_constant<DDL_C128> {
};

/* The structs of ddl.h with struct_size set and all other fields at their defaults. */
struct EndpointConfig : ddl_endpoint_config {
    EndpointConfig() : ddl_endpoint_config()
    {
        struct_size = sizeof(ddl_endpoint_config);
    }
};

struct CommConfig : ddl_comm_config {
    CommConfig() : ddl_comm_config()
    {
        struct_size = sizeof(ddl_comm_config);
    }
};

struct Options : ddl_options {
    Options() : ddl_options()
    {
        struct_size = sizeof(ddl_options);
    }
};

struct Counters : ddl_counters {
    Counters() : ddl_counters()
    {
        struct_size = sizeof(ddl_counters);
    }
};

/* One asynchronous operation. The destructor waits until it is complete, because its buffers may be
 * freed next. It drops the result; call wait or test to get it. */
class Work
{
  public:
    Work() = default;
    explicit Work(ddl_work *work) noexcept : work_(work)
    {
    }

    /* Wait until complete. Throws if the operation failed. An empty work is complete: the call that
     * returned it has waited (Options::wait_ms). */
    void wait()
    {
        if (get())
            detail::check(ddl_work_wait(get(), -1));
    }

    /* Wait until complete, at most timeout_ms. Returns false if that was too short. */
    bool wait_for(std::int64_t timeout_ms)
    {
        return !get() || complete(ddl_work_wait(get(), timeout_ms), DDL_ETIMEDOUT);
    }

    /* Return true if complete. Throws if the operation failed. */
    bool test()
    {
        return !get() || complete(ddl_work_test(get()), DDL_INPROGRESS);
    }

    ddl_work *get() const noexcept
    {
        return work_.get();
    }

  private:
    static bool complete(ddl_status status, ddl_status pending)
    {
        if (status == pending)
            return false;
        detail::check(status);
        return true;
    }

    detail::Owner<ddl_work> work_;
};

/* The order of an ordered sum: the rank that passes the operand of each logical worker. */
class Order
{
  public:
    struct Part {
        int first, size; /* workers */
    };

    Order(const std::vector<int> &owners, int ranks)
    {
        ddl_order *order = nullptr;
        int workers = static_cast<int>(owners.size());
        detail::check(ddl_order_create(owners.data(), workers, ranks, &order));
        order_.reset(order);
    }

    std::vector<Part> parts(int rank) const
    {
        int n = 0;
        detail::check(ddl_order_parts(get(), rank, nullptr, nullptr, 0, &n));
        std::vector<int> firsts(static_cast<std::size_t>(n)), sizes(firsts.size());
        detail::check(ddl_order_parts(get(), rank, firsts.data(), sizes.data(), n, &n));
        std::vector<Part> all;
        for (std::size_t k = 0; k < firsts.size(); k++)
            all.push_back(Part{firsts[k], sizes[k]});
        return all;
    }

    ddl_order *get() const noexcept
    {
        return order_.get();
    }

  private:
    detail::Owner<ddl_order> order_;
};

/* Add two arrays, with the same bits as ordered sums. */
template <class T> void add(T *sum, const T *left, const T *right, std::int64_t count)
{
    detail::check(ddl_add(sum, left, right, count, dtype_of<T>::value));
}

/* Return the elements in a wire format, and convert them back. */
inline std::vector<unsigned char> pack(const float *values, std::int64_t count, ddl_wire wire)
{
    std::vector<unsigned char> packed(ddl_packed_size(count, wire));
    detail::check(ddl_pack(packed.data(), values, count, wire));
    return packed;
}

inline void unpack(float *values, const unsigned char *packed, std::int64_t count, ddl_wire wire)
{
    detail::check(ddl_unpack(values, packed, count, wire));
}

class Comm;

/* Operations that are submitted as one. Pass options() to their blocking forms to add them:
 *     comm.allreduce(x, x, n, DDL_SUM, group.options()); */
class Group
{
  public:
    explicit Group(Comm &comm);

    /* Return the options that add an operation to this group. */
    Options options() const
    {
        Options options;
        options.group = get();
        return options;
    }

    void submit(const Options &options = Options())
    {
        detail::check(ddl_group_submit(get(), &options, nullptr));
    }

    Work submit_async(const Options &options = Options())
    {
        ddl_work *work = nullptr;
        detail::check(ddl_group_submit(get(), &options, &work));
        return Work(work);
    }

    ddl_group *get() const noexcept
    {
        return group_.get();
    }

  private:
    detail::Owner<ddl_group> group_;
};

/* A group of ranks and their operations, as in ddl.h. Each operation blocks; its _async form
 * returns a Work. Arguments are in ddl.h's order. Counts are in elements. A null pointer means what
 * it means in ddl.h. */
class Comm
{
  public:
    Comm() = default;
    explicit Comm(ddl_comm *comm) noexcept : comm_(comm)
    {
    }

    /* ---- the group ---- */

    int rank() const noexcept
    {
        return ddl_comm_rank(get());
    }

    int size() const noexcept
    {
        return ddl_comm_size(get());
    }

    int local_rank() const noexcept
    {
        return ddl_comm_local_rank(get());
    }

    int local_size() const noexcept
    {
        return ddl_comm_local_size(get());
    }

    /* Return DDL_OK while the comm works, else the error that ended it. */
    ddl_status status() const noexcept
    {
        return ddl_comm_status(get());
    }

    void abort(const std::string &reason)
    {
        detail::check(ddl_comm_abort(get(), reason.c_str()));
    }

    /* Return an empty comm if color is negative. */
    Comm split(int color, int key, const CommConfig &config = CommConfig())
    {
        ddl_comm *part = nullptr;
        detail::check(ddl_comm_split(get(), color, key, &config, &part));
        return Comm(part);
    }

    Comm subset(const std::vector<int> &ranks, const CommConfig &config = CommConfig())
    {
        ddl_comm *part = nullptr;
        int n = static_cast<int>(ranks.size());
        detail::check(ddl_comm_subset(get(), ranks.data(), n, &config, &part));
        return Comm(part);
    }

    Comm duplicate(const CommConfig &config = CommConfig())
    {
        ddl_comm *twin = nullptr;
        detail::check(ddl_comm_duplicate(get(), &config, &twin));
        return Comm(twin);
    }

    /* Declare this rank dead, as if its process had exited. */
    void expel(int rank, const std::string &reason)
    {
        detail::check(ddl_comm_expel(get(), rank, reason.c_str()));
    }

    /* Return a comm of the survivors. This comm must be dead. */
    Comm shrink(const CommConfig &config = CommConfig())
    {
        ddl_comm *next = nullptr;
        detail::check(ddl_comm_shrink(get(), &config, &next));
        return Comm(next);
    }

    /* Return the ranks known to be dead. */
    std::vector<int> failed() const
    {
        std::vector<int> ranks(static_cast<std::size_t>(size()));
        int n = 0;
        detail::check(ddl_comm_failed(get(), ranks.data(), size(), &n));
        ranks.resize(static_cast<std::size_t>(n));
        return ranks;
    }

    /* Return the comm's state and last operations as JSON. */
    std::string report() const
    {
        return text(ddl_comm_report);
    }

    std::string trace() const
    {
        return text(ddl_comm_trace);
    }

    Counters counters() const
    {
        Counters counters;
        detail::check(ddl_comm_counters(get(), &counters));
        return counters;
    }

    int fd()
    {
        int fd = -1;
        detail::check(ddl_comm_fd(get(), &fd));
        return fd;
    }

    /* Return the number of works stored; 0 if none finished within timeout_ms. */
    int completed(ddl_work **works, void **users, int max, std::int64_t timeout_ms)
    {
        int taken = 0;
        ddl_status status = ddl_comm_completed(get(), works, users, max, timeout_ms, &taken);
        if (status == DDL_ETIMEDOUT)
            return 0;
        detail::check(status);
        return taken;
    }

    ddl_comm *get() const noexcept
    {
        return comm_.get();
    }

    explicit operator bool() const noexcept
    {
        return get() != nullptr;
    }

    /* ---- collective operations ---- */

    template <class T>
    void allreduce(const T *send, T *recv, std::int64_t count, ddl_op op = DDL_SUM,
                   const Options &options = Options())
    {
        run(ddl_allreduce, send, recv, count, dtype_of<T>::value, op, &options);
    }

    template <class T>
    Work allreduce_async(const T *send, T *recv, std::int64_t count, ddl_op op = DDL_SUM,
                         const Options &options = Options())
    {
        return start(ddl_allreduce, send, recv, count, dtype_of<T>::value, op, &options);
    }

    /* Element type of the parts: T; float if T is a half type. */
    template <class T>
    void allreduce_ordered(const Order &order, const void *const *parts, T *recv,
                           std::int64_t count, ddl_op op = DDL_SUM,
                           const Options &options = Options())
    {
        run(ddl_allreduce_ordered, order.get(), parts, recv, count, dtype_of<T>::value, op,
            &options);
    }

    template <class T>
    Work allreduce_ordered_async(const Order &order, const void *const *parts, T *recv,
                                 std::int64_t count, ddl_op op = DDL_SUM,
                                 const Options &options = Options())
    {
        return start(ddl_allreduce_ordered, order.get(), parts, recv, count, dtype_of<T>::value, op,
                     &options);
    }

    /* As allreduce_ordered, but recv gets this rank's block of `count` elements. */
    template <class T>
    void reduce_scatter_ordered(const Order &order, const void *const *parts, T *recv,
                                std::int64_t count, ddl_op op = DDL_SUM,
                                const Options &options = Options())
    {
        run(ddl_reduce_scatter_ordered, order.get(), parts, recv, count, dtype_of<T>::value, op,
            &options);
    }

    template <class T>
    Work reduce_scatter_ordered_async(const Order &order, const void *const *parts, T *recv,
                                      std::int64_t count, ddl_op op = DDL_SUM,
                                      const Options &options = Options())
    {
        return start(ddl_reduce_scatter_ordered, order.get(), parts, recv, count,
                     dtype_of<T>::value, op, &options);
    }

    template <class T>
    void reduce_scatterv_ordered(const Order &order, const void *const *parts, T *recv,
                                 const std::int64_t *counts, ddl_op op = DDL_SUM,
                                 const Options &options = Options())
    {
        run(ddl_reduce_scatterv_ordered, order.get(), parts, recv, counts, dtype_of<T>::value, op,
            &options);
    }

    template <class T>
    Work reduce_scatterv_ordered_async(const Order &order, const void *const *parts, T *recv,
                                       const std::int64_t *counts, ddl_op op = DDL_SUM,
                                       const Options &options = Options())
    {
        return start(ddl_reduce_scatterv_ordered, order.get(), parts, recv, counts,
                     dtype_of<T>::value, op, &options);
    }

    template <class T>
    void reduce_scatter(const T *send, T *recv, std::int64_t count, ddl_op op = DDL_SUM,
                        const Options &options = Options())
    {
        run(ddl_reduce_scatter, send, recv, count, dtype_of<T>::value, op, &options);
    }

    template <class T>
    Work reduce_scatter_async(const T *send, T *recv, std::int64_t count, ddl_op op = DDL_SUM,
                              const Options &options = Options())
    {
        return start(ddl_reduce_scatter, send, recv, count, dtype_of<T>::value, op, &options);
    }

    template <class T>
    void reduce_scatterv(const T *send, T *recv, const std::int64_t *counts, ddl_op op = DDL_SUM,
                         const Options &options = Options())
    {
        run(ddl_reduce_scatterv, send, recv, counts, dtype_of<T>::value, op, &options);
    }

    template <class T>
    Work reduce_scatterv_async(const T *send, T *recv, const std::int64_t *counts,
                               ddl_op op = DDL_SUM, const Options &options = Options())
    {
        return start(ddl_reduce_scatterv, send, recv, counts, dtype_of<T>::value, op, &options);
    }

    template <class T>
    void allgather(const T *send, T *recv, std::int64_t count, const Options &options = Options())
    {
        run(ddl_allgather, send, recv, count, dtype_of<T>::value, &options);
    }

    template <class T>
    Work allgather_async(const T *send, T *recv, std::int64_t count,
                         const Options &options = Options())
    {
        return start(ddl_allgather, send, recv, count, dtype_of<T>::value, &options);
    }

    template <class T>
    void allgatherv(const T *send, T *recv, const std::int64_t *counts, const std::int64_t *displs,
                    const Options &options = Options())
    {
        run(ddl_allgatherv, send, recv, counts, displs, dtype_of<T>::value, &options);
    }

    template <class T>
    Work allgatherv_async(const T *send, T *recv, const std::int64_t *counts,
                          const std::int64_t *displs, const Options &options = Options())
    {
        return start(ddl_allgatherv, send, recv, counts, displs, dtype_of<T>::value, &options);
    }

    template <class T>
    void broadcast(T *buffer, std::int64_t count, int root, const Options &options = Options())
    {
        run(ddl_broadcast, buffer, count, dtype_of<T>::value, root, &options);
    }

    template <class T>
    Work broadcast_async(T *buffer, std::int64_t count, int root,
                         const Options &options = Options())
    {
        return start(ddl_broadcast, buffer, count, dtype_of<T>::value, root, &options);
    }

    template <class T>
    void reduce(const T *send, T *recv, std::int64_t count, ddl_op op, int root,
                const Options &options = Options())
    {
        run(ddl_reduce, send, recv, count, dtype_of<T>::value, op, root, &options);
    }

    template <class T>
    Work reduce_async(const T *send, T *recv, std::int64_t count, ddl_op op, int root,
                      const Options &options = Options())
    {
        return start(ddl_reduce, send, recv, count, dtype_of<T>::value, op, root, &options);
    }

    template <class T>
    void gather(const T *send, T *recv, std::int64_t count, int root,
                const Options &options = Options())
    {
        run(ddl_gather, send, recv, count, dtype_of<T>::value, root, &options);
    }

    template <class T>
    Work gather_async(const T *send, T *recv, std::int64_t count, int root,
                      const Options &options = Options())
    {
        return start(ddl_gather, send, recv, count, dtype_of<T>::value, root, &options);
    }

    template <class T>
    void gatherv(const T *send, std::int64_t count, T *recv, const std::int64_t *counts,
                 const std::int64_t *displs, int root, const Options &options = Options())
    {
        run(ddl_gatherv, send, count, recv, counts, displs, dtype_of<T>::value, root, &options);
    }

    template <class T>
    Work gatherv_async(const T *send, std::int64_t count, T *recv, const std::int64_t *counts,
                       const std::int64_t *displs, int root, const Options &options = Options())
    {
        return start(ddl_gatherv, send, count, recv, counts, displs, dtype_of<T>::value, root,
                     &options);
    }

    template <class T>
    void scatter(const T *send, T *recv, std::int64_t count, int root,
                 const Options &options = Options())
    {
        run(ddl_scatter, send, recv, count, dtype_of<T>::value, root, &options);
    }

    template <class T>
    Work scatter_async(const T *send, T *recv, std::int64_t count, int root,
                       const Options &options = Options())
    {
        return start(ddl_scatter, send, recv, count, dtype_of<T>::value, root, &options);
    }

    template <class T>
    void scatterv(const T *send, const std::int64_t *counts, const std::int64_t *displs, T *recv,
                  std::int64_t count, int root, const Options &options = Options())
    {
        run(ddl_scatterv, send, counts, displs, recv, count, dtype_of<T>::value, root, &options);
    }

    template <class T>
    Work scatterv_async(const T *send, const std::int64_t *counts, const std::int64_t *displs,
                        T *recv, std::int64_t count, int root, const Options &options = Options())
    {
        return start(ddl_scatterv, send, counts, displs, recv, count, dtype_of<T>::value, root,
                     &options);
    }

    template <class T>
    void alltoall(const T *send, T *recv, std::int64_t count, const Options &options = Options())
    {
        run(ddl_alltoall, send, recv, count, dtype_of<T>::value, &options);
    }

    template <class T>
    Work alltoall_async(const T *send, T *recv, std::int64_t count,
                        const Options &options = Options())
    {
        return start(ddl_alltoall, send, recv, count, dtype_of<T>::value, &options);
    }

    template <class T>
    void alltoallv(const T *send, const std::int64_t *send_counts, const std::int64_t *send_displs,
                   T *recv, const std::int64_t *recv_counts, const std::int64_t *recv_displs,
                   const Options &options = Options())
    {
        run(ddl_alltoallv, send, send_counts, send_displs, recv, recv_counts, recv_displs,
            dtype_of<T>::value, &options);
    }

    template <class T>
    Work alltoallv_async(const T *send, const std::int64_t *send_counts,
                         const std::int64_t *send_displs, T *recv, const std::int64_t *recv_counts,
                         const std::int64_t *recv_displs, const Options &options = Options())
    {
        return start(ddl_alltoallv, send, send_counts, send_displs, recv, recv_counts, recv_displs,
                     dtype_of<T>::value, &options);
    }

    void barrier(const Options &options = Options())
    {
        run(ddl_barrier, &options);
    }

    Work barrier_async(const Options &options = Options())
    {
        return start(ddl_barrier, &options);
    }

    /* ---- messages ---- */

    template <class T>
    void send(const T *buffer, std::int64_t count, int dest, int tag,
              const Options &options = Options())
    {
        run(ddl_send, buffer, count, dtype_of<T>::value, dest, tag, &options);
    }

    template <class T>
    Work send_async(const T *buffer, std::int64_t count, int dest, int tag,
                    const Options &options = Options())
    {
        return start(ddl_send, buffer, count, dtype_of<T>::value, dest, tag, &options);
    }

    template <class T>
    void recv(T *buffer, std::int64_t count, int source, int tag, int *sender = nullptr,
              const Options &options = Options())
    {
        run(ddl_recv, buffer, count, dtype_of<T>::value, source, tag, sender, &options);
    }

    template <class T>
    Work recv_async(T *buffer, std::int64_t count, int source, int tag, int *sender = nullptr,
                    const Options &options = Options())
    {
        return start(ddl_recv, buffer, count, dtype_of<T>::value, source, tag, sender, &options);
    }

    template <class T>
    void sendrecv(const T *send, std::int64_t send_count, int dest, int send_tag, T *recv,
                  std::int64_t recv_count, int source, int recv_tag,
                  const Options &options = Options())
    {
        run(ddl_sendrecv, send, send_count, dest, send_tag, recv, recv_count, source, recv_tag,
            dtype_of<T>::value, &options);
    }

    template <class T>
    Work sendrecv_async(const T *send, std::int64_t send_count, int dest, int send_tag, T *recv,
                        std::int64_t recv_count, int source, int recv_tag,
                        const Options &options = Options())
    {
        return start(ddl_sendrecv, send, send_count, dest, send_tag, recv, recv_count, source,
                     recv_tag, dtype_of<T>::value, &options);
    }

  private:
    /* Call `write` until its text fits: the length may grow from one call to the next. */
    std::string text(ddl_status (*write)(ddl_comm *, char *, std::size_t, std::size_t *)) const
    {
        std::string words(4096, '\0');
        std::size_t length = 0;
        ddl_status status;
        while ((status = write(get(), &words[0], words.size(), &length)) == DDL_EINVAL &&
               length >= words.size())
            words.resize(2 * length);
        detail::check(status);
        words.resize(length);
        return words;
    }

    /* Call `call` with this comm as first argument and a null work, so that it blocks. */
    template <class Call, class... Arguments> void run(Call call, Arguments... arguments)
    {
        detail::check(call(get(), arguments..., nullptr));
    }

    template <class Call, class... Arguments> Work start(Call call, Arguments... arguments)
    {
        ddl_work *work = nullptr;
        detail::check(call(get(), arguments..., &work));
        return Work(work);
    }

    detail::Owner<ddl_comm> comm_;
};

inline Group::Group(Comm &comm)
{
    ddl_group *group = nullptr;
    detail::check(ddl_group_create(comm.get(), &group));
    group_.reset(group);
}

/* Elements in memory that members on this host read in place (ddl_alloc). */
template <class T> using Buffer = std::unique_ptr<T[], detail::Free>;

/* This process's identity and its listening ports. It must outlive its comms. */
class Endpoint
{
  public:
    typedef std::vector<unsigned char> Address;

    explicit Endpoint(const EndpointConfig &config = EndpointConfig())
    {
        ddl_endpoint *endpoint = nullptr;
        detail::check(ddl_endpoint_create(&config, &endpoint));
        endpoint_.reset(endpoint);
    }

    Address address() const
    {
        Address address(DDL_ADDRESS_MAX);
        std::size_t length = 0;
        detail::check(ddl_endpoint_address(get(), address.data(), address.size(), &length));
        address.resize(length);
        return address;
    }

    /* Allocate `count` zeroed elements. They may outlive the endpoint. */
    template <class T> Buffer<T> allocate(std::size_t count)
    {
        typedef typename std::enable_if<std::is_trivially_copyable<T>::value, T>::type Element;
        void *memory = nullptr;
        detail::check(ddl_alloc(get(), count * sizeof(Element), &memory));
        return Buffer<T>(static_cast<Element *>(memory));
    }

    /* Join a group whose rank i has addresses[i] (ddl_comm_create). */
    Comm connect(const std::vector<Address> &addresses, int rank,
                 const CommConfig &config = CommConfig())
    {
        std::vector<const void *> starts;
        std::vector<std::size_t> lengths;
        for (const Address &address : addresses) {
            starts.push_back(address.data());
            lengths.push_back(address.size());
        }
        ddl_comm *comm = nullptr;
        detail::check(ddl_comm_create(get(), starts.data(), lengths.data(), rank,
                                      static_cast<int>(addresses.size()), &config, &comm));
        return Comm(comm);
    }

    /* Create a comm of the ranks that the environment names, or that connect to url. */
    Comm rendezvous(const char *url = nullptr, int rank = -1, int size = 0,
                    const CommConfig &config = CommConfig())
    {
        ddl_comm *comm = nullptr;
        detail::check(ddl_rendezvous(get(), url, rank, size, &config, &comm));
        return Comm(comm);
    }

    ddl_endpoint *get() const noexcept
    {
        return endpoint_.get();
    }

  private:
    detail::Owner<ddl_endpoint> endpoint_;
};

} // namespace ddl

#endif
