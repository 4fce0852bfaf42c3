// SPDX-License-Identifier: Apache-2.0

// Streams in which events cannot be recorded or read: their work is charged by wall time.
//
// Work on these streams is charged by estimate when it is launched, like any other. From then
// until all of them are done, they count as holding the GPU. When they are done, the difference
// between that time and the charge is settled. Until then it counts against the balance of this
// process. Launches wait for it no longer than for any other call of the driver, because the
// work may never end.

#include "meter.h"
#include "stream.h"

// Work of which the driver says nothing counts as under way for so long beyond its estimate.
static const uint64_t vg_unknown_ns = 1000000000;

void vg_stream_blind(struct vg_meter *meter, struct vg_stream *stream)
{
	vg_stream_empty(meter, stream);
	vg_stream_drop_events(stream);
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
	wall->fresh |= !vg_class_is_known(class, now);
	stream->wall = true;
	stream->dry_at = (stream->dry_at > now ? stream->dry_at : now) + class->ns;
}

void vg_wall_failed(struct vg_meter *meter, int64_t charge)
{
	meter->wall.charged -= charge;
}

// vg_wall_end settles what the streams took together.
static void vg_wall_end(struct vg_meter *meter, uint64_t now)
{
	struct vg_wall *wall = &meter->wall;
	int64_t most = (int64_t)(now - wall->began);
	int64_t least = (int64_t)(wall->seen - wall->began);
	int64_t took = wall->charged;
	uint64_t each;

	// Since they were last seen busy they may have been done for long: of known work, the
	// charge says how much of that it took.
	if (took > most || wall->fresh)
		took = most;
	else if (took < least)
		took = least;
	meter->owed += took - wall->charged;
	// Not what the time has at most: launches that wait for allowance are in it, so that the
	// estimate would grow by its own waits.
	each = wall->count ? (uint64_t)took / wall->count : 0;
	if (wall->key && each)
		vg_class_observe(vg_class_of(&meter->estimates, wall->key, each), each, each, now);
	*wall = (struct vg_wall){0};
}

// vg_wall_ask asks the driver whether a stream has work: of a default stream in its context,
// and of a thread's own in that thread alone.
static enum vg_work_left vg_wall_ask(const struct vg_stream *stream, uint64_t context)
{
	bool made = stream->handle && stream->handle != vg_legacy_stream && !stream->thread;
	bool elsewhere = !made && stream->context != context;
	enum vg_work_left left;
	CUcontext popped;

	if (stream->thread && stream->thread != (uint64_t)(uintptr_t)__builtin_thread_pointer())
		return vg_work_unknown;
	if (elsewhere && VG_CALL(cuCtxPushCurrent_v2, (CUcontext)(uintptr_t)stream->context))
		return vg_work_unknown;
	left = vg_stream_ask(stream, stream->thread != 0);
	if (elsewhere)
		VG_CALL(cuCtxPopCurrent_v2, &popped);
	return left;
}

// vg_wall_stays reports whether a stream still counts as busy. Of what nobody can ask, such as the
// stream of a thread that has ended, it is taken to be done some time after it should be.
static bool vg_wall_stays(const struct vg_stream *stream, enum vg_work_left left, uint64_t now)
{
	return left == vg_work_left || (left != vg_work_none && now < stream->dry_at + vg_unknown_ns);
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
