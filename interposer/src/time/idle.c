// SPDX-License-Identifier: Apache-2.0

#include "idle.h"

#include "base/number.h"
#include "base/thread.h"
#include "driver/handle.h"
#include "driver/stream.h"
#include "meter.h"

enum {
	vg_worth_a_look_ns = 200000, // least work for which the driver is queried
	vg_idle_ns = 1000000,        // least idle time after which less work is also queried
};
// vg_unknown_ns is the time beyond its estimate for which work counts as unfinished if the driver
// does not report the work's state.
static const uint64_t vg_unknown_ns = 1000000000;

// vg_idle_ask asks the driver whether a stream has work. vg_idle_ask queries a default stream in that
// stream's context, and a per-thread stream only in its thread.
static enum vg_work_left vg_idle_ask(const struct vg_stream *stream, uint64_t context)
{
	bool elsewhere = !vg_handle_is_created(stream->handle) && stream->context != context;
	enum vg_work_left left;
	CUcontext popped;

	if (stream->thread && stream->thread != vg_thread_key())
		return vg_work_unknown;
	if (elsewhere && VG_CALL(cuCtxPushCurrent_v2, (CUcontext)(uintptr_t)stream->context))
		return vg_work_unknown;
	left = vg_stream_ask(stream->handle, stream->thread != 0);
	if (elsewhere)
		VG_CALL(cuCtxPopCurrent_v2, &popped);
	return left;
}

bool vg_idle_blind(struct vg_meter *meter, uint64_t context, uint64_t now)
{
	bool busy = false;

	VG_EACH_STREAM(stream, meter) {
		enum vg_work_left left;

		if (!stream->blind || !stream->open || stream->held)
			continue;
		left = vg_idle_ask(stream, context);
		if (left == vg_work_left || (left != vg_work_none && now < stream->idle_at + vg_unknown_ns)) {
			vg_stream_segment(stream)->busy_at = now;
			busy = true;
		} else {
			vg_meter_end(meter, stream, now);
		}
	}
	return busy;
}

// vg_idle_is_due reports whether a stream should be idle by now, but has no event that shows its state.
static bool vg_idle_is_due(struct vg_stream *stream, uint64_t now)
{
	const struct vg_segment *segment = vg_stream_segment(stream);

	return stream->open && !stream->held && !segment->covered && !segment->fresh &&
	       now > stream->idle_at + vg_idle_slack_ns;
}

void vg_idle_drain(struct vg_meter *meter, struct vg_stream *stream, uint64_t now, bool per_thread)
{
	enum vg_work_left left;

	if (stream->blind || !vg_idle_is_due(stream, now))
		return;
	if (vg_stream_segment(stream)->charged < vg_worth_a_look_ns && now - stream->idle_at < vg_idle_ns)
		return; // the query also costs time
	left = vg_stream_ask(stream->handle, per_thread);
	if (vg_stream_ended(left)) {
		vg_meter_end(meter, stream, now);
	} else if (left == vg_work_left) {
		stream->idle_at = now; // the work takes longer than estimated
	}
}

// vg_stream_waited records that a stream is idle.
static void vg_stream_waited(struct vg_meter *meter, struct vg_stream *stream, uint64_t now)
{
	struct vg_segment *segment = vg_stream_segment(stream);
	int64_t late = (int64_t)(now - stream->idle_at);
	int64_t charged = segment->charged - segment->waited;

	// The program did not wait for work that other threads have launched since.
	if (atomic_load(&stream->on_way->count) > 0)
		return;
	stream->idle_at = vg_min(stream->idle_at, now - vg_idle_slack_ns - 1);
	if (!stream->open)
		return;
	if (segment->key && segment->pieces && !segment->fresh && !stream->blind)
		vg_estimate_waited(vg_estimate_of(&meter->estimates, segment->key, 0), charged, charged + late, now);
	if (segment->covered && !segment->fresh) {
		segment->dirty = true; // the end event would come too late
		meter->pieces -= segment->pieces; // the pieces no longer wait in a queue
		segment->pieces = 0;
		segment->waited = segment->charged;
		return;
	}
	vg_meter_end(meter, stream, now);
}

// vg_stream_is_one_of reports whether a record is of the stream with this handle. Default streams
// of all contexts have the same handle, so that the context must match, too.
static bool vg_stream_is_one_of(const struct vg_stream *stream, CUstream handle, uint64_t context,
				uint64_t thread)
{
	return !stream->gone && stream->handle == handle && stream->thread == thread &&
	       (vg_handle_is_created(handle) || stream->context == context);
}

void vg_idle_waited(struct vg_meter *meter, CUstream handle, uint64_t context, uint64_t thread, uint64_t now)
{
	VG_EACH_STREAM(stream, meter) {
		if (vg_stream_is_one_of(stream, handle, context, thread))
			vg_stream_waited(meter, stream, now);
	}
}

void vg_idle_context_waited(struct vg_meter *meter, uint64_t context, uint64_t now)
{
	VG_EACH_STREAM(stream, meter)
		if (stream->context == context)
			vg_stream_waited(meter, stream, now);
}

void vg_idle_other_waited(struct vg_meter *meter, uint64_t context, uint64_t thread, uint64_t now)
{
	VG_EACH_STREAM(stream, meter)
		if (vg_stream_is_within(stream, context, thread) && vg_idle_is_due(stream, now) &&
		    vg_stream_ask(stream->handle, stream->thread != 0) == vg_work_none)
			vg_stream_waited(meter, stream, now);
}

bool vg_idle_context_done(const struct vg_meter *meter, uint64_t context, uint64_t thread)
{
	VG_EACH_STREAM(stream, meter)
		if (!stream->gone && !stream->held && vg_stream_is_within(stream, context, thread) &&
		    !vg_stream_is_empty(stream) && vg_stream_ask(stream->handle, stream->thread != 0) == vg_work_left)
			return false;
	return true;
}
