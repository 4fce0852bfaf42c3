// SPDX-License-Identifier: Apache-2.0

// This folder limits the GPU time of a container. This header covers the meter of one GPU, which the
// files of the folder share.
//
// Estimated: the time of each kind of work, from earlier launches of the kind (estimate.c).
//
// Charged: the estimate, when a program launches work (throttle.c). A repeat of the last launch skips
// most checks (fastpath.c). The charge reduces the allowance of the container, which all processes
// share (pages/bucket.c). The driver reports the GPU of a stream (place.c).
//
// Waited for: allowance, the first measurement of a kind of work, and the end of queued work
// (throttle.c). The GPUs of a container wait for allowance together (multi_gpu.c). No wait for the
// driver exceeds vg_stuck_ns.
//
// Measured: segments. A segment is consecutive work of a stream between two events, of about a
// millisecond (segment.c). The measured time corrects the charge and the estimate (events.c). The
// segments of several streams count for the union of their times (cover.c). A lead keeps the launch
// out of the measured time (lead.c).
//
// Not measured: work whose end no event shows (idle.c). Work of unknown length that ends unmeasured
// is charged all time since its launch (meter.c). Objects that end leave the meter (forget.c).
//
// Deducted: the slices of other processes, which late probes show (probe.c, stretch.c), but no more
// than the charges of these processes (others.c). Threads that wait for the GPU send the probes
// (watch.c). The agent gets statistics of the probes (distrust.c).

#ifndef VG_METER_H
#define VG_METER_H

#include "base/mutex.h"
#include "base/now.h"
#include "cover.h"
#include "driver/driver.h"
#include "estimate.h"
#include "lead.h"
#include "probe.h"

enum {
	vg_meter_streams = 128, // measured streams of one process on one GPU
	vg_ring = 8,            // limit of a stream's segments that are not done
	vg_lengthy_ns = 700000, // length from which work seldom runs within one slice
	// A driver's queues hold about twice vg_many_pieces pieces. An event may have to wait for
	// room in a full queue. A segment has at most vg_many_pieces pieces, because the work may be
	// longer than estimated.
	vg_many_pieces = 500,
	vg_idle_slack_ns = 5000, // time by which a stream's `idle_at` may be too early
	vg_on_ways = 64,
	vg_most_failures = 3, // failures of events after which a stream is blind
	vg_stuck_ns = 100000000,     // longest wait for the driver
	vg_meter_wait_ns = 1000000,  // longest wait for a meter, if the caller can continue without it
};

// vg_on_way counts launches in progress. The work of these launches is entered in a segment, but may
// not be in the stream yet. An event that another thread records meanwhile would come before that
// work. Several streams may share a counter.
struct vg_on_way {
	_Atomic int32_t count;
	_Atomic bool awaited; // a segment closes when the count reaches 0
	uint64_t since;       // start of the wait for the count, as vg_now
};

// vg_segment is consecutive work of one stream, followed by an event.
struct vg_segment {
	CUevent begin; // `begin` and `end` are created at the first use
	CUevent end;
	bool chained; // the measured part begins where the segment before this segment ends
	bool begun;   // the measured part begins before the first launch, on an idle stream
	bool covered; // an event marks the start of the measured part
	bool dirty;   // not measured: the end or a launch came too late, or the events failed
	bool many;    // other streams had work at the same time
	bool fresh;   // has work of unknown length
	bool solo;    // accepts work of one class only
	bool lengthy; // has work that may be longer than a slice
	uint16_t also;   // bit mask of the other GPUs that the work uses
	uint32_t pieces; // pieces of work
	uint32_t count;  // pieces in the measured part
	uint64_t key;    // class of the pieces in the measured part; 0: several classes
	int64_t charged; // charge for all work of the segment, in ns
	int64_t early;   // part of `charged` for work before the measured part
	int64_t waited;  // part of `charged` for work that the program has waited for
	int64_t work;    // estimated time of all work of the segment if it runs alone, in ns
	int64_t idle;    // estimated time for which the stream was idle during the segment, in ns
	// part of `work` of the single piece before the measured part; 0: none, or several
	int64_t lead;
	// vg_now at which the segment was opened or, if begun, at which its first event was
	// recorded
	uint64_t begun_at;
	uint64_t closed_at; // vg_now at which the end event was recorded
	uint64_t busy_at;   // last vg_now at which a query found the work of a blind stream unfinished
};

struct vg_stream {
	bool used;
	bool open; // the segment at `head` accepts work
	bool gone; // destroyed, with unmeasured work
	bool held; // must not be queried, because the context may be ending
	CUstream handle;
	uint64_t context;
	uint64_t thread; // of a per-thread default stream; 0: any other stream
	uint32_t head;   // counts segments; `head` modulo vg_ring is the index
	uint32_t tail;   // the oldest segment that is not done
	uint32_t turns;  // counts segments, including segments that ended without an event
	uint64_t idle_at; // vg_now at which the work is expected to end
	uint32_t failures;   // failures of events since an event was last read
	struct vg_on_way *on_way;
	bool blind;          // has no events: queries show the end of its work (idle.h)
	struct vg_segment ring[vg_ring];
};

// VG_EACH_STREAM is a loop over the recorded streams of a meter. The loop must not remove streams.
#define VG_EACH_STREAM(stream, meter)                                                             \
	for (__auto_type stream = &(meter)->streams[0];                                           \
	     stream < (meter)->streams + vg_meter_streams && stream->used; stream++)

// vg_stream_segment returns the segment that accepts work, or the next segment to open.
static inline struct vg_segment *vg_stream_segment(struct vg_stream *stream)
{
	return &stream->ring[stream->head % vg_ring];
}

// vg_stream_is_empty reports whether all known work of a stream is done.
static inline bool vg_stream_is_empty(const struct vg_stream *stream)
{
	return !stream->open && stream->tail == stream->head;
}

// vg_stream_is_within reports whether a thread whose current context is `context` may touch a stream.
// A thread may not touch another thread's default stream.
static inline bool vg_stream_is_within(const struct vg_stream *stream, uint64_t context, uint64_t thread)
{
	return stream->context == context && (!stream->thread || stream->thread == thread);
}

// vg_stream_is_full reports whether the stream has no free segment for work that must be measured
// alone.
static inline bool vg_stream_is_full(const struct vg_stream *stream)
{
	return stream->head + (stream->open ? 1 : 0) + 1 - stream->tail >= vg_ring;
}

// vg_union is the time that segments of several streams took together, in ns.
struct vg_union {
	int64_t ns;
	int64_t charged;
	bool unsure; // the time may contain other containers' slices
	bool rough;  // other containers' slices were deducted from the time
};

// vg_unmeasured is the unfinished work of unknown length.
struct vg_unmeasured {
	uint32_t count;   // segments
	uint32_t gpus;    // bit mask of the GPUs that the work uses
	uint64_t since;   // vg_now of the first unfinished launch; 0: none
	uint64_t settled; // end of the time charged so far for lost work, as vg_now
};

// vg_fastpath lets a repeat launch skip the throttle's checks (fastpath.h).
struct vg_fastpath {
	uint64_t key;
	struct vg_stream *stream;
	int64_t room; // ns of work that the fast path allows; 0: none
	int64_t ns;   // length of one piece
	int64_t charge; // charge of one piece
	int64_t unseen; // ns of work since the last reading of the clock
	uint64_t until; // end of the fast path's validity, as vg_now
	uint64_t *launches; // the counter of launches
};

// vg_end is the kind of an object that ends.
enum vg_end {
	vg_end_stream,  // a stream that is about to be destroyed
	vg_end_context, // a context that is about to be destroyed
	vg_end_kept,    // a context whose destruction failed
	vg_end_left,    // a context that was destroyed
	vg_end_class,   // a kind of work whose key other work may reuse
};

struct vg_pages;

struct vg_meter {
	const struct vg_pages *pages; // the limits and usage pages have other containers' time
	uint32_t device;        // index of the GPU
	struct vg_mutex mutex;
	// the meter for launches while a thread is stuck in the driver with this meter; NULL: none
	_Atomic(struct vg_meter *) beside;
	_Atomic uint32_t passes; // number of locks of the mutex
	_Atomic bool stale; // an object has ended while a thread was stuck with the meter
	uint32_t lengthy;       // lengthy segments that are not done
	int64_t outstanding;    // ns charged for work not known to be done
	uint32_t pieces;        // pieces of work that are not known to be done
	int64_t owed;           // ns to charge to the bucket; negative: to refund
	uint64_t deducted;      // ns deducted from other containers' charges (others.h)
	int64_t claimed;        // charged ns whose deduction as other containers' time is pending
	uint64_t claimed_at;    // vg_now of the last increase of `claimed`
	struct vg_fastpath fastpath;
	struct vg_stream *last; // result of the last vg_meter_stream
	int64_t recording;      // least time to record an event, in ns; 0: unknown
	// `overlap` is the part of the charge that remains when streams run side by side, in parts
	// per thousand; 0: unknown. `all` is the measurement for `overlap`.
	uint64_t overlap;
	int64_t together; // ns charged for the last work side by side
	struct vg_union all;
	CUevent base;  // base event of `covers`
	CUevent newer; // the next base event, if `renewing`
	bool renewing;
	uint64_t base_context;
	uint64_t base_made; // vg_now at which the last base event was recorded
	struct vg_cover covers[vg_covers];
	uint32_t cover_count;
	bool blind;           // some streams have no events
	struct vg_unmeasured unmeasured;
	bool gone; // some records are of destroyed streams
	uint32_t settled;     // counts segments that are done
	uint32_t stuck;       // `settled` + 1 at the last timeout of a waiting launch
	struct vg_probe probe;
	struct vg_lead lead;
	uint64_t polled; // vg_now of the last probe for a program that polls
	_Atomic uint32_t waiting; // threads that sleep until they may launch
	struct vg_on_way on_way[vg_on_ways];
	struct vg_stream streams[vg_meter_streams];
	struct vg_estimates estimates;
};

// vg_meter_drop drops an object that ends. vg_meter_drop_all drops all records and estimates.
void vg_meter_drop(struct vg_meter *meter, enum vg_end kind, uint64_t key);
void vg_meter_drop_all(struct vg_meter *meter);

// vg_meter_has must be called by each new holder of the meter's mutex. vg_meter_has ends the fast
// path, because the holder may change the state on which the fast path relies.
static inline bool vg_meter_has(struct vg_meter *meter)
{
	meter->fastpath.room = 0;
	atomic_store_explicit(&meter->passes, atomic_load_explicit(&meter->passes, memory_order_relaxed) + 1,
			      memory_order_relaxed);
	if (__builtin_expect(atomic_load(&meter->stale), 0))
		vg_meter_drop_all(meter);
	return true;
}

static inline bool vg_meter_try_lock(struct vg_meter *meter)
{
	return vg_mutex_try_lock(&meter->mutex) && vg_meter_has(meter);
}

// vg_meter_lock reports whether it locked the meter within `ns`. Holders of the lock call the
// driver, and some calls of the driver wait for room in a queue or for another thread.
static inline bool vg_meter_lock(struct vg_meter *meter, uint64_t ns)
{
	return vg_meter_try_lock(meter) ||
	       (vg_mutex_lock_until(&meter->mutex, vg_now() + ns) && vg_meter_has(meter));
}

// vg_meter_lock_in_turn locks the meter, and returns false if one thread has held the meter for all
// of `ns`. While the meter passes from thread to thread, no thread is blocked in the driver.
bool vg_meter_lock_in_turn(struct vg_meter *meter, uint64_t ns);

static inline void vg_meter_unlock(struct vg_meter *meter)
{
	vg_mutex_unlock(&meter->mutex);
}

// vg_meter_stream returns the record of a stream. If the stream has no record, vg_meter_stream
// creates a record, and drops the record of another stream if the table is full. The charge of
// dropped known work stands, and dropped work of unknown length is charged until now.
struct vg_stream *vg_meter_stream(struct vg_meter *meter, CUstream handle, uint64_t context,
				  uint64_t thread);

// vg_meter_charge returns the current charge for a launch of a class, in ns.
int64_t vg_meter_charge(const struct vg_meter *meter, const struct vg_class *class);

// vg_meter_on_way_begin counts a launch, after vg_segment_before. vg_meter_on_way_begin returns the
// counter for vg_meter_on_way_end, which must be called when the driver has the work.
static inline struct vg_on_way *vg_meter_on_way_begin(const struct vg_stream *stream)
{
	atomic_fetch_add(&stream->on_way->count, 1);
	return stream->on_way;
}

// vg_meter_on_way_end ends the count of a launch. vg_meter_on_way_end reports whether to call
// vg_segment_after, because this launch closes a segment.
static inline bool vg_meter_on_way_end(struct vg_on_way *on_way)
{
	int32_t before = atomic_fetch_sub(&on_way->count, 1);

	if (__builtin_expect(before <= 0, 0)) // the wait has timed out: see segment.c
		atomic_fetch_add(&on_way->count, 1);
	return before == 1 && atomic_load(&on_way->awaited) && atomic_exchange(&on_way->awaited, false);
}

// vg_meter_since returns the vg_now at which the oldest unfinished measured work of a class was
// launched. vg_meter_since returns 0 if the class has no unfinished measured work.
uint64_t vg_meter_since(const struct vg_meter *meter, uint64_t key);

// vg_meter_end ends the open segment of a stream without an event. vg_meter_end charges work of
// unknown length all time since its launch.
void vg_meter_end(struct vg_meter *meter, struct vg_stream *stream, uint64_t now);

// vg_meter_empty settles all unfinished work of a stream. vg_meter_drop_events destroys the
// stream's events. vg_meter_blind does both, and lets the stream have no more events.
void vg_meter_empty(struct vg_meter *meter, struct vg_stream *stream, uint64_t now);
void vg_meter_drop_events(struct vg_stream *stream);
void vg_meter_blind(struct vg_meter *meter, struct vg_stream *stream);

// vg_meter_drop_event destroys an event, unless the event is NULL.
void vg_meter_drop_event(CUevent *event);

// vg_meter_unmeasured_begin enters work of unknown length that is about to be launched. `also` is a
// bit mask of the other GPUs that the work uses. vg_meter_settle removes the work. If this process
// dies meanwhile, another process charges the work (vg_slots_settle).
void vg_meter_unmeasured_begin(struct vg_meter *meter, uint32_t also, uint64_t now);

// vg_meter_lose charges a segment that will not be measured. The charge is all time from the
// segment's launch until `now`, less the time already charged. Segments that run side by side share
// that time.
void vg_meter_lose(struct vg_meter *meter, const struct vg_segment *segment, uint64_t now);

// vg_meter_charge_also charges the other GPUs that a segment's work uses. The driver does not report
// the part of each GPU, so that each of these GPUs is charged the segment's whole time.
void vg_meter_charge_also(const struct vg_meter *meter, const struct vg_segment *segment, int64_t ns);

// vg_meter_settle removes a segment from the totals of unfinished work.
void vg_meter_settle(struct vg_meter *meter, const struct vg_segment *segment);

// vg_meter_busy_until returns the vg_now at which all work is expected to be done.
uint64_t vg_meter_busy_until(const struct vg_meter *meter);

// vg_meter_has_long_work reports whether unfinished work is so long that other containers' slices,
// if any, must be deducted from the work.
bool vg_meter_has_long_work(const struct vg_meter *meter);

// vg_meter_overdue returns the vg_now at which the first unfinished work is overdue, or UINT64_MAX.
// Overdue work should have ended vg_probe_ns ago.
uint64_t vg_meter_overdue(const struct vg_meter *meter);

// vg_meter_drop_gone drops destroyed streams whose work has been measured. vg_meter_drop_gone moves
// streams within the table.
void vg_meter_drop_gone(struct vg_meter *meter);

#endif
