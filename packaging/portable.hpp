// SPDX-License-Identifier: Apache-2.0
// Included first in the prebuilt parts of ddl_torch, so that a newer compiler builds them for
// glibc 2.28 and the libstdc++ of GCC 8 on x86-64: torch_parts.py checks that.
#pragma once

#include <bits/c++config.h>

#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT // glibc 2.30

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <pthread.h>
#include <sys/single_threaded.h>

// glibc 2.32. 0: the process may have threads.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

__asm__(".symver pthread_setname_np, pthread_setname_np@GLIBC_2.12");
__asm__(".symver pthread_once, pthread_once@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.2.5");
__asm__(".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE, "
        "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
