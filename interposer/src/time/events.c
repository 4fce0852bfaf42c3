// SPDX-License-Identifier: Apache-2.0

#include "events.h"

#include "base/error.h"
#include "base/number.h"
#include "cover.h"
#include "distrust.h"
#include "driver/capture.h"
#include "driver/stream.h"
#include "meter.h"
#include "others.h"

enum {
	vg_varied_one = 4, // the same for a single piece, whose time includes the events' own time
	vg_idle_part = 8,              // a segment beside others may be idle for 1/8 of its time
	vg_event_error_ns = 500,       // error of the time between two events
	// A launch takes less time than the recording of vg_launch_records events. On an H200, a launch
	// takes as long as 2.4 recordings.
	vg_launch_records = 4,
	vg_union_window_ns = 4000000,
	vg_overlap_least = 20,
};

// vg_base_turn switches to the newer base event after the GPU has reached that event.
static void vg_base_turn(struct vg_meter *meter)
{
	CUevent older = meter->base;
	int64_t since;

	if (!meter->renewing || !vg_stream_elapsed(older, meter->newer, &since))
		return;
	for (uint32_t i = 0; i < meter->cover_count; i++) {
		meter->covers[i].from -= since;
		meter->covers[i].to -= since;
	}
	meter->base = meter->newer;
	meter->newer = older;
	meter->renewing = false;
}

// vg_fresh_part returns the part of a segment's time that no other stream has accounted for, in ns.
static int64_t vg_fresh_part(struct vg_meter *meter, const struct vg_stream *stream,
			     const struct vg_segment *segment, int64_t interval)
{
	int64_t end;

	if (!meter->base || meter->base_context != stream->context ||
	    !vg_stream_elapsed(meter->base, segment->end, &end))
		return interval;
	return vg_cover_add(meter->covers, &meter->cover_count,
			    (struct vg_cover){end - interval, end});
}

// vg_took is the GPU time that a segment took, in ns.
struct vg_took {
	int64_t ns;
	int64_t fresh; // part of `ns` that no other stream has accounted for
	bool sure;   // the time contains no slices of others, as probes or their absence show
	bool rough;  // other containers' slices were deducted from the time
	bool unpaid; // some slices may remain: others were charged less than probes measured
};

// vg_deduct returns the part of `claim` ns that is deducted as other containers' time, because the
// other containers were charged for that part. vg_claims_settle deducts the rest if the other
// processes are charged soon.
static int64_t vg_deduct(struct vg_meter *meter, int64_t claim, uint64_t now)
{
	uint64_t charged = vg_others_charged(meter->pages, meter->device, now);
	int64_t part = vg_others_deduct(&meter->deducted, charged, claim);
	int64_t most = claim > vg_others_late_ns ? claim : vg_others_late_ns;

	if (part < claim) {
		meter->claimed += claim - part;
		vg_distrust_lapsed(meter, meter->claimed - most);
		meter->claimed = meter->claimed < most ? meter->claimed : most;
		meter->claimed_at = now;
	}
	return part;
}

// vg_claims_settle deducts the part of earlier claims for which others have been charged since.
static void vg_claims_settle(struct vg_meter *meter, uint64_t now)
{
	int64_t claim = meter->claimed;
	uint64_t since = meter->claimed_at;

	if (claim == 0)
		return;
	meter->claimed = 0;
	if (now - since > vg_others_late_ns) {
		vg_distrust_lapsed(meter, claim);
		return;
	}
	meter->owed -= vg_deduct(meter, claim, now);
	meter->claimed_at = since;
}

// vg_probes_pass reports whether a probe has shown that probes do not queue behind this work. Each
// segment is checked, because the streams that share a hardware queue change when streams are
// created or destroyed.
static bool vg_probes_pass(const struct vg_meter *meter, const struct vg_segment *segment)
{
	enum vg_pass pass = vg_probe_pass(&meter->probe, segment->end, segment->closed_at);

	if (pass == vg_pass_aliased)
		vg_distrust_aliased(meter);
	return pass == vg_passed;
}

// vg_share_of returns the share of a claim on an interval for the interval's fresh part.
static int64_t vg_share_of(int64_t claim, int64_t fresh, int64_t interval)
{
	int64_t part = interval > 0 ? (int64_t)((double)claim * (double)fresh / (double)interval) : 0;

	return part < claim ? part : claim;
}

// vg_own_part deducts other containers' slices from an interval, as far as probes measured the
// slices and other containers were charged. If probes cover only a part of the interval,
// vg_own_part deducts the measured time only from work of unknown length.
static struct vg_took vg_own_part(struct vg_meter *meter, const struct vg_segment *segment,
				  int64_t interval, int64_t fresh, uint64_t now)
{
	struct vg_took took = {.ns = interval, .fresh = fresh};
	int64_t claim, part;

	if (vg_others_none(meter->pages, meter->device)) {
		took.sure = true;
		return took;
	}
	if (!segment->lengthy || !vg_probes_pass(meter, segment))
		return took;
	claim = vg_probe_others(&meter->probe, segment->end, interval, &took.sure);
	if (!took.sure && !segment->fresh)
		claim = 0;
	// If several streams run at the same time, other containers' slices are deducted only once.
	part = vg_share_of(claim, fresh, interval);
	took.fresh -= vg_deduct(meter, part, now);
	took.unpaid = took.fresh > fresh - part;
	took.ns -= took.unpaid ? fresh - took.fresh : claim;
	took.rough = claim > 0;
	return took;
}

// vg_error returns the time by which the measured time of one piece of a segment may be too high,
// in ns. On an idle stream, a part of the launch is between the begin event and the work.
static uint64_t vg_error(const struct vg_meter *meter, const struct vg_segment *segment)
{
	int64_t launch = segment->begun ? vg_launch_records * meter->recording : 0;

	return (uint64_t)(vg_event_error_ns + launch) / segment->count;
}

// vg_more returns the time that a segment took beyond its charge, in ns. The interval between
// probes limits the precision of deducted slices.
static int64_t vg_more(struct vg_took took, int64_t charged)
{
	return took.ns - charged - (took.rough ? vg_probe_ns : 0);
}

static struct vg_class *vg_segment_class(struct vg_meter *meter, const struct vg_segment *segment)
{
	return vg_estimate_of(&meter->estimates, segment->key, 0);
}

// vg_observe adds the mean time of a segment's pieces to their class.
static void vg_observe(struct vg_meter *meter, const struct vg_segment *segment,
		       struct vg_took took, uint64_t now)
{
	struct vg_class *class = vg_segment_class(meter, segment);
	uint64_t ns = took.ns > 0 ? (uint64_t)took.ns / segment->count : 0;
	uint64_t error = vg_error(meter, segment);

	if (ns == 0 || (took.unpaid && class->measured))
		return; // the events did not measure the work
	class->company = segment->many;
	// If the length varies, the minimum does not predict the length of other pieces. For short
	// work of constant length, pieces without other containers' slices are better than pieces
	// with deductions.
	if (class->unsteady > now) {
		vg_estimate_observe_roughly(class, ns, error, now);
		return;
	}
	if (!took.rough)
		vg_estimate_observe(class, ns, error, now);
	else if (!class->measured || class->ns >= vg_lengthy_ns)
		vg_estimate_observe_roughly(class, ns, error, now);
}

// vg_compare_alone records in a segment's class the time that the segment took beyond its charge.
// If the current estimate is higher than the charge, vg_compare_alone compares with the estimate.
// An excess within the possible errors of the measurement and of the estimate does not count. A
// single piece has more tolerance, because its time includes the events' own time.
static void vg_compare_alone(struct vg_meter *meter, const struct vg_segment *segment,
			     int64_t charged, struct vg_took took, uint64_t now)
{
	struct vg_class *class = vg_segment_class(meter, segment);
	int64_t part = segment->count == 1 ? vg_varied_one : vg_varied;
	int64_t error = (int64_t)((vg_error(meter, segment) + class->error) * segment->count);
	int64_t known = (int64_t)class->ns * segment->count;
	int64_t expected = charged > known ? charged : known;
	int64_t more = vg_more(took, expected);

	if (class->measured)
		vg_estimate_compare(class, charged, more > expected / part + error ? more : 0, took.sure, now);
}

// vg_compare_together compares the time of several segments of several streams with their charge
// without the discount for overlap. vg_compare_together compares many segments at once, because the
// time of each segment may contain the time of other segments.
static void vg_compare_together(struct vg_meter *meter, const struct vg_segment *segment, uint64_t now)
{
	const struct vg_union *all = &meter->all;
	struct vg_class *class = vg_segment_class(meter, segment);
	int64_t alone = all->charged * 1000 / (int64_t)(meter->overlap ? meter->overlap : 1000);
	int64_t more = vg_more((struct vg_took){.ns = all->ns, .rough = all->rough}, alone);

	if (class->measured)
		vg_estimate_compare(class, alone, more > alone / vg_varied ? more : 0, !all->unsure, now);
}

// vg_overlap_learn updates the overlap of streams from the time and the charge of several segments.
static void vg_overlap_learn(struct vg_meter *meter)
{
	uint64_t overlap = meter->overlap ? meter->overlap : 1000;
	uint64_t seen = overlap * (uint64_t)meter->all.ns / (uint64_t)(meter->all.charged + 1);

	overlap = (overlap * 3 + vg_min(seen, 1000)) / 4;
	meter->overlap = overlap < vg_overlap_least ? vg_overlap_least : overlap;
}

// vg_union_add adds a segment to the union of segments of several streams.
static void vg_union_add(struct vg_meter *meter, const struct vg_segment *segment, int64_t charged,
			 struct vg_took took, uint64_t now)
{
	struct vg_union *all = &meter->all;

	all->ns += took.ns;
	all->charged += charged;
	all->unsure |= !took.sure || took.unpaid;
	all->rough |= took.rough;
	if (all->charged < vg_union_window_ns && all->ns < vg_union_window_ns)
		return;
	if (segment->key)
		vg_compare_together(meter, segment, now);
	vg_overlap_learn(meter);
	*all = (struct vg_union){0};
}

// vg_settle_together charges a segment of several streams for the GPU time that no other stream has
// accounted for. Work right before the segment's measured part also ran beside other streams. An
// estimate for that work would charge the time twice.
static void vg_settle_together(struct vg_meter *meter, const struct vg_segment *segment,
			       struct vg_took took, uint64_t now)
{
	int64_t charged = segment->charged - (segment->lead ? 0 : segment->early);

	took.ns = took.fresh;
	meter->owed += took.ns - charged;
	// Work of unknown length does not show the overlap.
	if (!segment->fresh)
		vg_union_add(meter, segment, charged, took, now);
}

// vg_settle_alone corrects the charge of a segment of one stream. If the time may contain other
// containers' slices, a large excess of short work counts as such slices. Long work is charged the
// whole excess, because the work may have become longer. The other containers' charges are not
// deducted, because the charges may belong to another time.
static void vg_settle_alone(struct vg_meter *meter, const struct vg_segment *segment, struct vg_took took)
{
	int64_t charged = segment->charged - segment->early;
	int64_t more = took.ns - charged;

	if (took.sure || segment->fresh || segment->lengthy || more < charged / vg_varied)
		meter->owed += more;
}

// vg_segment_interval sets `interval` to the time between a segment's events, and reports whether
// that time is a measurement of the segment. The time of work of unknown length may contain idle time.
static bool vg_segment_interval(struct vg_stream *stream, const struct vg_segment *segment, int64_t *interval)
{
	const struct vg_segment *before = &stream->ring[(stream->tail + vg_ring - 1) % vg_ring];

	if (!segment->covered || segment->count == 0 || segment->dirty || (segment->fresh && segment->early))
		return false;
	if (!vg_stream_elapsed(segment->chained ? before->end : segment->begin, segment->end, interval)) {
		stream->failures++;
		return false;
	}
	stream->failures = 0;
	if (segment->fresh)
		return true;
	// With several streams, a little idle time may be measured as work. This error is smaller
	// than the error of a charge by estimate, which would be added to the other streams'
	// charges.
	if (segment->many)
		return segment->idle <= *interval / vg_idle_part;
	// The idle time is at most as long as estimated. The rest is work, if it exceeds the charge.
	*interval -= segment->idle;
	return segment->idle == 0 || *interval > segment->charged - segment->early;
}

// vg_segment_is_longer reports whether probes show that a segment took longer than its charge. The
// time of concurrent segments contains other work, and the time of some segments contains idle time.
static bool vg_segment_is_longer(const struct vg_meter *meter, const struct vg_segment *segment, int64_t interval)
{
	return !segment->many && segment->idle == 0 &&
	       vg_probe_own(&meter->probe, segment->end, interval) >
		       segment->charged + segment->charged / vg_varied + vg_probe_ns;
}

// vg_segment_doubt marks a segment as long work if the segment took longer than its charge. The same
// applies if the segment's class has become doubtful since the launch.
static void vg_segment_doubt(struct vg_meter *meter, struct vg_segment *segment, int64_t interval, uint64_t now)
{
	if (segment->lengthy)
		return;
	if ((segment->key && vg_estimate_is_doubtful(vg_segment_class(meter, segment), now)) ||
	    vg_segment_is_longer(meter, segment, interval)) {
		segment->lengthy = true;
		meter->lengthy++;
	}
}

static void vg_segment_read(struct vg_meter *meter, struct vg_stream *stream,
			    struct vg_segment *segment, uint64_t now)
{
	struct vg_took took;
	int64_t interval, fresh;

	if (!vg_segment_interval(stream, segment, &interval)) {
		if (segment->fresh && segment->pieces)
			vg_meter_lose(meter, segment, now);
		return;
	}
	vg_meter_charge_also(meter, segment, interval);
	vg_segment_doubt(meter, segment, interval, now);
	fresh = segment->many ? vg_fresh_part(meter, stream, segment, segment->lead + interval) : interval;
	took = vg_own_part(meter, segment, interval, fresh, now);
	if (segment->key && !segment->many && !took.unpaid && !(segment->fresh && segment->idle))
		vg_compare_alone(meter, segment, segment->charged - segment->early, took, now);
	if (segment->key && !segment->idle)
		vg_observe(meter, segment, took, now);
	if (segment->many)
		vg_settle_together(meter, segment, took, now);
	else
		vg_settle_alone(meter, segment, took);
}

// vg_segment_done reports whether a segment is done. If the driver returns an error, the segment
// counts as done and is not measured.
static bool vg_segment_done(struct vg_stream *stream, struct vg_segment *segment)
{
	CUresult result = VG_CALL(cuEventQuery, segment->end);

	if (result && result != CUDA_ERROR_NOT_READY) {
		stream->failures++;
		segment->dirty = true;
	}
	return result != CUDA_ERROR_NOT_READY;
}

void vg_events_read(struct vg_meter *meter, uint64_t now)
{
	int mode = vg_capture_relax();

	vg_claims_settle(meter, now);
	vg_probe_read(&meter->probe);
	vg_distrust_follow(meter);
	vg_base_turn(meter);
	VG_EACH_STREAM(stream, meter) {
		while (!stream->held && stream->tail != stream->head) {
			struct vg_segment *segment = &stream->ring[stream->tail % vg_ring];

			if (!vg_segment_done(stream, segment))
				break;
			vg_segment_read(meter, stream, segment, now);
			vg_meter_settle(meter, segment);
			stream->tail++;
		}
		if (stream->tail == stream->head && !stream->open && stream->idle_at > now)
			stream->idle_at = now; // the work finished earlier than estimated
	}
	vg_capture_unrelax(mode);
}

uint64_t vg_events_probe_due(const struct vg_meter *meter, uint64_t now)
{
	uint64_t due = vg_meter_has_long_work(meter) ? now : vg_meter_overdue(meter);

	return due != UINT64_MAX && vg_others_none(meter->pages, meter->device) ? UINT64_MAX : due;
}

void vg_events_probe(struct vg_meter *meter, uint64_t context, uint64_t now)
{
	int mode = vg_capture_relax();

	vg_probe_send(&meter->probe, context, now);
	vg_capture_unrelax(mode);
}
