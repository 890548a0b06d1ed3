// The Python module: makes process groups.
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>

#include "backend.hpp"

namespace
{

using ddl_torch::Backend;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

BackendPtr create(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                  std::chrono::milliseconds timeout)
{
    return c10::make_intrusive<Backend>(store, rank, size, timeout);
}

std::pair<int, int> local(const BackendPtr &backend)
{
    auto *ours = dynamic_cast<Backend *>(backend.get());
    TORCH_CHECK_TYPE(ours, "the backend is ", backend->getBackendName(), ", not ddl");
    return ours->local();
}

} // namespace

PYBIND11_MODULE(_ddl_torch, m)
{
    namespace py = pybind11;
    using no_gil = py::call_guard<py::gil_scoped_release>; // what blocks must not hold it
    m.def("create", &create, no_gil(), py::arg("store"), py::arg("rank"), py::arg("size"),
          py::arg("timeout"));
    m.def("local", &local, no_gil(), py::arg("backend"));
    m.def("close_all", &ddl_torch::Group::close_all, no_gil());
    m.def("library_version", &ddl_version);
}
