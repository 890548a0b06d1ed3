// SPDX-License-Identifier: Apache-2.0
//! The part of ddl.h that the example calls: the declarations, and a safe wrapper around them.

use std::ffi::{c_void, CStr};
use std::os::raw::{c_char, c_int};
use std::{error, fmt, ptr};

mod sys {
    use super::*;

    #[repr(C)]
    pub struct Endpoint([u8; 0]);
    #[repr(C)]
    pub struct Comm([u8; 0]);
    #[repr(C)]
    pub struct Work([u8; 0]);

    pub const OK: c_int = 0;
    pub const F32: c_int = 12;
    pub const SUM: c_int = 1;

    #[link(name = "ddl")]
    extern "C" {
        pub fn ddl_strerror(status: c_int) -> *const c_char;
        pub fn ddl_last_error() -> *const c_char;
        pub fn ddl_endpoint_create(config: *const c_void, endpoint: *mut *mut Endpoint) -> c_int;
        pub fn ddl_endpoint_destroy(endpoint: *mut Endpoint);
        pub fn ddl_rendezvous(
            endpoint: *mut Endpoint,
            url: *const c_char,
            rank: c_int,
            size: c_int,
            config: *const c_void,
            comm: *mut *mut Comm,
        ) -> c_int;
        pub fn ddl_comm_destroy(comm: *mut Comm);
        pub fn ddl_comm_rank(comm: *const Comm) -> c_int;
        pub fn ddl_comm_size(comm: *const Comm) -> c_int;
        pub fn ddl_allreduce(
            comm: *mut Comm,
            send: *const c_void,
            recv: *mut c_void,
            count: i64,
            dtype: c_int,
            op: c_int,
            options: *const c_void,
            work: *mut *mut Work,
        ) -> c_int;
        pub fn ddl_broadcast(
            comm: *mut Comm,
            buffer: *mut c_void,
            count: i64,
            dtype: c_int,
            root: c_int,
            options: *const c_void,
            work: *mut *mut Work,
        ) -> c_int;
    }
}

/// Why a call failed.
#[derive(Debug)]
pub struct Error {
    pub status: i32,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: the text is static.
        let kind = unsafe { CStr::from_ptr(sys::ddl_strerror(self.status)) };
        write!(f, "{}: {}", kind.to_string_lossy(), self.message)
    }
}

impl error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

fn check(status: c_int) -> Result<()> {
    if status == sys::OK {
        return Ok(());
    }
    // SAFETY: the text is valid until this thread's next call, and copied before.
    let message = unsafe { CStr::from_ptr(sys::ddl_last_error()) };
    Err(Error {
        status,
        message: message.to_string_lossy().into_owned(),
    })
}

/// This process's identity and its listening ports.
pub struct Endpoint(*mut sys::Endpoint);

impl Endpoint {
    pub fn new() -> Result<Self> {
        let mut endpoint = ptr::null_mut();
        check(unsafe { sys::ddl_endpoint_create(ptr::null(), &mut endpoint) })?;
        Ok(Endpoint(endpoint))
    }

    /// Join the ranks that a launcher has started, such as ddlrun; without one, this one alone.
    pub fn rendezvous(&self) -> Result<Comm<'_>> {
        let mut comm = ptr::null_mut();
        check(unsafe { sys::ddl_rendezvous(self.0, ptr::null(), -1, 0, ptr::null(), &mut comm) })?;
        Ok(Comm {
            handle: comm,
            _endpoint: self,
        })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        unsafe { sys::ddl_endpoint_destroy(self.0) }
    }
}

/// A group of ranks, which its endpoint outlives. Operations block, so that a slice is borrowed for
/// as long as libddl uses it.
pub struct Comm<'endpoint> {
    handle: *mut sys::Comm,
    _endpoint: &'endpoint Endpoint,
}

impl Comm<'_> {
    pub fn rank(&self) -> i32 {
        unsafe { sys::ddl_comm_rank(self.handle) }
    }

    pub fn size(&self) -> i32 {
        unsafe { sys::ddl_comm_size(self.handle) }
    }

    /// Replace each element by its sum over all ranks.
    pub fn allreduce(&self, x: &mut [f32]) -> Result<()> {
        let (start, count) = (x.as_mut_ptr().cast(), x.len() as i64);
        check(unsafe {
            sys::ddl_allreduce(
                self.handle,
                start,
                start,
                count,
                sys::F32,
                sys::SUM,
                ptr::null(),
                ptr::null_mut(),
            )
        })
    }

    /// Replace each element by rank `root`'s.
    pub fn broadcast(&self, x: &mut [f32], root: i32) -> Result<()> {
        let (start, count) = (x.as_mut_ptr().cast(), x.len() as i64);
        check(unsafe {
            sys::ddl_broadcast(
                self.handle,
                start,
                count,
                sys::F32,
                root,
                ptr::null(),
                ptr::null_mut(),
            )
        })
    }
}

impl Drop for Comm<'_> {
    fn drop(&mut self) {
        unsafe { sys::ddl_comm_destroy(self.handle) }
    }
}
