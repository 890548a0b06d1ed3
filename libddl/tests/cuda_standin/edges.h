/* SPDX-License-Identifier: Apache-2.0 */
/* edges.h - the events that ThreadSanitizer sees of the stand-in.
 *
 * The stand-in's own lock would order the caller's accesses after those of the streams, and so hide
 * a missing wait in the program under test. Therefore all bookkeeping runs hidden: ThreadSanitizer
 * then ignores locks and accesses of the calling thread. Copies, kernels and host functions run
 * shown. Where CUDA orders two things, the stand-in releases and acquires an address instead. In a
 * build without ThreadSanitizer these functions do nothing. */
#ifndef CUDA_STANDIN_EDGES_H
#define CUDA_STANDIN_EDGES_H

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define STANDIN_TSAN
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define STANDIN_TSAN
#endif

#ifdef STANDIN_TSAN
void AnnotateIgnoreSyncBegin(const char *file, int line);
void AnnotateIgnoreSyncEnd(const char *file, int line);
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#endif

static inline void standin_hide(void)
{
#ifdef STANDIN_TSAN
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
}

static inline void standin_show(void)
{
#ifdef STANDIN_TSAN
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
#endif
}

/* Order what this thread has done so far before what other threads do after they acquire the
 * address. The caller is hidden. */
static inline void standin_release_edge(void *address)
{
    (void)address;
#ifdef STANDIN_TSAN
    standin_show();
    __tsan_release(address);
    standin_hide();
#endif
}

static inline void standin_acquire_edge(void *address)
{
    (void)address;
#ifdef STANDIN_TSAN
    standin_show();
    __tsan_acquire(address);
    standin_hide();
#endif
}

#endif
