// SPDX-License-Identifier: Apache-2.0
// ddl_hpp.cpp - everything in ddl.hpp, called by two ranks that are threads: each operation in both
// forms, with its result. Exit code 0: all right.
#include <ddl/ddl.hpp>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (0)

struct Half { // a user's own element type
    std::uint16_t bits;
};
namespace ddl
{
template <> struct dtype_of<Half> : dtype_constant<DDL_F16> {
};
} // namespace ddl

static_assert(ddl::dtype_of<bool>::value == DDL_BOOL, "");
static_assert(ddl::dtype_of<std::int8_t>::value == DDL_I8, "");
static_assert(ddl::dtype_of<std::uint8_t>::value == DDL_U8, "");
static_assert(ddl::dtype_of<std::int16_t>::value == DDL_I16, "");
static_assert(ddl::dtype_of<std::uint16_t>::value == DDL_U16, "");
static_assert(ddl::dtype_of<std::int32_t>::value == DDL_I32, "");
static_assert(ddl::dtype_of<std::uint32_t>::value == DDL_U32, "");
static_assert(ddl::dtype_of<std::int64_t>::value == DDL_I64, "");
static_assert(ddl::dtype_of<std::uint64_t>::value == DDL_U64, "");
static_assert(ddl::dtype_of<long long>::value == DDL_I64, "");
static_assert(ddl::dtype_of<std::size_t>::value == DDL_U64, "");
static_assert(ddl::dtype_of<float>::value == DDL_F32, "");
static_assert(ddl::dtype_of<double>::value == DDL_F64, "");
static_assert(ddl::dtype_of<std::complex<float>>::value == DDL_C64, "");
static_assert(ddl::dtype_of<std::complex<double>>::value == DDL_C128, "");
static_assert(ddl::dtype_of<Half>::value == DDL_F16, "");

template <class T> constexpr bool moves_only()
{
    return std::is_nothrow_move_constructible<T>::value &&
           std::is_nothrow_move_assignable<T>::value && !std::is_copy_constructible<T>::value &&
           !std::is_copy_assignable<T>::value;
}
static_assert(moves_only<ddl::Endpoint>() && moves_only<ddl::Comm>() && moves_only<ddl::Work>() &&
                  moves_only<ddl::Group>(),
              "handles have one owner");

typedef std::vector<int> Ints;
typedef std::vector<std::int64_t> Counts;

// The blocking form and the other must give the same.
#define BOTH(name, buffer, expected, ...)                                                          \
    do {                                                                                           \
        Ints fresh = buffer;                                                                       \
        comm.name(__VA_ARGS__);                                                                    \
        CHECK((buffer) == (expected));                                                             \
        (buffer) = fresh;                                                                          \
        ddl::Work work = comm.name##_async(__VA_ARGS__);                                           \
        work.wait();                                                                               \
        CHECK(work.test() && work.wait_for(0));                                                    \
        CHECK((buffer) == (expected));                                                             \
    } while (0)

// The elements that rank r of two gives: 10 r, 10 r + 1, ...
static void reductions(ddl::Comm &comm)
{
    const int rank = comm.rank();
    const Ints send{10 * rank, 10 * rank + 1};
    const Counts counts{2, 0};
    Ints recv(2, -1);
    BOTH(allreduce, recv, (Ints{10, 12}), send.data(), recv.data(), 2);
    recv.assign(2, -1);
    BOTH(allreduce, recv, (Ints{10, 11}), send.data(), recv.data(), 2, DDL_MAX);
    recv.assign(1, -1);
    BOTH(reduce_scatter, recv, Ints(1, 10 + 2 * rank), send.data(), recv.data(), 1);
    recv.assign(2, -1);
    BOTH(reduce_scatterv, recv, (rank == 0 ? Ints{10, 12} : Ints{-1, -1}), send.data(), recv.data(),
         counts.data());
    recv.assign(2, -1);
    BOTH(reduce, recv, (rank == 1 ? Ints{10, 12} : Ints{-1, -1}), send.data(), recv.data(), 2,
         DDL_SUM, 1);
}

static void gatherings(ddl::Comm &comm)
{
    const int rank = comm.rank();
    const Ints send{10 * rank, 10 * rank + 1}, none(4, -1);
    const Counts counts{1, 2}, displs{3, 0};
    const Ints all{0, 1, 10, 11}, placed{10, 11, -1, 0};
    Ints recv = none;
    BOTH(allgather, recv, all, send.data(), recv.data(), 2);
    recv = none;
    BOTH(allgatherv, recv, placed, send.data(), recv.data(), counts.data(), displs.data());
    recv = none;
    BOTH(gather, recv, (rank == 1 ? all : none), send.data(), recv.data(), 2, 1);
    recv = none;
    BOTH(gatherv, recv, (rank == 1 ? placed : none), send.data(),
         counts[static_cast<std::size_t>(rank)], recv.data(), counts.data(), displs.data(), 1);
}

static void scatterings(ddl::Comm &comm)
{
    const int rank = comm.rank();
    const Ints send{10 * rank, 10 * rank + 1};
    const Counts counts{1, 1}, displs{1, 0};
    Ints word(1, rank == 0 ? 42 : 0);
    BOTH(broadcast, word, Ints(1, 42), word.data(), 1, 0);
    Ints recv(1, -1);
    BOTH(scatter, recv, Ints(1, 10 + rank), send.data(), recv.data(), 1, 1);
    recv.assign(1, -1);
    BOTH(scatterv, recv, Ints(1, 11 - rank), send.data(), counts.data(), displs.data(), recv.data(),
         1, 1);
    recv.assign(2, -1);
    BOTH(alltoall, recv, (Ints{rank, 10 + rank}), send.data(), recv.data(), 1);
    recv.assign(2, -1);
    BOTH(alltoallv, recv, (Ints{11 - rank, 1 - rank}), send.data(), counts.data(), displs.data(),
         recv.data(), counts.data(), displs.data());
    {
        comm.barrier();
        comm.barrier_async().wait();
        ddl::Options waits;
        waits.wait_ms = 60000; // completes in the call, which then returns an empty work
        ddl::Work work = comm.barrier_async(waits);
        work.wait();
        CHECK(!work.get() && work.test() && work.wait_for(0));
    }
}

static void messages(ddl::Comm &comm)
{
    const int rank = comm.rank(), other = 1 - rank;
    const Ints send{10 * rank, 10 * rank + 1}, theirs{10 * other, 10 * other + 1};
    Ints recv(2, -1);
    BOTH(sendrecv, recv, theirs, send.data(), 2, other, 5, recv.data(), 2, other, 5);
    {
        Ints got(2, -1);
        int sender = -1;
        ddl::Work sent = comm.send_async(send.data(), 2, other, 7);
        comm.recv(got.data(), 2, DDL_ANY_SOURCE, 7, &sender);
        sent.wait();
        CHECK(got == theirs && sender == other);
        ddl::Work received = comm.recv_async(got.data(), 2, other, 8);
        comm.send(send.data(), 2, other, 8);
        received.wait();
    }
}

static void ordered(ddl::Comm &comm)
{
    ddl::Order order({0, 1, 0}, 2);
    std::vector<ddl::Order::Part> own = order.parts(comm.rank());
    CHECK(own.size() == (comm.rank() ? 1u : 2u) && own[0].first == comm.rank() && own[0].size == 1);
    std::vector<float> left{1, 2}, right{3, 4}, sum(2);
    const void *parts[] = {left.data(), right.data()};
    comm.allreduce_ordered(order, parts, sum.data(), 2); /* left + left + right */
    CHECK(sum[0] == 5 && sum[1] == 8);
    comm.allreduce_ordered_async(order, parts, sum.data(), 2, DDL_AVERAGE).wait();
    CHECK(sum[0] == 5 / 3.0f && sum[1] == 8 / 3.0f);
    ddl::add(sum.data(), left.data(), right.data(), 2);
    CHECK(sum[0] == 4 && sum[1] == 6);
    std::vector<unsigned char> packed = ddl::pack(sum.data(), 2, DDL_WIRE_INT4);
    CHECK(packed.size() == 3);
    ddl::unpack(left.data(), packed.data(), 2, DDL_WIRE_INT4);
    CHECK(left == sum);
}

static void groups(ddl::Comm &comm)
{
    {
        ddl::Group group(comm);
        Ints x(1, comm.rank()), y(1, comm.rank() == 0 ? 42 : 0);
        comm.allreduce(x.data(), x.data(), 1, DDL_SUM, group.options());
        comm.broadcast(y.data(), 1, 0, group.options());
        group.submit();
        CHECK(x[0] == 1 && y[0] == 42);
        group.submit_async().wait();
        CHECK(x[0] == 2);
    }
}

static void comms(ddl::Comm &comm)
{
    {
        ddl::Comm part = comm.split(comm.rank() == 0 ? 0 : -1, 0);
        CHECK(static_cast<bool>(part) == (comm.rank() == 0) && (!part || part.size() == 1));
    }
    CHECK(comm.subset({1, 0}).rank() == 1 - comm.rank());
    {
        ddl::Comm twin = comm.duplicate();
        CHECK(twin.rank() == comm.rank() && twin.size() == 2);
    }
    CHECK(comm.fd() >= 0 && comm.fd() == comm.fd());
}

static void works(ddl::Comm &comm)
{
    ddl::Options options;
    int mark = 0;
    options.queued = 1;
    options.user = &mark;
    void *user = nullptr;
    ddl_work *finished = nullptr;
    ddl::Work work = comm.barrier_async(options);
    CHECK(comm.completed(&finished, &user, 1, -1) == 1 && finished == work.get() && user == &mark);

    // A work that is dropped is complete before its buffer goes.
    for (int i = 0; i < 100; i++) {
        Ints x(1000, 1);
        comm.allreduce_async(x.data(), x.data(), 1000); // and dropped
        CHECK(x == Ints(1000, 2));
    }

    ddl::Comm empty;
    CHECK(!empty && comm && comm.status() == DDL_OK && comm.local_rank() == comm.rank() &&
          comm.local_size() == 2);
    ddl::Comm moved = std::move(comm);
    CHECK(moved && !comm);
    comm = std::move(moved);
    CHECK(comm && !moved);
}

static void errors(ddl::Comm &comm)
{
    int x = 0;
    try {
        comm.broadcast(&x, 1, 17);
        CHECK(!"refused");
    } catch (const ddl::Error &error) {
        CHECK(error.status() == DDL_EINVAL);
        CHECK(error.what() == std::string("root is 17; must be from 0 to 1"));
    }
    comm.barrier();
    if (comm.rank() == 0)
        comm.abort("enough");
    try {
        comm.barrier_async().wait();
        CHECK(!"aborted");
    } catch (const std::runtime_error &error) {
        CHECK(std::string(error.what()).find("enough") != std::string::npos);
    }
    CHECK(comm.status() == DDL_EABORTED);
}

static void buffers(ddl::Endpoint &endpoint, ddl::Comm &comm)
{
    const std::size_t n = 1 << 16;
    ddl::Buffer<float> in = endpoint.allocate<float>(n), out = endpoint.allocate<float>(n);
    CHECK(in[0] == 0 && in[n - 1] == 0);
    for (std::size_t i = 0; i < n; i++)
        in[i] = static_cast<float>(comm.rank() + 1);
    comm.allreduce(in.get(), out.get(), n);
    CHECK(out[0] == 3 && out[n - 1] == 3 && in[0] == comm.rank() + 1);
}

static void rank(ddl::Endpoint &endpoint, const std::vector<ddl::Endpoint::Address> &addresses,
                 int number)
{
    ddl::CommConfig config;
    config.timeout_ms = 20000;
    config.operation_timeout_ms = 20000;
    ddl::Comm comm = endpoint.connect(addresses, number, config);
    CHECK(comm.rank() == number && comm.size() == 2);
    buffers(endpoint, comm);
    reductions(comm);
    gatherings(comm);
    scatterings(comm);
    messages(comm);
    groups(comm);
    ordered(comm);
    comms(comm);
    works(comm);
    errors(comm);
}

int main()
{
    ddl::EndpointConfig config;
    config.host = "127.0.0.1";
    ddl::Endpoint first(config), second(config);
    CHECK(first.rendezvous().size() == 1);
    std::vector<ddl::Endpoint::Address> addresses{first.address(), second.address()};
    std::thread other([&] { rank(second, addresses, 1); });
    rank(first, addresses, 0);
    other.join();
    return 0;
}
