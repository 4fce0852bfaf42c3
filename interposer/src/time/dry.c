// SPDX-License-Identifier: Apache-2.0

// Streams that have run dry: what ran on them is done without an event's word.

#include "meter.h"
#include "stream.h"

enum {
	vg_worth_a_look_ns = 200000, // work of which it is worth a look whether it is done
	vg_idle_ns = 1000000,        // …or time without work
};

enum vg_work_left vg_stream_ask(const struct vg_stream *stream, bool per_thread)
{
	CUresult result;
	int mode;

	if (!vg_touch_begin(stream->handle, per_thread))
		return vg_work_unknown;
	mode = vg_relax();
	result = per_thread ? VG_CALL(cuStreamQuery_ptsz, stream->handle) :
			      VG_CALL(cuStreamQuery, stream->handle);
	vg_unrelax(mode);
	vg_touch_end();
	if (result == CUDA_ERROR_NOT_READY)
		return vg_work_left;
	return result ? vg_work_failed : vg_work_none;
}

// vg_stream_ended: where events can be recorded, a stream whose queries fail does no work
// any more.
static bool vg_stream_ended(enum vg_work_left left)
{
	return left == vg_work_none || left == vg_work_failed;
}

bool vg_stream_is_done(const struct vg_stream *stream, bool per_thread)
{
	return vg_stream_ended(vg_stream_ask(stream, per_thread));
}

void vg_meter_drain(struct vg_meter *meter, struct vg_stream *stream, uint64_t now, bool per_thread)
{
	const struct vg_segment *segment = vg_stream_segment(stream);
	enum vg_work_left left;

	if (!stream->open || segment->covered || segment->fresh ||
	    now <= stream->dry_at + vg_dry_slack_ns)
		return;
	if (segment->charged < vg_worth_a_look_ns && now - stream->dry_at < vg_idle_ns)
		return; // a look costs, too
	left = vg_stream_ask(stream, per_thread);
	if (vg_stream_ended(left)) {
		vg_meter_settle(meter, segment);
		stream->open = false;
	} else if (left == vg_work_left) {
		stream->dry_at = now; // it takes longer than was thought
	}
}

// vg_stream_waited enters that a stream is dry.
static void vg_stream_waited(struct vg_meter *meter, struct vg_stream *stream, uint64_t now)
{
	struct vg_segment *segment = vg_stream_segment(stream);

	// What others have launched since, it does not tell of.
	if (atomic_load(&stream->on_way->count) > 0)
		return;
	if (stream->wall) {
		stream->wall = false;
		vg_wall_look(meter, 0, now);
	}
	stream->dry_at = vg_min(stream->dry_at, now - vg_dry_slack_ns - 1);
	if (!stream->open)
		return;
	if (segment->covered || segment->fresh) {
		segment->dirty = true; // its end would come too late
		meter->pieces -= segment->pieces; // which wait in no queue any more
		segment->pieces = 0;
		return;
	}
	if (segment->lead)
		vg_class_waited(vg_class_of(&meter->estimates, segment->key, (uint64_t)segment->lead),
				segment->lead, (int64_t)(now - segment->begun_at), now);
	vg_meter_settle(meter, segment);
	stream->open = false;
}

// vg_stream_is_one_of reports whether a stream has this handle: that of a default stream each
// context has.
static bool vg_stream_is_one_of(const struct vg_stream *stream, CUstream handle, uint64_t context,
				uint64_t thread)
{
	bool made = handle && handle != vg_legacy_stream && !thread;

	return stream->handle == handle && stream->thread == thread && (made || stream->context == context);
}

void vg_meter_waited(struct vg_meter *meter, CUstream handle, uint64_t context, uint64_t thread, uint64_t now)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used; i++) {
		struct vg_stream *stream = &meter->streams[i];

		if (vg_stream_is_one_of(stream, handle, context, thread))
			vg_stream_waited(meter, stream, now);
	}
}

void vg_meter_context_waited(struct vg_meter *meter, uint64_t context, uint64_t now)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used; i++)
		if (meter->streams[i].context == context)
			vg_stream_waited(meter, &meter->streams[i], now);
}

void vg_meter_other_waited(struct vg_meter *meter, uint64_t context, uint64_t thread, uint64_t now)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used; i++) {
		struct vg_stream *stream = &meter->streams[i];
		const struct vg_segment *segment = vg_stream_segment(stream);
		bool per_thread = stream->thread != 0;

		// What has an event, or is to have one, is not asked for.
		if (!stream->open || segment->covered || segment->fresh || stream->context != context ||
		    (per_thread && stream->thread != thread) || now <= stream->dry_at + vg_dry_slack_ns)
			continue;
		if (vg_stream_ask(stream, per_thread) == vg_work_none)
			vg_stream_waited(meter, stream, now);
	}
}

bool vg_meter_context_done(const struct vg_meter *meter, uint64_t context, uint64_t thread)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used; i++) {
		const struct vg_stream *stream = &meter->streams[i];
		bool per_thread = stream->thread != 0;

		if (stream->context != context || (per_thread && stream->thread != thread) ||
		    (!stream->open && stream->tail == stream->head))
			continue;
		if (vg_stream_ask(stream, per_thread) == vg_work_left)
			return false;
	}
	return true;
}
