// SPDX-License-Identifier: Apache-2.0

// The streams that a meter follows: found, made room for, and forgotten.

#include "capture.h"
#include "meter.h"

#include <string.h>

// What ends waits so long for whoever asks the driver.
static const uint64_t vg_end_wait_ns = 20000000;

static bool vg_stream_is(const struct vg_stream *stream, CUstream handle, uint64_t context,
			 uint64_t thread)
{
	return stream->used && stream->handle == handle && stream->context == context &&
	       stream->thread == thread;
}

void vg_event_drop(CUevent *event)
{
	int mode;

	if (!*event)
		return;
	mode = vg_relax();
	VG_CALL(cuEventDestroy_v2, *event);
	vg_unrelax(mode);
	*event = NULL;
}

void vg_meter_settle(struct vg_meter *meter, const struct vg_segment *segment)
{
	meter->settled++;
	meter->pieces -= segment->pieces;
	meter->outstanding -= segment->charged;
	meter->lengthy -= segment->lengthy;
}

void vg_stream_empty(struct vg_meter *meter, struct vg_stream *stream)
{
	uint32_t last = stream->head + (stream->open ? 1 : 0);

	for (uint32_t i = stream->tail; i != last; i++)
		vg_meter_settle(meter, &stream->ring[i % vg_ring]);
	stream->tail = stream->head;
	stream->open = false;
}

void vg_stream_drop_events(struct vg_stream *stream)
{
	for (size_t s = 0; s < vg_ring; s++) {
		vg_event_drop(&stream->ring[s].begin);
		vg_event_drop(&stream->ring[s].end);
	}
}

// vg_stream_spare makes room for a stream: the one is forgotten that has had nothing to
// do for longest, if there is any. It may be a thread's that has ended.
static struct vg_stream *vg_stream_spare(struct vg_meter *meter)
{
	uint64_t now = vg_now();
	struct vg_stream *spare = NULL;

	for (size_t i = 0; i < vg_meter_streams; i++) {
		struct vg_stream *stream = &meter->streams[i];

		if (stream->tail == stream->head && stream->dry_at < now &&
		    (!spare || stream->dry_at < spare->dry_at))
			spare = stream;
	}
	if (!spare)
		return NULL;
	vg_stream_empty(meter, spare);
	vg_stream_drop_events(spare);
	return spare;
}

// vg_on_way_of is the counter of a stream's launches.
static struct vg_on_way *vg_on_way_of(struct vg_meter *meter, CUstream handle, uint64_t context,
					    uint64_t thread)
{
	uint64_t hash = ((uint64_t)(uintptr_t)handle + 3 * context + 5 * thread) * UINT64_C(0x9e3779b97f4a7c15);

	return &meter->on_way[(hash >> 40) % vg_on_ways];
}

struct vg_stream *vg_meter_stream(struct vg_meter *meter, CUstream handle, uint64_t context,
				  uint64_t thread)
{
	struct vg_stream *free_one = NULL;

	if (meter->last && vg_stream_is(meter->last, handle, context, thread))
		return meter->last;
	for (size_t i = 0; i < vg_meter_streams; i++) {
		struct vg_stream *stream = &meter->streams[i];

		if (vg_stream_is(stream, handle, context, thread)) {
			meter->last = stream;
			return stream;
		}
		if (!stream->used) {
			free_one = stream;
			break;
		}
	}
	if (!free_one)
		free_one = vg_stream_spare(meter);
	if (free_one) {
		*free_one = (struct vg_stream){.used = true, .handle = handle, .context = context,
					       .thread = thread,
					       .on_way = vg_on_way_of(meter, handle, context, thread)};
		meter->last = free_one;
	}
	return free_one;
}

// vg_stream_remove closes the gap in the table, which is kept dense.
static void vg_stream_remove(struct vg_meter *meter, size_t index)
{
	size_t last = index;

	vg_stream_empty(meter, &meter->streams[index]);
	while (last + 1 < vg_meter_streams && meter->streams[last + 1].used)
		last++;
	meter->streams[index] = meter->streams[last];
	memset(&meter->streams[last], 0, sizeof meter->streams[last]);
	meter->last = NULL;
}

void vg_meter_drop_stream(struct vg_meter *meter, CUstream handle)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used; i++) {
		struct vg_stream *stream = &meter->streams[i];

		if (stream->handle != handle || stream->thread)
			continue;
		vg_stream_drop_events(stream);
		vg_stream_remove(meter, i);
		return;
	}
}

// vg_meter_drop_everything leaves the events: some of their contexts may have ended.
static void vg_meter_drop_everything(struct vg_meter *meter)
{
	while (meter->streams[0].used)
		vg_stream_remove(meter, 0);
	meter->base = meter->newer = NULL;
	meter->renewing = false;
	vg_probe_drop(&meter->probe);
	vg_lead_drop(&meter->lead, meter->lead.context);
	vg_classes_forget(&meter->estimates);
}

static void vg_meter_drop(struct vg_meter *meter, enum vg_forgotten_kind kind, uint64_t key)
{
	if (kind == vg_forget_stream)
		vg_meter_drop_stream(meter, (CUstream)(uintptr_t)key);
	else if (kind == vg_forget_context)
		vg_meter_drop_context(meter, key);
	else if (kind == vg_forget_everything)
		vg_meter_drop_everything(meter);
	else
		vg_class_forget(&meter->estimates, key);
}

void vg_meter_catch_up(struct vg_meter *meter)
{
	struct vg_forgotten list[vg_most_forgotten];
	uint32_t count;

	vg_lock(&meter->forgotten_mutex);
	count = atomic_exchange(&meter->forgotten_count, 0);
	memcpy(list, meter->forgotten, sizeof list);
	vg_unlock(&meter->forgotten_mutex);
	for (uint32_t i = 0; i < count; i++)
		vg_meter_drop(meter, list[i].kind, list[i].key);
}

// vg_meter_note leaves something to be dropped. Where that becomes too much, it is everything.
static void vg_meter_note(struct vg_meter *meter, enum vg_forgotten_kind kind, uint64_t key)
{
	uint32_t count;

	vg_lock(&meter->forgotten_mutex);
	count = atomic_load(&meter->forgotten_count);
	if (count == vg_most_forgotten) {
		kind = vg_forget_everything;
		count = 0;
	}
	meter->forgotten[count] = (struct vg_forgotten){kind, key};
	atomic_store(&meter->forgotten_count, count + 1);
	vg_unlock(&meter->forgotten_mutex);
}

// vg_meter_lock_for_end locks the meter for what is about to end. Whoever has it may be about to
// ask the driver for just that. Where it is stuck in the driver, it is waited for once.
static bool vg_meter_lock_for_end(struct vg_meter *meter)
{
	uint32_t passes = atomic_load_explicit(&meter->passes, memory_order_relaxed);

	if (vg_meter_try_lock(meter))
		return true;
	if (atomic_load_explicit(&meter->stuck_at, memory_order_relaxed) == passes)
		return false;
	if (vg_meter_lock(meter, vg_end_wait_ns))
		return true;
	atomic_store_explicit(&meter->stuck_at, passes, memory_order_relaxed);
	return false;
}

void vg_meter_forget(struct vg_meter *meter, enum vg_forgotten_kind kind, uint64_t key)
{
	if (!vg_meter_lock_for_end(meter)) {
		vg_meter_note(meter, kind, key);
		return;
	}
	vg_meter_drop(meter, kind, key);
	vg_meter_unlock(meter);
}

void vg_meter_drop_context(struct vg_meter *meter, uint64_t context)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used;) {
		if (meter->streams[i].context == context)
			vg_stream_remove(meter, i);
		else
			i++;
	}
	if (meter->base_context == context) {
		meter->base = meter->newer = NULL;
		meter->renewing = false;
	}
	if (meter->probe.context == context)
		vg_probe_drop(&meter->probe);
	vg_lead_drop(&meter->lead, context);
}
