// SPDX-License-Identifier: Apache-2.0

#include "capture.h"

#include <sched.h>

#include "base/large.h"
#include "base/mutex.h"
#include "base/now.h"
#include "handle.h"

enum {
	vg_open_captures = 64,      // captures that are known by their streams
	// vg_same_captures is the limit of entries per stream. Older entries belong to captures
	// that ended unnoticed.
	vg_same_captures = 8,
	vg_touch_wait_ns = 100000000, // longest wait for touches, which may be stuck in the driver
};

// vg_open is a capture, identified by the stream in which it began.
struct vg_open {
	CUstream stream;
	const void *thread; // thread of a per-thread stream; NULL: any other stream
};

// `beginning` counts calls of the driver in which a capture begins or a stream joins a capture.
static _Atomic unsigned beginning;
static _Atomic unsigned touching; // touches in progress

static struct vg_mutex mutex = VG_MUTEX(VG_RANK_CAPTURES); // never held during a driver call
VG_LARGE static struct vg_open open_captures[vg_open_captures];
static unsigned open_count;

enum vg_capturing vg_capture_ask(CUstream stream, bool per_thread)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result = per_thread ? VG_CALL(cuStreamIsCapturing_ptsz, stream, &status) :
				       VG_CALL(cuStreamIsCapturing, stream, &status);

	if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
		return vg_beside_capture;
	if (result)
		return vg_capturing_unknown;
	return status == CU_STREAM_CAPTURE_STATUS_NONE ? vg_not_capturing : vg_is_capturing;
}

uint64_t vg_capture_id(CUstream stream, bool per_thread)
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	uint64_t id = 0;
	CUresult result = per_thread ? VG_CALL(cuStreamGetCaptureInfo_ptsz, stream, &status, &id) :
				       VG_CALL(cuStreamGetCaptureInfo, stream, &status, &id);

	return result || status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : id;
}

// Sequentially consistent accesses ensure that either a touch detects that a capture is beginning,
// or the capture detects the touch.
void vg_capture_join_begin(void)
{
	uint64_t until = 0;

	atomic_fetch_add(&beginning, 1);
	while (atomic_load(&touching) != 0) {
		uint64_t now = vg_now();

		until = until ? until : now + vg_touch_wait_ns;
		if (now > until)
			return;
		sched_yield();
	}
}

void vg_capture_join_end(void)
{
	atomic_fetch_sub(&beginning, 1);
}

void vg_capture_prepare(void)
{
	atomic_fetch_add(&vg_capture_count, 1);
	vg_capture_join_begin();
}

static struct vg_open vg_open_of(CUstream stream)
{
	// The legacy stream cannot be captured, so that both handles mean the thread's own stream.
	if (!stream || stream == vg_per_thread_stream)
		return (struct vg_open){vg_per_thread_stream, __builtin_thread_pointer()};
	return (struct vg_open){stream, NULL};
}

// vg_open_drop removes up to `most` entries. The caller holds the mutex.
static unsigned vg_open_drop(struct vg_open capture, unsigned most)
{
	unsigned dropped = 0;

	for (unsigned i = open_count; i-- > 0 && dropped < most;) {
		if (open_captures[i].stream != capture.stream || open_captures[i].thread != capture.thread)
			continue;
		open_captures[i] = open_captures[--open_count];
		dropped++;
	}
	return dropped;
}

// vg_open_add files a capture that is already counted. A capture stays counted forever if the array
// has no room. If a stream has vg_same_captures entries, the oldest capture must have ended,
// because the stream has begun another capture.
static void vg_open_add(struct vg_open capture)
{
	unsigned same;

	vg_mutex_lock(&mutex);
	same = vg_open_drop(capture, vg_same_captures);
	if (same == vg_same_captures) {
		same--;
		atomic_fetch_sub(&vg_capture_count, 1);
	}
	for (unsigned i = 0; i < same + 1; i++)
		if (open_count < vg_open_captures)
			open_captures[open_count++] = capture;
	vg_mutex_unlock(&mutex);
}

static unsigned vg_open_remove(struct vg_open capture, unsigned most)
{
	unsigned dropped;

	vg_mutex_lock(&mutex);
	dropped = vg_open_drop(capture, most);
	vg_mutex_unlock(&mutex);
	return dropped;
}

CUresult vg_capture_begun(CUstream stream, CUresult result)
{
	if (result)
		atomic_fetch_sub(&vg_capture_count, 1);
	else
		vg_open_add(vg_open_of(stream));
	vg_capture_join_end();
	return result;
}

CUresult vg_capture_ended(CUstream stream, bool per_thread, CUresult result)
{
	// A broken capture ends with an error. The driver distinguishes such a capture from an ongoing
	// capture.
	if (vg_capture_count_maybe() && (!result || vg_capture_ask(stream, per_thread) == vg_not_capturing))
		atomic_fetch_sub(&vg_capture_count, vg_open_remove(vg_open_of(stream), 1));
	return result;
}

unsigned vg_capture_forget(CUstream stream)
{
	unsigned dropped;

	if (!vg_capture_count_maybe())
		return 0;
	dropped = vg_open_remove(vg_open_of(stream), vg_open_captures);
	atomic_fetch_sub(&vg_capture_count, dropped);
	return dropped;
}

void vg_capture_remember(CUstream stream, unsigned count)
{
	atomic_fetch_add(&vg_capture_count, count);
	while (count-- > 0)
		vg_open_add(vg_open_of(stream));
}

bool vg_capture_touch_begin(CUstream stream, bool per_thread)
{
	atomic_fetch_add(&touching, 1);
	if (atomic_load(&beginning) == 0 &&
	    (atomic_load(&vg_capture_count) == 0 || vg_capture_ask(stream, per_thread) == vg_not_capturing))
		return true;
	vg_capture_touch_end();
	return false;
}

void vg_capture_touch_end(void)
{
	atomic_fetch_sub(&touching, 1);
}

int vg_capture_relax(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	return VG_CALL(cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS ? mode : -1;
}

void vg_capture_unrelax(int mode)
{
	if (mode >= 0)
		VG_CALL(cuThreadExchangeStreamCaptureMode, &mode);
}
