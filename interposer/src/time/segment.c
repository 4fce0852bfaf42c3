// SPDX-License-Identifier: Apache-2.0

#include "segment.h"

#include "base/now.h"
#include "base/number.h"
#include "driver/capture.h"
#include "driver/handle.h"
#include "driver/stream.h"
#include "others.h"

enum {
	vg_segment_ns = 1000000,     // work between two events
	vg_solo_ns = 200000,         // work in a segment that measures one class
	vg_solo_every = 4,           // every fourth segment measures one class
	vg_short_ns = 150000,        // shorter work is short in comparison with an event's time
	vg_lately_ns = 30000000,
	vg_heavy_ns = 1500000,       // each piece of longer work is measured
	vg_first_samples = 4,        // samples of a class without a pause between two samples
	// vg_early_sample_ns is the first pause between two later samples. The pause doubles with
	// each sample.
	vg_early_sample_ns = 400000000,
	vg_alone_sample_ns = 100000000, // pause between two samples without other processes
	vg_samplings = 4,            // limit of the doublings; vg_sample_ns also limits the pause
	vg_sample_pieces = 4,        // pieces in a sample of short work
};

// vg_sample_ns is the longest time between two samples of short work. Twice that time is the
// longest time for long work.
static const uint64_t vg_sample_ns = 3000000000;

// vg_record records an event in a stream, and reports whether it succeeded. vg_record creates the event
// at the first use. vg_record records nothing if the interposer must not touch the stream.
static bool vg_record(CUevent *event, struct vg_stream *stream, bool per_thread)
{
	CUresult result = CUDA_SUCCESS;
	int mode;

	if (stream->blind || !vg_capture_touch_begin(stream->handle, per_thread))
		return false;
	if (!*event) {
		mode = vg_capture_relax();
		result = vg_stream_event(event, stream->context, 0);
		vg_capture_unrelax(mode);
	}
	if (result)
		*event = NULL;
	else
		result = vg_stream_record(*event, stream->handle, per_thread);
	vg_capture_touch_end();
	stream->failures += result != CUDA_SUCCESS;
	return result == CUDA_SUCCESS;
}

// ---- segments

// vg_base_renew records a base event if the last base event is not recent. The meter measures
// segments of several streams against the base event. The old base event is used until the GPU has
// reached the new base event, which may queue behind other work.
static void vg_base_renew(struct vg_meter *meter, struct vg_stream *stream, uint64_t now,
			  bool per_thread)
{
	if (meter->base_context != stream->context) {
		vg_meter_drop_event(&meter->base);
		vg_meter_drop_event(&meter->newer);
		meter->renewing = false;
		meter->base_context = stream->context;
	} else if (meter->base && now - meter->base_made < vg_base_life_ns) {
		return;
	}
	meter->base_made = now;
	if (meter->base) {
		meter->renewing = vg_record(&meter->newer, stream, per_thread);
		return;
	}
	meter->cover_count = 0;
	if (!vg_record(&meter->base, stream, per_thread))
		vg_meter_drop_event(&meter->base);
}

// vg_others_busy reports whether other streams have had work since `since`.
static bool vg_others_busy(const struct vg_meter *meter, const struct vg_stream *stream, uint64_t since)
{
	VG_EACH_STREAM(other, meter) {
		if (other != stream && (other->tail != other->head || other->idle_at > since))
			return true;
	}
	return false;
}

// vg_mark_many marks the unfinished segments of other streams as running beside other work, which
// may have begun after these segments.
static void vg_mark_many(struct vg_meter *meter, const struct vg_stream *stream)
{
	VG_EACH_STREAM(other, meter) {
		uint32_t last = other->head + (other->open ? 1 : 0);

		for (uint32_t s = other->tail; other != stream && s != last; s++)
			other->ring[s % vg_ring].many = true;
	}
}

// vg_sample_interval returns the time between two samples of a class. Without other processes,
// frequent samples soon find work whose length varies with the GPU's clock. Beside other processes,
// each sample costs time, because the event before the work starts the process's slice. A kernel as
// long as a slice may need a second slice after that event. Long work is therefore sampled less
// often.
static uint64_t vg_sample_interval(const struct vg_meter *meter, const struct vg_class *class, uint64_t now)
{
	bool lengthy = class->ns >= vg_lengthy_ns;
	uint32_t later = class->samples - vg_first_samples;

	if (class->samples < vg_first_samples)
		return 0;
	// The look at other processes costs time, too.
	if (now - class->sampled < vg_alone_sample_ns || vg_others_none(meter->pages, meter->device))
		return vg_alone_sample_ns;
	later = later < vg_samplings ? later : vg_samplings;
	return vg_min((uint64_t)vg_early_sample_ns << (later + (lengthy ? 2 : 0)),
		      lengthy ? 2 * vg_sample_ns : vg_sample_ns);
}

// vg_sample reports whether a segment becomes a sample: known work that runs alone, measured from
// its beginning. A sample of short work has several pieces, because pieces may differ.
static bool vg_sample(const struct vg_meter *meter, struct vg_class *class, const struct vg_segment *segment,
		      uint64_t now)
{
	bool due = vg_estimate_is_known(class, now) && now - class->sampled >= vg_sample_interval(meter, class, now);

	if (due) {
		class->sampled = now;
		class->samples++;
		class->to_see = class->ns < vg_lengthy_ns ? vg_sample_pieces : 1;
	}
	// Single pieces do not show how streams side by side overlap.
	return !segment->many && (class->to_see > 0 || vg_estimate_is_checked(class));
}

// vg_begin_first reports whether an event should precede work on an idle stream that is not a
// sample. Streams that run side by side need all events to show their overlap.
static bool vg_begin_first(const struct vg_meter *meter, const struct vg_stream *stream,
			   const struct vg_segment *segment, const struct vg_class *class, uint64_t now)
{
	return !vg_estimate_is_known(class, now) || class->ns >= vg_heavy_ns ||
	       ((class->ns >= vg_short_ns || segment->solo) &&
		vg_others_busy(meter, stream, now - vg_lately_ns));
}

// vg_begin_record records the event before work on an idle stream, and stores the least time of a
// recording.
static void vg_begin_record(struct vg_meter *meter, struct vg_stream *stream,
			    struct vg_segment *segment, bool per_thread)
{
	uint64_t from = vg_now();
	int64_t took;

	segment->covered = segment->begun = vg_record(&segment->begin, stream, per_thread);
	segment->begun_at = vg_now();
	took = (int64_t)(segment->begun_at - from);
	if (segment->begun && (!meter->recording || took < meter->recording))
		meter->recording = took;
}

// vg_segment_begin opens a segment. On a stream with unfinished work, the segment is measured from
// the end of the segment before. On an idle stream, the measurement begins before the segment's
// first piece of work or, at a lower cost, at the next piece.
static void vg_segment_begin(struct vg_meter *meter, struct vg_stream *stream,
			     struct vg_class *class, uint64_t now, bool per_thread)
{
	struct vg_segment *segment = vg_stream_segment(stream);
	struct vg_segment *before = &stream->ring[(stream->head + vg_ring - 1) % vg_ring];
	CUevent begin = segment->begin, end = segment->end;
	bool sample;

	*segment = (struct vg_segment){.begin = begin, .end = end, .begun_at = now,
				       .solo = stream->turns++ % vg_solo_every == 0};
	segment->many = meter->overlap && meter->overlap < 1000;
	if (!segment->many && vg_others_busy(meter, stream, now)) {
		segment->many = true;
		vg_mark_many(meter, stream);
	}
	stream->open = true;
	if (stream->blind)
		return;
	sample = vg_sample(meter, class, segment, now);
	segment->solo |= sample;
	if (segment->many)
		vg_base_renew(meter, stream, now, per_thread);
	if (stream->head != stream->tail && !vg_stream_event_done(before->end)) {
		segment->chained = segment->covered = true;
	} else if (sample || vg_begin_first(meter, stream, segment, class, now)) {
		if (sample && class->to_see > 0)
			vg_lead_send(&meter->lead, stream->handle, stream->context, per_thread);
		vg_begin_record(meter, stream, segment, per_thread);
	}
}

static void vg_segment_add(struct vg_meter *meter, struct vg_segment *segment,
			   struct vg_class *class, int64_t charge, uint64_t now)
{
	segment->pieces++;
	meter->pieces++;
	segment->charged += charge;
	segment->work += (int64_t)class->ns;
	meter->outstanding += charge;
	if (!class->measured)
		class->opened = now;
	if (!vg_estimate_is_known(class, now)) {
		if (!segment->fresh)
			vg_meter_unmeasured_begin(meter, class->also, now);
		segment->fresh = true;
		segment->also |= class->also;
	}
	if (!segment->covered) {
		segment->early = segment->charged;
		segment->lead = segment->pieces == 1 ? segment->work : 0;
		segment->key = segment->pieces == 1 || segment->key == class->key ? class->key : 0;
		return;
	}
	if (!segment->lengthy && (!class->measured || class->ns >= vg_lengthy_ns ||
				  vg_estimate_is_doubtful(class, now))) {
		segment->lengthy = true;
		meter->lengthy++;
	}
	segment->key = segment->count == 0 || segment->key == class->key ? class->key : 0;
	segment->count++;
}

// vg_segment_is_long reports whether a segment has enough work to end with an event.
static bool vg_segment_is_long(const struct vg_segment *segment)
{
	return segment->work >= vg_segment_ns || segment->pieces >= vg_many_pieces;
}

static bool vg_segment_full(const struct vg_segment *segment, const struct vg_class *class,
			    uint64_t now)
{
	return vg_segment_is_long(segment) || !vg_estimate_is_known(class, now) ||
	       (segment->solo && segment->work >= vg_solo_ns);
}

int64_t vg_segment_room(const struct vg_stream *stream, const struct vg_class *class)
{
	const struct vg_segment *segment = &stream->ring[stream->head % vg_ring];
	int64_t full = segment->solo ? vg_solo_ns : vg_segment_ns;
	int64_t pieces = (int64_t)vg_many_pieces - segment->pieces - 1;
	int64_t room = full - segment->work - 1;

	if (!stream->open || !segment->covered || segment->fresh || room <= 0 || pieces <= 0 ||
	    (segment->key != class->key && segment->key != 0))
		return 0;
	pieces *= (int64_t)class->ns;
	return room < pieces ? room : pieces;
}

// vg_must_close reports whether the open segment has to end before more work.
static bool vg_must_close(const struct vg_segment *segment, const struct vg_class *class,
			  uint64_t now)
{
	return !vg_estimate_is_known(class, now) || vg_segment_is_long(segment) ||
	       (segment->solo && segment->count && segment->key != class->key);
}

bool vg_segment_before(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class,
		       int64_t charge, uint64_t now, bool per_thread)
{
	bool idle = now > stream->idle_at + vg_idle_slack_ns;
	struct vg_segment *segment = vg_stream_segment(stream);

	// The work may take longer than estimated, or may wait for other streams.
	if (idle && stream->open && (segment->covered || segment->many) && !vg_stream_is_done(stream->handle, per_thread)) {
		stream->idle_at = now;
		idle = false;
	}
	if (idle && stream->open && segment->covered)
		segment->idle += (int64_t)(now - stream->idle_at);
	if (stream->open && vg_must_close(segment, class, now))
		vg_segment_close(stream, per_thread);
	segment = vg_stream_segment(stream);
	if (!stream->open)
		vg_segment_begin(meter, stream, class, now, per_thread);
	else if (!segment->covered && !idle && atomic_load(&stream->on_way->count) <= 0)
		segment->covered = vg_record(&segment->begin, stream, per_thread);
	stream->idle_at = (idle ? now : stream->idle_at) + class->ns;
	vg_segment_add(meter, segment, class, charge, now);
	if (!segment->covered)
		return segment->fresh;
	return vg_segment_full(segment, class, now) || (segment->solo && (segment->begun || vg_estimate_is_checked(class)));
}

// vg_not_measured prevents launches of a class from waiting for the class's first measurement,
// which will not come.
static void vg_not_measured(struct vg_meter *meter, const struct vg_segment *segment)
{
	struct vg_class *class = segment->key ? vg_estimate_of(&meter->estimates, segment->key, 0) : NULL;

	if (class && !class->measured)
		class->opened = 0;
}

// vg_stream_is_launching reports whether work of the open segment may not be in the stream yet. The
// last launch in progress then closes the segment. A slow launch may never end: after vg_stuck_ns
// the segment closes without that launch, and is not measured.
static bool vg_stream_is_launching(struct vg_stream *stream)
{
	struct vg_on_way *on_way = stream->on_way;
	uint64_t now;

	if (atomic_load(&on_way->count) > 0) {
		now = vg_now();
		// Either the last launch reads `awaited`, or the count below no longer contains that
		// launch.
		if (!atomic_exchange(&on_way->awaited, true))
			on_way->since = now;
		if (atomic_load(&on_way->count) > 0) {
			if (now - on_way->since <= vg_stuck_ns)
				return true;
			atomic_store(&on_way->count, 0);
			vg_stream_segment(stream)->dirty = true;
		}
	}
	atomic_store(&on_way->awaited, false);
	return false;
}

void vg_segment_failed(struct vg_meter *meter, struct vg_stream *stream, uint32_t number, int64_t charge,
		       bool covered)
{
	struct vg_segment *segment = &stream->ring[number % vg_ring];

	if (number - stream->tail >= stream->head + stream->open - stream->tail || segment->pieces == 0)
		return;
	meter->owed -= charge;
	meter->outstanding -= charge;
	meter->pieces--;
	segment->pieces--;
	segment->charged -= charge;
	segment->count -= covered;
	segment->early -= covered ? 0 : charge;
	if (segment->pieces)
		return;
	// No launch of the segment has succeeded.
	vg_not_measured(meter, segment);
	if (number == stream->head) {
		vg_meter_settle(meter, segment);
		stream->open = false;
	}
}

void vg_segment_after(struct vg_meter *meter, struct vg_stream *stream, bool per_thread)
{
	struct vg_segment *segment = vg_stream_segment(stream);

	if (!stream->open)
		return; // another thread has closed the segment
	// Queries detect the end of unmeasured work.
	if (stream->blind || (!segment->fresh && !(segment->covered && (vg_segment_is_long(segment) || segment->solo))))
		return;
	if ((!vg_segment_close(stream, per_thread) && !vg_stream_is_launching(stream)) || !segment->covered)
		vg_not_measured(meter, segment);
}

void vg_segment_late(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class, uint64_t at,
		     bool per_thread)
{
	struct vg_segment *segment;

	vg_segment_before(meter, stream, class, 0, at, per_thread);
	segment = vg_stream_segment(stream);
	if (!segment->fresh)
		vg_meter_unmeasured_begin(meter, class->also, at);
	segment->fresh = segment->dirty = true;
	segment->begun_at = vg_min(segment->begun_at, at);
	vg_not_measured(meter, segment);
	vg_segment_close(stream, per_thread);
}

bool vg_segment_close(struct vg_stream *stream, bool per_thread)
{
	struct vg_segment *segment = vg_stream_segment(stream);

	if (!stream->open || stream->head + 1 - stream->tail >= vg_ring || vg_stream_is_launching(stream))
		// The ring is full, or work is not in the stream yet: the segment stays open.
		return false;
	if (!vg_record(&segment->end, stream, per_thread))
		return false;
	segment->closed_at = vg_now();
	stream->head++;
	stream->open = false;
	return true;
}

void vg_segment_close_all(struct vg_meter *meter, uint64_t context, uint64_t thread, uint64_t now)
{
	if (meter->pieces >= vg_many_pieces)
		return;
	VG_EACH_STREAM(stream, meter) {
		struct vg_segment *segment = vg_stream_segment(stream);

		if (!stream->open || stream->held || !vg_stream_is_within(stream, context, thread) ||
		    vg_capture_is_on(stream->handle, stream->thread != 0))
			continue;
		if (vg_segment_close(stream, stream->thread != 0) && now > stream->idle_at + vg_idle_slack_ns)
			segment->idle += (int64_t)(now - stream->idle_at);
	}
}
