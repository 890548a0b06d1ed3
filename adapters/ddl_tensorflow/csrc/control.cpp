// Joining and leaving, for Python's ctypes. Functions return 0, or a ddl_status with its message in
// `message`, of kMessage bytes.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "world.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

using ddl_tensorflow::World;

namespace
{

constexpr size_t kMessage = 1024;

ddl_status told(ddl_status status, char *message)
{
    if (status != DDL_OK) {
        const char *detail = ddl_last_error();
        std::strncpy(message, *detail ? detail : ddl_strerror(status), kMessage - 1);
        message[kMessage - 1] = '\0';
    }
    return status;
}

} // namespace

// A new endpoint, and its address: of DDL_ADDRESS_MAX bytes at most, `length` of which are used.
EXPORT int ddl_tensorflow_open(ddl_endpoint **endpoint, char *address, size_t *length,
                               char *message)
{
    ddl_endpoint *opened = nullptr;
    ddl_status status = ddl_endpoint_create(nullptr, &opened);
    if (status == DDL_OK)
        status = ddl_endpoint_address(opened, address, DDL_ADDRESS_MAX, length);
    if (status == DDL_OK)
        *endpoint = opened;
    else
        ddl_endpoint_destroy(opened);
    return told(status, message);
}

// Join, with the addresses of all ranks lying at multiples of DDL_ADDRESS_MAX. Takes the endpoint.
EXPORT int ddl_tensorflow_join(ddl_endpoint *endpoint, const char *addresses, const size_t *lengths,
                               int rank, int size, uint64_t tag, int64_t timeout_ms, char *message)
{
    std::vector<const void *> pointers;
    for (int i = 0; i < size; i++)
        pointers.push_back(addresses + i * size_t{DDL_ADDRESS_MAX});
    ddl_comm_config config{};
    config.struct_size = sizeof config;
    config.tag = tag;
    config.timeout_ms = config.operation_timeout_ms = timeout_ms;
    ddl_comm *comm = nullptr;
    const ddl_status status = told(
        ddl_comm_create(endpoint, pointers.data(), lengths, rank, size, &config, &comm), message);
    if (status == DDL_OK)
        World::set_current(std::make_shared<World>(endpoint, comm));
    else
        ddl_endpoint_destroy(endpoint);
    return status;
}

// rank, size, local rank, local size
EXPORT void ddl_tensorflow_place(int place[4])
{
    auto world = World::current();
    ddl_comm *comm = world ? world->comm() : nullptr;
    place[0] = ddl_comm_rank(comm);
    place[1] = ddl_comm_size(comm);
    place[2] = ddl_comm_local_rank(comm);
    place[3] = ddl_comm_local_size(comm);
}

EXPORT void ddl_tensorflow_leave(void)
{
    if (auto world = World::current()) {
        World::set_current(nullptr);
        world->close();
    }
}
