// SPDX-License-Identifier: Apache-2.0

// This header covers the meter: how much of a GPU's time this process uses. Work is charged by
// estimate when it is launched. Driver events around segments of a stream, about one per
// millisecond of work, correct the estimates and the charges.

#ifndef VG_METER_H
#define VG_METER_H

#include "base/clock.h"
#include "base/mutex.h"
#include "base/now.h"
#include "cover.h"
#include "driver/driver.h"
#include "estimate.h"
#include "fit.h"
#include "lead.h"
#include "probe.h"
#include "unmeasured.h"

enum {
	vg_meter_streams = 128, // measured streams of one process on one GPU
	vg_ring = 8,            // segments of a stream that may be under way
	vg_lengthy_ns = 700000, // work that seldom or never runs within one slice
	// A driver's queues hold about twice as many: with more, an event may have to wait.
	vg_many_pieces = 500,
	vg_idle_slack_ns = 5000, // by which a stream's `idle_at` may be too early
	vg_on_ways = 64,
};

// vg_on_way counts launches under way in several threads. The work of these launches is entered in
// a segment but may not be in the stream yet: an event recorded meanwhile would come before that
// work. Several streams may share a counter.
struct vg_on_way {
	_Atomic int32_t count;
	_Atomic bool awaited; // a segment is to be closed when the count reaches 0
	uint64_t since;       // start of that wait, as vg_now
};

// vg_segment is consecutive work of one stream, followed by an event.
struct vg_segment {
	CUevent begin; // made when first needed, as is `end`
	CUevent end;
	bool chained; // it begins where the segment before it ends
	bool begun;   // it begins before its first launch, on an idle stream
	bool covered; // an event marks the start of its measured part
	bool dirty;   // it is not measured: its end or a launch came too late, or a launch failed
	bool many;    // other streams had work at the same time
	bool fresh;   // it has work of unknown length
	bool solo;    // it accepts work of one class only
	bool sample;  // it is one of the pieces of a sample
	bool lengthy; // it has work that may be longer than a slice
	uint32_t pieces; // pieces of work
	uint32_t count;  // pieces in the measured part
	uint64_t key;    // class of these pieces; 0: several
	int64_t charged; // for all its work, in ns
	int64_t early;   // part of `charged` for work before the measured part
	int64_t work;    // estimated time of all its work on the stream by itself, in ns
	int64_t idle;    // estimated time for which the stream was idle in it, in ns
	// Part of `work` of the single piece before the measured part; 0: none, or several.
	int64_t lead;
	// When it was opened or, if begun, when its first event was recorded, as vg_now.
	uint64_t begun_at;
	uint64_t closed_at; // when its end was recorded, as vg_now
	uint64_t clipped;  // the bucket's clipped_ns at its last launch of unknown length
};

struct vg_stream {
	bool used;
	bool open; // the segment at `head` accepts work
	bool gone; // it is destroyed, but its work is still to be measured
	bool held; // do not ask the driver: its context may be ending
	CUstream handle;
	uint64_t context;
	uint64_t thread; // of a per-thread default stream, otherwise 0
	uint32_t head;   // counts segments; `head` modulo vg_ring is the index
	uint32_t tail;   // the oldest segment that is not done
	uint32_t turns;  // counts segments, including those that ended without an event
	uint64_t idle_at; // when its work is expected to end, as vg_now
	uint32_t failures;   // of its events, since an event was last read
	struct vg_on_way *on_way;
	bool blind;          // it has no events: see wall.c
	bool wall;           // a blind stream had work at the last check
	uint64_t full_since; // when it was first found full
	uint32_t full_tail;  // its tail at that time
	struct vg_segment ring[vg_ring];
};

// vg_stream_segment returns the segment that accepts work, or the next one.
static inline struct vg_segment *vg_stream_segment(struct vg_stream *stream)
{
	return &stream->ring[stream->head % vg_ring];
}

// vg_stream_is_empty reports whether no work is known to be under way.
static inline bool vg_stream_is_empty(const struct vg_stream *stream)
{
	return !stream->open && stream->tail == stream->head;
}

// vg_stream_is_full reports whether no segment is left for work that is to be measured by itself.
static inline bool vg_stream_is_full(const struct vg_stream *stream)
{
	return stream->head + (stream->open ? 1 : 0) + 1 - stream->tail >= vg_ring;
}

// vg_union is the time that segments of several streams took together, in ns.
struct vg_union {
	int64_t ns;
	int64_t charged;
	bool unsure; // others' slices may be in it
	bool rough;  // others' slices were deducted from it
};

// vg_wall is the work under way on streams without events.
struct vg_wall {
	bool busy;
	bool fresh;         // it has work of unknown length
	uint32_t count;     // pieces of work
	uint64_t key;       // their class; 0: several
	uint64_t began;     // launch of the first piece, as vg_now
	uint64_t seen;      // last time that it was seen not to be done, as vg_now
	int64_t charged;    // for all its work, in ns
	int64_t unfinished; // time taken beyond the charge, as far as seen, in ns
};

// vg_fastpath lets a repeat launch skip the throttle's checks (fastpath.h).
struct vg_fastpath {
	uint64_t key;
	CUstream handle;
	uint64_t context;
	struct vg_stream *stream;
	struct vg_segment *segment;
	int64_t room; // ns of the work that it allows; 0: none
	int64_t ns;   // length of one piece
	int64_t charge; // charge of one piece
	int64_t unseen; // ns of work since the last reading of the clock
	uint64_t until; // end of its validity, as vg_now
	uint64_t *launches; // the counter of launches
	struct vg_on_way *on_way; // NULL: a single thread launches
};

// vg_forgotten is an object that the meter's next holder drops.
enum vg_forgotten_kind {
	vg_forget_stream,
	vg_forget_context,
	vg_forget_kept, // a context whose destruction failed
	vg_forget_left, // a context that was destroyed
	vg_forget_class,
	vg_forget_everything,
};
enum { vg_most_forgotten = 16 };
struct vg_forgotten {
	enum vg_forgotten_kind kind;
	uint64_t key;
	uint64_t at; // as vg_now
};

struct vg_pages;

struct vg_meter {
	const struct vg_pages *pages; // others' time is on the limits and usage pages
	uint32_t device;        // index of the GPU
	struct vg_mutex mutex;
	_Atomic uint32_t passes; // how often a thread locked the mutex
	// Value of `passes` when the end of an object last timed out waiting for the mutex.
	_Atomic uint32_t stuck_at;
	struct vg_mutex forgotten_mutex; // guards the next two; no driver call is made under it
	_Atomic uint32_t forgotten_count;
	struct vg_forgotten forgotten[vg_most_forgotten];
	uint32_t lengthy;       // lengthy segments under way
	int64_t outstanding;    // ns charged for work not known to be done
	uint32_t pieces;        // pieces of this work
	int64_t owed;           // ns to charge to the bucket; negative: to refund
	uint64_t deducted;      // ns deducted from others' charges: see others.h
	int64_t claimed;        // ns charged that are still to be deducted as others' time
	uint64_t claimed_at;    // time of the last such claim, as vg_now
	struct vg_clock clock;
	struct vg_fastpath fastpath;
	struct vg_stream *last; // the stream that was found last
	int64_t unknown;        // ns of `owed` for work of unknown length
	uint64_t unknown_since; // the bucket's clipped_ns at the last launch of such work
	uint64_t clipped;       // the bucket's clipped_ns at the last check
	int64_t recording;      // least time to record an event, in ns; 0: unknown
	// Part of the charge that remains when streams run side by side, in parts per thousand; 0:
	// unknown. `all` is the measurement for it.
	uint64_t overlap;
	int64_t together; // ns charged for the last work side by side
	struct vg_union all;
	CUevent base;  // base event of `covers`
	CUevent newer; // the next base event, once the GPU has reached it, if `renewing`
	bool renewing;
	uint64_t base_context;
	uint64_t base_made; // recording of the last base event, as vg_now
	struct vg_cover covers[vg_covers];
	uint32_t cover_count;
	bool blind;           // some streams have no events
	struct vg_wall wall;
	struct vg_unmeasured unmeasured;
	bool gone; // some streams are gone
	uint32_t settled;     // counts segments that are done
	uint32_t stuck;       // `settled` + 1 when a launch last timed out waiting
	struct vg_probe probe;
	struct vg_lead lead;
	struct vg_fit fit; // properties of the card, from probes
	uint64_t polled; // last probe for a program that polls, as vg_now
	_Atomic uint32_t waiting; // threads that sleep until they may launch
	uint64_t thread; // the thread that launched last
	bool shared;     // several threads have launched
	struct vg_on_way on_way[vg_on_ways];
	struct vg_stream streams[vg_meter_streams];
	struct vg_estimates estimates;
};

// vg_meter_catch_up drops the objects that were left to the meter's next holder (forget.c).
void vg_meter_catch_up(struct vg_meter *meter);

// vg_meter_drop drops an object that ended or is about to end at `what.at`: long ago, if `late`.
void vg_meter_drop(struct vg_meter *meter, struct vg_forgotten what, bool late);

// vg_meter_has is called by each new holder of the meter's mutex. vg_meter_has ends the fast path,
// because the holder may change the state on which the fast path relies.
static inline bool vg_meter_has(struct vg_meter *meter)
{
	meter->fastpath.room = 0;
	atomic_store_explicit(&meter->passes, atomic_load_explicit(&meter->passes, memory_order_relaxed) + 1,
			      memory_order_relaxed);
	if (__builtin_expect(atomic_load(&meter->forgotten_count) != 0, 0))
		vg_meter_catch_up(meter);
	return true;
}

static inline bool vg_meter_try_lock(struct vg_meter *meter)
{
	return vg_mutex_try_lock(&meter->mutex) && vg_meter_has(meter);
}

// vg_meter_lock reports whether it locked the meter within `ns`. Holders of the lock call the
// driver, and some calls wait for room in a queue or for another thread.
static inline bool vg_meter_lock(struct vg_meter *meter, uint64_t ns)
{
	return vg_meter_try_lock(meter) ||
	       (vg_mutex_lock_until(&meter->mutex, vg_now() + ns) && vg_meter_has(meter));
}

// vg_meter_lock_in_turn fails if one thread has had the meter for all of `ns`. As long as the meter
// passes from thread to thread, no thread is blocked in the driver.
bool vg_meter_lock_in_turn(struct vg_meter *meter, uint64_t ns);

static inline void vg_meter_unlock(struct vg_meter *meter)
{
	vg_mutex_unlock(&meter->mutex);
}

// vg_meter_stream returns the record of a stream, and makes it if needed; NULL: too many streams
// have work under way.
struct vg_stream *vg_meter_stream(struct vg_meter *meter, CUstream handle, uint64_t context,
				  uint64_t thread);

// vg_meter_charge returns the current charge for a launch of a class, in ns.
int64_t vg_meter_charge(const struct vg_meter *meter, const struct vg_class *class);

// vg_meter_note_thread records which thread launches: the launches of a single thread need not be
// counted. Call the function before vg_segment_before.
void vg_meter_note_thread(struct vg_meter *meter);

// vg_meter_on_way_begin counts a launch, after vg_segment_before. vg_meter_on_way_begin returns the
// counter for vg_meter_on_way_end, to be called when the driver has the work; NULL: the launch is
// not counted.
struct vg_on_way *vg_meter_on_way_begin(struct vg_meter *meter, const struct vg_stream *stream);

// vg_meter_on_way_end reports whether to call vg_segment_after, because a segment waits for this
// launch in order to close.
static inline bool vg_meter_on_way_end(struct vg_on_way *on_way)
{
	int32_t before = atomic_fetch_sub(&on_way->count, 1);

	if (__builtin_expect(before <= 0, 0)) // the wait for it has timed out: see segment.c
		atomic_fetch_add(&on_way->count, 1);
	return before == 1 && atomic_load(&on_way->awaited) && atomic_exchange(&on_way->awaited, false);
}

// vg_meter_is_mine reports whether the meter knows if the calling thread's launches are counted.
static inline bool vg_meter_is_mine(const struct vg_meter *meter)
{
	return meter->shared || meter->thread == (uint64_t)(uintptr_t)__builtin_thread_pointer();
}

// vg_meter_since returns when the oldest measured work of a class that is not done was launched, as
// vg_now; 0: there is none.
uint64_t vg_meter_since(const struct vg_meter *meter, uint64_t key);

// vg_meter_empty settles all work under way on a stream. vg_meter_drop_events destroys the stream's
// events.
void vg_meter_empty(struct vg_meter *meter, struct vg_stream *stream, uint64_t now);
void vg_meter_drop_events(struct vg_stream *stream);

// vg_meter_drop_event destroys an event, if there is one.
void vg_meter_drop_event(CUevent *event);

// vg_meter_lose charges work that will not be measured (vg_unmeasured_lose).
static inline void vg_meter_lose(struct vg_meter *meter, uint64_t since, int64_t charged, uint64_t now)
{
	meter->owed += vg_unmeasured_lose(&meter->unmeasured, since, charged, now);
}

// vg_meter_settle removes a segment that is done from the totals of work under way.
void vg_meter_settle(struct vg_meter *meter, const struct vg_segment *segment);

// vg_meter_busy_until returns when all work under way is expected to be done, as vg_now.
uint64_t vg_meter_busy_until(const struct vg_meter *meter);

// vg_meter_has_long_work reports whether some work under way is so long that others' slices, if
// any, must be deducted from it.
bool vg_meter_has_long_work(const struct vg_meter *meter);

// vg_meter_drop_gone drops destroyed streams that have nothing left to be measured.
// vg_meter_drop_gone moves streams within the table.
void vg_meter_drop_gone(struct vg_meter *meter);

#endif
