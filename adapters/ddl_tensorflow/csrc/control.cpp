// SPDX-License-Identifier: Apache-2.0
// Opening and closing the world, for Python's ctypes.
#include <memory>

#include "world.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

using ddl_tensorflow::World;

// Let operations use the comm, which stays the caller's.
EXPORT void ddl_tensorflow_open(ddl_comm *comm)
{
    World::set_current(std::make_shared<World>(comm));
}

// End all operations; then the comm may be destroyed.
EXPORT void ddl_tensorflow_close(void)
{
    if (auto world = World::current()) {
        World::set_current(nullptr);
        world->close();
    }
}
