// SPDX-License-Identifier: Apache-2.0

// This file implements the meter of a GPU and the table of its streams. segment.c places the
// events.

#include "base/mutex.h"
#include "base/now.h"
#include "base/number.h"
#include "driver/capture.h"
#include "meter.h"
#include "pages/bucket.h"
#include "pages/pages.h"

#include <string.h>

static bool vg_stream_is(const struct vg_stream *stream, CUstream handle, uint64_t context,
			 uint64_t thread)
{
	return stream->used && !stream->gone && stream->handle == handle && stream->context == context &&
	       stream->thread == thread;
}

void vg_meter_drop_event(CUevent *event)
{
	int mode;

	if (!*event)
		return;
	mode = vg_capture_relax();
	VG_CALL(cuEventDestroy_v2, *event);
	vg_capture_unrelax(mode);
	*event = NULL;
}

// vg_unmeasured_note replaces the start of the meter's unmeasured work in this process's slot, for
// each of these GPUs. The slot may have the start of work of another meter.
static void vg_unmeasured_note(const struct vg_meter *meter, uint32_t gpus, uint64_t before, uint64_t since)
{
	const struct vg_pages *pages = meter->pages;

	for (uint32_t i = 0; gpus >> i && pages->slot != vg_no_slot; i++) {
		uint64_t expected = before;

		if (gpus >> i & 1)
			__atomic_compare_exchange_n(&vg_slot_device(pages, (uint32_t)pages->slot, i)->unmeasured_ns,
						    &expected, since, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	}
}

void vg_meter_unmeasured_begin(struct vg_meter *meter, uint32_t also, uint64_t now)
{
	struct vg_unmeasured *work = &meter->unmeasured;
	uint32_t fresh = (also | UINT32_C(1) << meter->device) & ~work->gpus;

	if (work->count++ == 0)
		work->since = now;
	work->gpus |= fresh;
	vg_unmeasured_note(meter, fresh, 0, work->since);
}

static void vg_unmeasured_end(struct vg_meter *meter)
{
	struct vg_unmeasured *work = &meter->unmeasured;

	if (--work->count)
		return;
	vg_unmeasured_note(meter, work->gpus, work->since, 0);
	work->gpus = 0;
	work->since = 0;
}

void vg_meter_charge_also(const struct vg_meter *meter, const struct vg_segment *segment, int64_t ns)
{
	const struct vg_pages *pages = meter->pages;

	for (uint32_t i = 0; segment->also >> i; i++)
		if (segment->also >> i & 1) {
			vg_bucket_charge(&pages->usage->header.devices[i], ns);
			vg_add(&vg_slot_device(pages, (uint32_t)pages->slot, i)->gpu_time_ns, (uint64_t)ns);
		}
}

void vg_meter_lose(struct vg_meter *meter, const struct vg_segment *segment, uint64_t now)
{
	uint64_t from = vg_max(segment->begun_at, meter->unmeasured.settled);

	meter->unmeasured.settled = vg_max(now, meter->unmeasured.settled);
	meter->owed += (int64_t)(now > from ? now - from : 0) - segment->charged;
	vg_meter_charge_also(meter, segment, (int64_t)(now > segment->begun_at ? now - segment->begun_at : 0));
}

void vg_meter_settle(struct vg_meter *meter, const struct vg_segment *segment)
{
	meter->settled++;
	meter->pieces -= segment->pieces;
	meter->outstanding -= segment->charged;
	meter->lengthy -= segment->lengthy;
	if (segment->fresh)
		vg_unmeasured_end(meter);
}

// vg_meter_end_one settles a segment that will not be measured, whose work ended at `now`.
static void vg_meter_end_one(struct vg_meter *meter, const struct vg_segment *segment, uint64_t now)
{
	if (segment->fresh)
		vg_meter_lose(meter, segment, now);
	vg_meter_settle(meter, segment);
}

// vg_meter_end_blind charges the open segment of a blind stream by wall time. The work may have
// finished long before `now`. Known work counts for its charge, unless a query found the work
// unfinished later. The estimate learns from this time, but not from a longer possible time, which
// contains waits of launches for allowance.
static void vg_meter_end_blind(struct vg_meter *meter, struct vg_segment *segment, uint64_t now)
{
	uint64_t expected = segment->begun_at + (uint64_t)segment->charged;
	uint64_t end = segment->fresh ? now : vg_min(vg_max(expected, segment->busy_at), now);
	uint64_t each = end > segment->begun_at ? (end - segment->begun_at) / segment->pieces : 0;

	if (segment->key && each)
		vg_estimate_observe(vg_estimate_of(&meter->estimates, segment->key, each), each, each, now);
	if (!segment->fresh)
		vg_meter_lose(meter, segment, end);
}

void vg_meter_end(struct vg_meter *meter, struct vg_stream *stream, uint64_t now)
{
	struct vg_segment *segment = vg_stream_segment(stream);

	if (stream->blind && segment->pieces)
		vg_meter_end_blind(meter, segment, now);
	vg_meter_end_one(meter, segment, now);
	stream->open = false;
}

void vg_meter_empty(struct vg_meter *meter, struct vg_stream *stream, uint64_t now)
{
	for (; stream->tail != stream->head; stream->tail++)
		vg_meter_end_one(meter, &stream->ring[stream->tail % vg_ring], now);
	if (stream->open)
		vg_meter_end(meter, stream, now);
}

void vg_meter_blind(struct vg_meter *meter, struct vg_stream *stream)
{
	vg_meter_empty(meter, stream, vg_now());
	vg_meter_drop_events(stream);
	stream->blind = meter->blind = true;
}

void vg_meter_drop_events(struct vg_stream *stream)
{
	for (size_t s = 0; s < vg_ring; s++) {
		vg_meter_drop_event(&stream->ring[s].begin);
		vg_meter_drop_event(&stream->ring[s].end);
	}
}

// vg_stream_loss ranks the measurements that are lost if a stream is dropped: none, of known work, or
// of work of unknown length.
static int vg_stream_loss(const struct vg_stream *stream, uint64_t now)
{
	int loss = stream->tail != stream->head || stream->idle_at >= now;

	for (uint32_t i = stream->tail; i != stream->head + (stream->open ? 1 : 0); i++)
		if (stream->ring[i % vg_ring].fresh)
			loss = 2;
	return loss;
}

// vg_stream_spare makes room for a stream. vg_stream_spare drops the stream with the least loss. Of
// several streams, vg_stream_spare drops the stream that has been idle for longest, which may belong
// to a thread that has ended.
static struct vg_stream *vg_stream_spare(struct vg_meter *meter)
{
	uint64_t now = vg_now();
	struct vg_stream *spare = &meter->streams[0];
	int least = vg_stream_loss(spare, now);

	for (size_t i = 1; i < vg_meter_streams; i++) {
		struct vg_stream *stream = &meter->streams[i];
		int loss = vg_stream_loss(stream, now);

		if (loss < least || (loss == least && stream->idle_at < spare->idle_at)) {
			spare = stream;
			least = loss;
		}
	}
	vg_meter_empty(meter, spare, now);
	if (!spare->held) // if held, the end of the context destroys the events
		vg_meter_drop_events(spare);
	return spare;
}

// vg_on_way_of returns the counter of a stream's launches.
static struct vg_on_way *vg_on_way_of(struct vg_meter *meter, CUstream handle, uint64_t context,
				      uint64_t thread)
{
	uint64_t hash = ((uint64_t)(uintptr_t)handle + 3 * context + 5 * thread) * UINT64_C(0x9e3779b97f4a7c15);

	return &meter->on_way[(hash >> 40) % vg_on_ways];
}

struct vg_stream *vg_meter_stream(struct vg_meter *meter, CUstream handle, uint64_t context,
				  uint64_t thread)
{
	struct vg_stream *stream = meter->last;

	if (stream && vg_stream_is(stream, handle, context, thread))
		return stream;
	for (stream = meter->streams; stream < meter->streams + vg_meter_streams && stream->used; stream++)
		if (vg_stream_is(stream, handle, context, thread))
			return meter->last = stream;
	if (stream == meter->streams + vg_meter_streams)
		stream = vg_stream_spare(meter);
	*stream = (struct vg_stream){.used = true, .handle = handle, .context = context, .thread = thread,
				     .on_way = vg_on_way_of(meter, handle, context, thread)};
	return meter->last = stream;
}

// vg_stream_remove removes a stream and moves the last stream to the removed stream's place, to
// keep the table dense.
static void vg_stream_remove(struct vg_meter *meter, struct vg_stream *stream, uint64_t now)
{
	struct vg_stream *last = stream;

	vg_meter_empty(meter, stream, now);
	while (last + 1 < meter->streams + vg_meter_streams && last[1].used)
		last++;
	*stream = *last;
	memset(last, 0, sizeof *last);
	meter->last = NULL;
}

// vg_stream_go ends the record of a stream that is about to be destroyed. vg_stream_go reports
// whether the stream has work of unknown length whose event is still to be read.
static bool vg_stream_go(struct vg_meter *meter, struct vg_stream *stream, uint64_t now)
{
	if (stream->open)
		vg_meter_end(meter, stream, now);
	for (uint32_t i = stream->tail; i != stream->head; i++)
		stream->gone |= stream->ring[i % vg_ring].fresh;
	meter->last = NULL;
	meter->gone |= stream->gone;
	return stream->gone;
}

static void vg_meter_drop_stream(struct vg_meter *meter, CUstream handle, uint64_t now)
{
	VG_EACH_STREAM(stream, meter) {
		if (stream->handle != handle || stream->thread || stream->gone)
			continue;
		if (vg_stream_go(meter, stream, now))
			return;
		vg_meter_drop_events(stream);
		vg_stream_remove(meter, stream, now);
		return;
	}
}

void vg_meter_drop_gone(struct vg_meter *meter)
{
	bool any = false;

	for (size_t i = 0; meter->gone && i < vg_meter_streams && meter->streams[i].used;) {
		struct vg_stream *stream = &meter->streams[i];

		any |= stream->gone;
		if (stream->gone && !stream->held && stream->tail == stream->head) {
			vg_meter_drop_events(stream);
			vg_stream_remove(meter, stream, vg_now());
		} else {
			i++;
		}
	}
	meter->gone = any;
}

// vg_meter_drop_of drops the records of a context other than its streams.
static void vg_meter_drop_of(struct vg_meter *meter, uint64_t context)
{
	if (meter->base_context == context) {
		meter->base = meter->newer = NULL;
		meter->renewing = false;
	}
	if (meter->probe.context == context)
		vg_probe_drop(&meter->probe);
	vg_lead_drop(&meter->lead, context);
}

// vg_meter_drop_all does not destroy events, because some of the events' contexts may have ended.
void vg_meter_drop_all(struct vg_meter *meter)
{
	uint64_t now = vg_now();

	atomic_store(&meter->stale, false);
	while (meter->streams[0].used)
		vg_stream_remove(meter, meter->streams, now);
	vg_meter_drop_of(meter, meter->base_context);
	vg_meter_drop_of(meter, meter->probe.context);
	vg_meter_drop_of(meter, meter->lead.context);
	vg_estimates_forget(&meter->estimates);
}

// vg_meter_hold holds the streams of a context until the result of the context's destruction is
// known.
static void vg_meter_hold(struct vg_meter *meter, uint64_t context, bool held)
{
	VG_EACH_STREAM(stream, meter)
		if (stream->context == context)
			stream->held = held;
}

// vg_meter_left drops a destroyed context, with the work that other threads launched during the
// destruction.
static void vg_meter_left(struct vg_meter *meter, uint64_t context, uint64_t now)
{
	for (size_t i = 0; i < vg_meter_streams && meter->streams[i].used;) {
		if (meter->streams[i].context == context)
			vg_stream_remove(meter, &meter->streams[i], now);
		else
			i++;
	}
	vg_meter_drop_of(meter, context);
}

void vg_meter_drop(struct vg_meter *meter, enum vg_end kind, uint64_t key)
{
	uint64_t now = vg_now();

	switch (kind) {
	case vg_end_stream:
		vg_meter_drop_stream(meter, (CUstream)(uintptr_t)key, now);
		break;
	case vg_end_context:
		vg_meter_hold(meter, key, true);
		vg_meter_drop_of(meter, key);
		break;
	case vg_end_kept:
		vg_meter_hold(meter, key, false);
		break;
	case vg_end_left:
		vg_meter_left(meter, key, now);
		break;
	case vg_end_class:
		vg_estimate_forget(&meter->estimates, key);
		break;
	}
}

int64_t vg_meter_charge(const struct vg_meter *meter, const struct vg_class *class)
{
	return (int64_t)(meter->overlap ? class->ns * meter->overlap / 1000 : class->ns);
}

uint64_t vg_meter_since(const struct vg_meter *meter, uint64_t key)
{
	uint64_t since = 0;

	VG_EACH_STREAM(stream, meter) {
		for (uint32_t s = stream->tail; s != stream->head; s++) {
			const struct vg_segment *segment = &stream->ring[s % vg_ring];

			if (segment->key == key && segment->count == 1 && (!since || segment->begun_at < since))
				since = segment->begun_at;
		}
	}
	return since;
}

uint64_t vg_meter_busy_until(const struct vg_meter *meter)
{
	uint64_t until = 0;

	VG_EACH_STREAM(stream, meter)
		until = vg_max(until, stream->idle_at);
	return until;
}

bool vg_meter_has_long_work(const struct vg_meter *meter)
{
	return meter->lengthy > 0 && meter->pieces < vg_many_pieces;
}

uint64_t vg_meter_overdue(const struct vg_meter *meter)
{
	uint64_t first = UINT64_MAX;

	if (meter->pieces >= vg_many_pieces)
		return UINT64_MAX; // a probe could wait for room in the queue
	VG_EACH_STREAM(stream, meter)
		if (stream->tail != stream->head)
			first = vg_min(first, stream->idle_at + vg_probe_ns);
	return first;
}

bool vg_meter_lock_in_turn(struct vg_meter *meter, uint64_t ns)
{
	uint32_t passes;

	do {
		passes = atomic_load_explicit(&meter->passes, memory_order_relaxed);
		if (vg_meter_lock(meter, ns))
			return true;
	} while (atomic_load_explicit(&meter->passes, memory_order_relaxed) != passes);
	return false;
}
