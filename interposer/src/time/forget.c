// SPDX-License-Identifier: Apache-2.0

#include "forget.h"

#include <sched.h>

#include "base/now.h"
#include "driver/handle.h"
#include "events.h"
#include "segment.h"

// vg_end_wait_ns is the longest time for which the end of a stream or context waits for a thread
// that is calling the driver.
static const uint64_t vg_end_wait_ns = 20000000;

// vg_forget_lock locks the meter for an object that is about to end. The meter's holder may be
// about to query the driver about this object. vg_forget_lock waits only once for a holder that is
// stuck in the driver.
static bool vg_forget_lock(struct vg_meter *meter)
{
	return vg_meter_try_lock(meter) || (!atomic_load(&meter->stale) && vg_meter_lock(meter, vg_end_wait_ns));
}

// vg_forget_close records the end event of work of unknown length before the work's stream ends, so
// that the work is still measured. vg_forget_close reports whether the work may not be in the stream
// yet, because another thread is launching the work. vg_stuck_ns after the first such report, the end
// event does not wait for the launch.
static bool vg_forget_close(struct vg_meter *meter, uint64_t key)
{
	bool launching = false;

	VG_EACH_STREAM(stream, meter) {
		if (vg_handle_key(stream->handle) == key && !stream->thread && !stream->gone && stream->open &&
		    vg_stream_segment(stream)->fresh)
			launching |= !vg_segment_close(stream, false) && atomic_load(&stream->on_way->count) > 0;
	}
	return launching;
}

void vg_forget(struct vg_meter *meter, enum vg_end kind, uint64_t key)
{
	for (;;) {
		if (!vg_forget_lock(meter)) {
			atomic_store(&meter->stale, true);
			return;
		}
		if (kind != vg_end_stream || !vg_forget_close(meter, key))
			break;
		vg_meter_unlock(meter);
		sched_yield();
	}
	// The events can be read only before the context ends.
	if (kind == vg_end_context)
		vg_events_read(meter, vg_now());
	vg_meter_drop(meter, kind, key);
	vg_meter_unlock(meter);
}
