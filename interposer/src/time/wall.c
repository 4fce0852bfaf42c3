// SPDX-License-Identifier: Apache-2.0

#include "wall.h"

#include "base/now.h"
#include "base/thread.h"
#include "driver/handle.h"
#include "driver/stream.h"
#include "meter.h"

// vg_unknown_ns is the time beyond its estimate for which work counts as unfinished if the driver
// does not report the work's state.
static const uint64_t vg_unknown_ns = 1000000000;
// The first check of work is earlier than the expected end by 1/vg_early_part of the charge.
static const int64_t vg_early_part = 8;

void vg_wall_blind(struct vg_meter *meter, struct vg_stream *stream)
{
	vg_meter_empty(meter, stream, vg_now());
	vg_meter_drop_events(stream);
	stream->blind = true;
	meter->blind = true;
}

void vg_wall_enter(struct vg_meter *meter, struct vg_stream *stream, const struct vg_class *class,
		   int64_t charge, uint64_t now)
{
	struct vg_wall *wall = &meter->wall;

	if (!wall->busy)
		*wall = (struct vg_wall){.busy = true, .began = now, .seen = now, .key = class->key};
	wall->key = wall->key == class->key ? class->key : 0;
	wall->count++;
	wall->charged += charge;
	if (!wall->fresh && !vg_estimate_is_known(class, now)) {
		wall->fresh = true;
		vg_unmeasured_begin(&meter->unmeasured, meter->pages, meter->device, now);
	}
	stream->wall = true;
	stream->idle_at = (stream->idle_at > now ? stream->idle_at : now) + class->ns;
}

void vg_wall_failed(struct vg_meter *meter, int64_t charge)
{
	struct vg_wall *wall = &meter->wall;

	if (!wall->busy) // the work has been settled meanwhile
		return;
	wall->charged -= charge;
	if (--wall->count > 0)
		return;
	// No launch has succeeded.
	if (wall->fresh)
		vg_unmeasured_end(&meter->unmeasured, meter->pages, meter->device);
	*wall = (struct vg_wall){0};
}

// vg_wall_end settles the time that all streams without events took together.
static void vg_wall_end(struct vg_meter *meter, uint64_t now)
{
	struct vg_wall *wall = &meter->wall;
	int64_t most = (int64_t)(now - wall->began);
	int64_t least = (int64_t)(wall->seen - wall->began);
	int64_t took = wall->charged;
	uint64_t each;

	// The streams may have finished long before this check. Known work counts for its charge.
	// Work of unknown length counts for the whole time.
	if (took > most || wall->fresh)
		took = most;
	else if (took < least)
		took = least;
	meter->owed += took - wall->charged;
	// The longest possible time is not observed, because it contains waits of launches for
	// allowance. The estimate would grow by these waits.
	each = wall->count ? (uint64_t)took / wall->count : 0;
	if (wall->key && each)
		vg_estimate_observe(vg_estimate_of(&meter->estimates, wall->key, each), each, each, now);
	if (wall->fresh)
		vg_unmeasured_end(&meter->unmeasured, meter->pages, meter->device);
	*wall = (struct vg_wall){0};
}

// vg_wall_ask asks the driver whether a stream has work. vg_wall_ask queries a default stream in
// that stream's context, and a per-thread stream only in its thread.
static enum vg_work_left vg_wall_ask(const struct vg_stream *stream, uint64_t context)
{
	bool made = stream->handle && stream->handle != vg_legacy_stream && !stream->thread;
	bool elsewhere = !made && stream->context != context;
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

// vg_wall_stays reports whether a stream still counts as busy. A stream whose state is unknown,
// such as a stream of an ended thread, counts as done after vg_unknown_ns beyond the estimate.
static bool vg_wall_stays(const struct vg_stream *stream, enum vg_work_left left, uint64_t now)
{
	return left == vg_work_left || (left != vg_work_none && now < stream->idle_at + vg_unknown_ns);
}

uint64_t vg_wall_wait(const struct vg_meter *meter, uint64_t now)
{
	const struct vg_wall *wall = &meter->wall;
	uint64_t early = wall->began + (uint64_t)(wall->charged - wall->charged / vg_early_part);

	return wall->busy && wall->charged > 0 && early > now ? early - now : UINT64_MAX;
}

void vg_wall_look(struct vg_meter *meter, uint64_t context, uint64_t now)
{
	struct vg_wall *wall = &meter->wall;
	bool busy = false;
	int64_t more;

	for (size_t i = 0; wall->busy && !busy && i < vg_meter_streams && meter->streams[i].used; i++) {
		struct vg_stream *stream = &meter->streams[i];

		if (!stream->wall)
			continue;
		stream->wall = vg_wall_stays(stream, vg_wall_ask(stream, context), now);
		busy = stream->wall;
	}
	if (!wall->busy)
		return;
	if (!busy) {
		vg_wall_end(meter, now);
		return;
	}
	wall->seen = now;
	more = (int64_t)(now - wall->began) - wall->charged;
	wall->unfinished = more > 0 ? more : 0;
}
