// SPDX-License-Identifier: Apache-2.0
// Opening and closing worlds, for Python's ctypes.
#include "world.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

using ddl_tensorflow::World;

// Let operations use the comm, which stays the caller's, under a number that no other had.
EXPORT void ddl_tensorflow_open(int64_t number, ddl_comm *comm)
{
    World::open(number, comm);
}

// End all operations; then the comms may be destroyed.
EXPORT void ddl_tensorflow_close(void)
{
    World::close_all();
}
