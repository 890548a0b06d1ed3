// SPDX-License-Identifier: Apache-2.0

// Package ddl wraps the part of ddl.h that the example calls.
package ddl

// #cgo pkg-config: libddl
// #include <ddl/ddl.h>
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// Error is a failed call: what to do next (Status, as in ddl.h), and what was wrong.
type Error struct {
	Status  int
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s", C.GoString(C.ddl_strerror(C.ddl_status(e.Status))), e.Message)
}

// call runs f and makes its status an error. libddl keeps the message for the calling thread, so
// the goroutine must not leave that in between.
func call(f func() C.ddl_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if status := f(); status != C.DDL_OK {
		return &Error{int(status), C.GoString(C.ddl_last_error())}
	}
	return nil
}

// Endpoint is this process's identity and its listening ports.
type Endpoint struct {
	handle *C.ddl_endpoint
}

// NewEndpoint opens the ports. Close the endpoint after its comms.
func NewEndpoint() (*Endpoint, error) {
	e := &Endpoint{}
	if err := call(func() C.ddl_status { return C.ddl_endpoint_create(nil, &e.handle) }); err != nil {
		return nil, err
	}
	return e, nil
}

// Close releases the endpoint.
func (e *Endpoint) Close() {
	C.ddl_endpoint_destroy(e.handle)
	e.handle = nil
}

// Rendezvous joins the ranks that a launcher has started, such as ddlrun; without one, this one alone.
func (e *Endpoint) Rendezvous() (*Comm, error) {
	c := &Comm{}
	err := call(func() C.ddl_status {
		return C.ddl_rendezvous(e.handle, nil, -1, 0, nil, &c.handle)
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Comm is a group of ranks. Its operations block.
type Comm struct {
	handle *C.ddl_comm
}

// Close leaves the group.
func (c *Comm) Close() {
	C.ddl_comm_destroy(c.handle)
	c.handle = nil
}

// Rank is this process's rank.
func (c *Comm) Rank() int { return int(C.ddl_comm_rank(c.handle)) }

// Size is the number of ranks.
func (c *Comm) Size() int { return int(C.ddl_comm_size(c.handle)) }

// Allreduce replaces each element of x by its sum over all ranks.
func (c *Comm) Allreduce(x []float32) error {
	p, n := start(x)
	return call(func() C.ddl_status {
		return C.ddl_allreduce(c.handle, p, p, n, C.DDL_F32, C.DDL_SUM, nil, nil)
	})
}

// Broadcast replaces each element of x by that of rank root.
func (c *Comm) Broadcast(x []float32, root int) error {
	p, n := start(x)
	return call(func() C.ddl_status {
		return C.ddl_broadcast(c.handle, p, n, C.DDL_F32, C.int(root), nil, nil)
	})
}

func start(x []float32) (unsafe.Pointer, C.int64_t) {
	if len(x) == 0 {
		return nil, 0
	}
	return unsafe.Pointer(&x[0]), C.int64_t(len(x))
}
