// SPDX-License-Identifier: Apache-2.0

#include "idle.h"

#include "base/number.h"
#include "driver/handle.h"
#include "driver/stream.h"
#include "meter.h"
#include "wall.h"

enum {
	vg_worth_a_look_ns = 200000, // least work for which the driver is queried
	vg_idle_ns = 1000000,        // least idle time after which less work is also queried
};

void vg_idle_drain(struct vg_meter *meter, struct vg_stream *stream, uint64_t now, bool per_thread)
{
	const struct vg_segment *segment = vg_stream_segment(stream);
	enum vg_work_left left;

	if (!stream->open || segment->covered || segment->fresh ||
	    now <= stream->idle_at + vg_idle_slack_ns)
		return;
	if (segment->charged < vg_worth_a_look_ns && now - stream->idle_at < vg_idle_ns)
		return; // the query also costs time
	left = vg_stream_ask(stream->handle, per_thread);
	if (vg_stream_ended(left)) {
		vg_meter_settle(meter, segment);
		stream->open = false;
	} else if (left == vg_work_left) {
		stream->idle_at = now; // the work takes longer than estimated
	}
}

// vg_stream_waited records that a stream is idle.
static void vg_stream_waited(struct vg_meter *meter, struct vg_stream *stream, uint64_t now)
{
	struct vg_segment *segment = vg_stream_segment(stream);

	// The program did not wait for work that other threads have launched since.
	if (atomic_load(&stream->on_way->count) > 0)
		return;
	if (stream->wall) {
		stream->wall = false;
		vg_wall_look(meter, 0, now);
	}
	stream->idle_at = vg_min(stream->idle_at, now - vg_idle_slack_ns - 1);
	if (!stream->open)
		return;
	if (segment->fresh) {
		vg_meter_lose(meter, segment->begun_at, segment->dirty ? 0 : segment->charged, now);
		vg_meter_settle(meter, segment);
		stream->open = false;
		return;
	}
	if (segment->covered) {
		segment->dirty = true; // the end event would come too late
		meter->pieces -= segment->pieces; // the pieces no longer wait in a queue
		segment->pieces = 0;
		return;
	}
	if (segment->lead)
		vg_estimate_waited(vg_estimate_of(&meter->estimates, segment->key, (uint64_t)segment->lead),
				segment->lead, (int64_t)(now - segment->begun_at), now);
	vg_meter_settle(meter, segment);
	stream->open = false;
}

// vg_stream_is_one_of reports whether a record is of the stream with this handle. Default streams
// of all contexts have the same handle, so that the context must match, too.
static bool vg_stream_is_one_of(const struct vg_stream *stream, CUstream handle, uint64_t context,
				uint64_t thread)
{
	bool made = handle && handle != vg_legacy_stream && !thread;

	return !stream->gone && stream->handle == handle && stream->thread == thread && (made || stream->context == context);
}

void vg_idle_waited(struct vg_meter *meter, CUstream handle, uint64_t context, uint64_t thread, uint64_t now)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used; i++) {
		struct vg_stream *stream = &meter->streams[i];

		if (vg_stream_is_one_of(stream, handle, context, thread))
			vg_stream_waited(meter, stream, now);
	}
}

void vg_idle_context_waited(struct vg_meter *meter, uint64_t context, uint64_t now)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used; i++)
		if (meter->streams[i].context == context)
			vg_stream_waited(meter, &meter->streams[i], now);
}

void vg_idle_other_waited(struct vg_meter *meter, uint64_t context, uint64_t thread, uint64_t now)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used; i++) {
		struct vg_stream *stream = &meter->streams[i];
		const struct vg_segment *segment = vg_stream_segment(stream);
		bool per_thread = stream->thread != 0;

		// Streams that have an event, or will have an event, are not queried.
		if (!stream->open || segment->covered || segment->fresh || stream->context != context ||
		    (per_thread && stream->thread != thread) || now <= stream->idle_at + vg_idle_slack_ns)
			continue;
		if (vg_stream_ask(stream->handle, per_thread) == vg_work_none)
			vg_stream_waited(meter, stream, now);
	}
}

bool vg_idle_context_done(const struct vg_meter *meter, uint64_t context, uint64_t thread)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used; i++) {
		const struct vg_stream *stream = &meter->streams[i];
		bool per_thread = stream->thread != 0;

		if (stream->gone || stream->context != context || (per_thread && stream->thread != thread) ||
		    (!stream->open && stream->tail == stream->head))
			continue;
		if (vg_stream_ask(stream->handle, per_thread) == vg_work_left)
			return false;
	}
	return true;
}
