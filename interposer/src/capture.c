// SPDX-License-Identifier: Apache-2.0

#include "capture.h"

#include <sched.h>

#include "base.h"
#include "stream.h"

enum {
	vg_open_captures = 64,      // that are known by their streams
	vg_same_captures = 8,       // entries of one stream: the older ones have ended unseen
	vg_touch_wait_ns = 100000000, // a touch may be stuck in the driver
};

// vg_open is a capture by the stream in which it began.
struct vg_open {
	CUstream stream;
	const void *thread; // whose own stream it is, else NULL
};

_Atomic unsigned vg_captures;

static _Atomic unsigned beginning; // captures, and streams that join them, on their way into the driver
static _Atomic unsigned touching;  // touches under way

static struct vg_mutex mutex = VG_MUTEX(VG_RANK_CAPTURES); // no driver call is made under it
static struct vg_open open_captures[vg_open_captures];
static unsigned open_count;

void vg_capture_expect_unknown(void)
{
	atomic_fetch_add(&vg_captures, 1);
}

// The order of these, each sequentially consistent, is the point: either a touch sees that
// a capture is beginning, or the capture sees the touch.
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
	atomic_fetch_add(&vg_captures, 1);
	vg_capture_join_begin();
}

static struct vg_open vg_open_of(CUstream stream)
{
	// The legacy stream can not be captured: these are the thread's own.
	if (!stream || stream == vg_per_thread_stream)
		return (struct vg_open){vg_per_thread_stream, __builtin_thread_pointer()};
	return (struct vg_open){stream, NULL};
}

// vg_open_drop takes up to `most` entries out. With the mutex.
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

// vg_open_add files captures that are counted already. What there is no room for stays counted
// for ever. Of a stream with older entries the oldest has ended: it could not begin again else.
static void vg_open_add(struct vg_open capture)
{
	unsigned same;

	vg_lock(&mutex);
	same = vg_open_drop(capture, vg_same_captures);
	if (same == vg_same_captures) {
		same--;
		atomic_fetch_sub(&vg_captures, 1);
	}
	for (unsigned i = 0; i < same + 1; i++)
		if (open_count < vg_open_captures)
			open_captures[open_count++] = capture;
	vg_unlock(&mutex);
}

static unsigned vg_open_remove(struct vg_open capture, unsigned most)
{
	unsigned dropped;

	vg_lock(&mutex);
	dropped = vg_open_drop(capture, most);
	vg_unlock(&mutex);
	return dropped;
}

CUresult vg_capture_begun(CUstream stream, CUresult result)
{
	if (result)
		atomic_fetch_sub(&vg_captures, 1);
	else
		vg_open_add(vg_open_of(stream));
	vg_capture_join_end();
	return result;
}

CUresult vg_capture_ended(CUstream stream, bool per_thread, CUresult result)
{
	// A capture that was broken ends with an error, one that goes on is told from it by the driver.
	if (vg_captures_maybe() && (!result || vg_stream_ask_capturing(stream, per_thread) == vg_not_capturing))
		atomic_fetch_sub(&vg_captures, vg_open_remove(vg_open_of(stream), 1));
	return result;
}

unsigned vg_capture_forget(CUstream stream)
{
	unsigned dropped;

	if (!vg_captures_maybe())
		return 0;
	dropped = vg_open_remove(vg_open_of(stream), vg_open_captures);
	atomic_fetch_sub(&vg_captures, dropped);
	return dropped;
}

void vg_capture_remember(CUstream stream, unsigned count)
{
	atomic_fetch_add(&vg_captures, count);
	while (count-- > 0)
		vg_open_add(vg_open_of(stream));
}

bool vg_touch_begin(CUstream stream, bool per_thread)
{
	atomic_fetch_add(&touching, 1);
	if (atomic_load(&beginning) == 0 &&
	    (atomic_load(&vg_captures) == 0 || vg_stream_ask_capturing(stream, per_thread) == vg_not_capturing))
		return true;
	vg_touch_end();
	return false;
}

void vg_touch_end(void)
{
	atomic_fetch_sub(&touching, 1);
}

int vg_relax(void)
{
	int mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	return VG_CALL(cuThreadExchangeStreamCaptureMode, &mode) == CUDA_SUCCESS ? mode : -1;
}

void vg_unrelax(int mode)
{
	if (mode >= 0)
		VG_CALL(cuThreadExchangeStreamCaptureMode, &mode);
}
