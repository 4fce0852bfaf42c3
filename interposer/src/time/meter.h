// SPDX-License-Identifier: Apache-2.0

// The meter: what this process's work takes of a GPU's time. Work is charged by
// estimates when it is launched; driver events around segments of a stream,
// about one per millisecond of work, correct the estimates and the charges.

#ifndef VG_METER_H
#define VG_METER_H

#include "clock.h"
#include "distrust.h"
#include "driver.h"
#include "estimate.h"
#include "lead.h"
#include "probe.h"

enum {
	vg_meter_streams = 128, // of one process on one GPU that are measured
	vg_ring = 8,            // segments of a stream that may be under way
	vg_covers = 32,
	vg_lengthy_ns = 700000, // work that seldom or never runs within one slice
	vg_many_pieces = 500,   // a driver's queues hold about twice as many: an event may have to wait
	vg_dry_slack_ns = 5000, // by which a stream may be thought to run dry too early
	vg_on_ways = 64,
};

// vg_on_way counts launches that several threads are about to make: their work is entered in a
// segment, and may not be in the stream yet. An event that is recorded meanwhile would come before
// that work. Several streams may share a counter.
struct vg_on_way {
	_Atomic int32_t count;
	_Atomic bool awaited; // a segment is to be closed when there are none
	uint64_t since;       // …since then, as vg_now
};

// vg_segment is consecutive work of one stream with an event behind it.
struct vg_segment {
	CUevent begin; // made when first needed, as is `end`
	CUevent end;
	bool chained; // it begins where the segment before it ends
	bool begun;   // it begins before its first launch, on a stream that was dry
	bool covered; // there is an event where its measured part begins
	bool dirty;   // its end came too late, or a launch did or failed: not measured
	bool many;    // other streams had work at the same time
	bool fresh;   // it has work whose length was not known
	bool solo;    // it is to have work of one class only
	bool sample;  // …and is one of the pieces of a sample
	bool lengthy; // it has work that may be longer than a slice
	uint32_t pieces; // of work
	uint32_t count;  // …in the measured part
	uint64_t key;    // their class; 0: several
	int64_t charged; // for all of it, in ns
	int64_t early;   // …of that, for what came before the measured part
	int64_t work;    // how long all of it is taken to last on its stream by itself
	int64_t idle;    // how long the stream is thought to have been dry in it
	int64_t lead;    // of `work`, the one piece before the measured part; 0: none, or several
	uint64_t begun_at; // when it was opened, or the event before its first launch recorded, as vg_now
	uint64_t closed_at; // when its end was recorded, as vg_now
	uint64_t clipped;  // the bucket's clipped_ns when the last work was launched that is `fresh`
};

struct vg_stream {
	bool used;
	bool open; // the segment at `head` takes work
	CUstream handle;
	uint64_t context;
	uint64_t thread; // of a per-thread default stream, else 0
	uint32_t head;   // counts segments; the ring has its remainder
	uint32_t tail;   // the oldest that is not done
	uint32_t turns;  // counts segments, those that ended without an event, too
	uint64_t dry_at; // when its work is expected to end, as vg_now
	uint32_t failures;   // of its events, since one was last read
	struct vg_on_way *on_way;
	bool passed;         // by probes: they do not stand behind its work
	bool blind;          // it has no events: see wall.c
	bool wall;           // …and had work when it was last seen
	uint64_t full_since; // when it was first found full…
	uint32_t full_tail;  // …with this segment as the oldest
	struct vg_segment ring[vg_ring];
};

// vg_stream_segment is the segment that takes work, or the next one.
static inline struct vg_segment *vg_stream_segment(struct vg_stream *stream)
{
	return &stream->ring[stream->head % vg_ring];
}

// vg_stream_is_empty reports whether nothing is known to be under way.
static inline bool vg_stream_is_empty(const struct vg_stream *stream)
{
	return !stream->open && stream->tail == stream->head;
}

// vg_stream_is_full reports whether work that is to be measured by itself would not be:
// as many segments are under way as can be.
static inline bool vg_stream_is_full(const struct vg_stream *stream)
{
	return stream->head + (stream->open ? 1 : 0) + 1 - stream->tail >= vg_ring;
}

// vg_cover is time that is accounted for, relative to the base event, in ns.
struct vg_cover {
	int64_t from, to;
};

// vg_union is what segments of several streams took together, in ns.
struct vg_union {
	int64_t ns;
	int64_t charged;
	bool unsure; // others' slices may be in it…
	bool rough;  // …or were taken out
};

// vg_wall is the work under way on streams without events.
struct vg_wall {
	bool busy;
	bool fresh;         // it has work whose length was not known
	uint32_t count;     // of pieces of it
	uint64_t key;       // their class; 0: several
	uint64_t began;     // when the first was launched, and…
	uint64_t seen;      // …when it was last seen not to be done, as vg_now
	int64_t charged;    // for all of it, in ns
	int64_t unfinished; // ns that it has taken beyond that, as far as was seen
};

// vg_permit is leave to launch the same work once more without another look: see permit.c.
struct vg_permit {
	uint64_t key;
	CUstream handle;
	uint64_t context;
	struct vg_stream *stream;
	struct vg_segment *segment;
	int64_t room; // ns of such work that it is good for; 0: it is good for none
	int64_t ns;   // that one piece takes…
	int64_t charge; // …and is charged
	int64_t unseen; // ns of it since the time was looked at
	uint64_t until; // as vg_now
	uint64_t *launches; // where they are counted
	struct vg_on_way *on_way; // NULL: one thread has all launches
};

// vg_forgotten is something to be dropped by whoever has the meter next.
enum vg_forgotten_kind { vg_forget_stream, vg_forget_context, vg_forget_class, vg_forget_everything };
enum { vg_most_forgotten = 16 };
struct vg_forgotten {
	enum vg_forgotten_kind kind;
	uint64_t key;
};

struct vg_pages;

struct vg_meter {
	const struct vg_pages *pages; // on which others' time stands, of this…
	uint32_t device;        // …GPU
	struct vg_mutex mutex;
	_Atomic uint32_t passes; // how often somebody got the mutex
	_Atomic uint32_t stuck_at; // of these, when an end waited for it in vain
	struct vg_mutex forgotten_mutex; // of the next two: no driver call is made under it
	_Atomic uint32_t forgotten_count;
	struct vg_forgotten forgotten[vg_most_forgotten];
	uint32_t lengthy;       // segments under way that are so
	int64_t outstanding;    // ns charged for work not known to be done
	uint32_t pieces;        // of it
	int64_t owed;           // to be charged (negative: given back) to the bucket
	uint64_t deducted;      // of what others were charged: see others.h
	int64_t claimed;        // ns that were charged and are to be deducted as others' time…
	uint64_t claimed_at;    // …the last of them at this vg_now
	struct vg_clock clock;
	struct vg_permit permit;
	struct vg_stream *last; // that was found last
	int64_t unknown;        // ns that work took which nobody knew, of those in `owed`…
	uint64_t unknown_since; // …and the bucket's clipped_ns when the last of it was launched
	uint64_t clipped;       // the bucket's clipped_ns at the last look
	int64_t recording;      // least time of recording an event, 0: unknown
	// Part of the charged time that is left when streams run side by side, in
	// parts per thousand, and what it is made of.
	uint64_t overlap;
	int64_t together; // ns charged for work that went side by side last
	struct vg_union all;
	CUevent base;  // of `covers`
	CUevent newer; // that will be it when the GPU has reached it, if `renewing`
	bool renewing;
	uint64_t base_context;
	uint64_t base_made; // the last of them
	struct vg_cover covers[vg_covers];
	uint32_t cover_count;
	bool blind;           // there are streams without events
	struct vg_wall wall;
	uint32_t settled;     // counts segments that are done
	uint32_t stuck;       // what that was, plus 1, when a launch waited in vain
	struct vg_probe probe;
	struct vg_lead lead;
	struct vg_fit fit; // of what probes tell of the card
	uint64_t polled; // when a probe was sent last for a program that asks over and over
	_Atomic uint32_t waiting; // threads that sleep until their work may go
	uint64_t thread; // that launched last
	bool shared;     // others have launched, too
	struct vg_on_way on_way[vg_on_ways];
	struct vg_stream streams[vg_meter_streams];
	struct vg_estimates estimates;
};

// vg_meter_forget drops what is known of a stream that is about to be destroyed, of all streams
// of a context that was, or of a key that may come to mean another work. Where somebody has
// the meter, who may be held up in the driver, that is left to whoever has it next.
void vg_meter_forget(struct vg_meter *meter, enum vg_forgotten_kind kind, uint64_t key);
void vg_meter_catch_up(struct vg_meter *meter);

// vg_meter_has is for whoever has got the meter's mutex. What a permit stands on may change, so
// it ends with that.
static inline bool vg_meter_has(struct vg_meter *meter)
{
	meter->permit.room = 0;
	atomic_store_explicit(&meter->passes, atomic_load_explicit(&meter->passes, memory_order_relaxed) + 1,
			      memory_order_relaxed);
	if (__builtin_expect(atomic_load(&meter->forgotten_count) != 0, 0))
		vg_meter_catch_up(meter);
	return true;
}

static inline bool vg_meter_try_lock(struct vg_meter *meter)
{
	return vg_try_lock(&meter->mutex) && vg_meter_has(meter);
}

// vg_meter_lock reports whether it has got the meter within this time. Driver calls are made
// under it, of which some wait: for room in a queue, or for another thread.
static inline bool vg_meter_lock(struct vg_meter *meter, uint64_t ns)
{
	return vg_meter_try_lock(meter) ||
	       (vg_lock_until(&meter->mutex, vg_now() + ns) && vg_meter_has(meter));
}

// vg_meter_lock_in_turn gives up where one thread has had the meter all this time: as long as it
// goes from hand to hand, nobody is held up in the driver.
bool vg_meter_lock_in_turn(struct vg_meter *meter, uint64_t ns);

static inline void vg_meter_unlock(struct vg_meter *meter)
{
	vg_unlock(&meter->mutex);
}

// vg_meter_stream finds the record of a stream, made if need be; NULL: too many have
// work under way.
struct vg_stream *vg_meter_stream(struct vg_meter *meter, CUstream handle, uint64_t context,
				  uint64_t thread);

// vg_meter_charge is what work of a class is charged now, in ns.
int64_t vg_meter_charge(const struct vg_meter *meter, const struct vg_class *class);

// vg_stream_ask asks the driver whether work is left on a stream: it is unknown where the
// stream must be left alone, and failed where the driver gives an error. vg_stream_is_done reports
// whether there is surely none.
enum vg_work_left { vg_work_none, vg_work_left, vg_work_unknown, vg_work_failed };
enum vg_work_left vg_stream_ask(const struct vg_stream *stream, bool per_thread);
bool vg_stream_is_done(const struct vg_stream *stream, bool per_thread);

// vg_stream_blind gives up events on a stream: its work is charged by wall time from now on.
// vg_stream_empty settles all that is under way on it, and vg_stream_drop_events its events.
enum { vg_most_failures = 3 };
void vg_stream_blind(struct vg_meter *meter, struct vg_stream *stream);
void vg_stream_empty(struct vg_meter *meter, struct vg_stream *stream);
void vg_stream_drop_events(struct vg_stream *stream);

// vg_wall_enter enters work that is about to be launched on a stream without events,
// vg_wall_failed that it was not; vg_wall_look sees what has been done of such work, from a
// thread that has this context.
void vg_wall_enter(struct vg_meter *meter, struct vg_stream *stream, const struct vg_class *class,
		   int64_t charge, uint64_t now);
void vg_wall_failed(struct vg_meter *meter, int64_t charge);
void vg_wall_look(struct vg_meter *meter, uint64_t context, uint64_t now);

// vg_meter_drain sees whether a stream that should be dry by now is so. What ran
// on it, unless that is measured, needs no event then to be known as done.
void vg_meter_drain(struct vg_meter *meter, struct vg_stream *stream, uint64_t now, bool per_thread);

// vg_meter_waited is told that a program has waited for a stream in a thread with this context,
// and vg_meter_context_waited that it has for a context: nothing runs there any more.
void vg_meter_waited(struct vg_meter *meter, CUstream handle, uint64_t context, uint64_t thread,
		     uint64_t now);
void vg_meter_context_waited(struct vg_meter *meter, uint64_t context, uint64_t now);

// vg_meter_other_waited is told that a program has waited for something in a thread with this
// context: streams there that should be dry may be so.
void vg_meter_other_waited(struct vg_meter *meter, uint64_t context, uint64_t thread, uint64_t now);

// vg_meter_context_done reports whether no work is under way in this thread's context.
bool vg_meter_context_done(const struct vg_meter *meter, uint64_t context, uint64_t thread);

// vg_meter_before enters work that is about to be launched into its stream's
// segment; vg_meter_after is called when it has been, where `before` said so.
bool vg_meter_before(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class,
		     int64_t charge, uint64_t now, bool per_thread);
void vg_meter_after(struct vg_meter *meter, struct vg_stream *stream, bool per_thread, bool failed);

// vg_meter_note_thread notes who launches: the launches of one thread need not be counted. It is called
// before vg_meter_before.
void vg_meter_note_thread(struct vg_meter *meter);

// vg_on_way_begin is called after vg_meter_before. It counts the launch, and returns the counter
// with which vg_on_way_end is to be called when the driver has the work; NULL: none.
struct vg_on_way *vg_on_way_begin(struct vg_meter *meter, const struct vg_stream *stream);

// vg_on_way_end reports whether vg_meter_after is to be called, as a segment waits for this
// launch to be closed.
static inline bool vg_on_way_end(struct vg_on_way *on_way)
{
	int32_t before = atomic_fetch_sub(&on_way->count, 1);

	if (__builtin_expect(before <= 0, 0)) // nobody waits for it any more: see vg_stream_is_launching
		atomic_fetch_add(&on_way->count, 1);
	return before == 1 && atomic_load(&on_way->awaited) && atomic_exchange(&on_way->awaited, false);
}

// vg_meter_is_mine reports whether it is known whether the calling thread's launches are counted.
static inline bool vg_meter_is_mine(const struct vg_meter *meter)
{
	return meter->shared || meter->thread == (uint64_t)(uintptr_t)__builtin_thread_pointer();
}

// vg_meter_room is how much more work of this class, in ns, may be entered like what was
// entered last: into the same segment, without an event or a close.
int64_t vg_meter_room(const struct vg_stream *stream, const struct vg_class *class);

// vg_meter_close ends the open segment of a stream, in order to learn its end. It reports
// whether it could.
bool vg_meter_close(struct vg_stream *stream, bool per_thread);

// vg_meter_since is when the oldest work of a class was launched that is measured and not
// done; 0: there is none.
uint64_t vg_meter_since(const struct vg_meter *meter, uint64_t key);

// vg_meter_close_all does so for all streams that a thread may record events in:
// those of the context that is current, less other threads' own.
void vg_meter_close_all(struct vg_meter *meter, uint64_t context, uint64_t thread, uint64_t now);

// vg_meter_harvest takes in all segments that are done.
void vg_meter_harvest(struct vg_meter *meter, uint64_t now);

// vg_event_drop destroys an event, if it was made.
void vg_event_drop(CUevent *event);

// vg_meter_settle takes a segment that is done off what is under way.
void vg_meter_settle(struct vg_meter *meter, const struct vg_segment *segment);

// vg_meter_busy_until is when all work under way is expected to be done, as vg_now.
uint64_t vg_meter_busy_until(const struct vg_meter *meter);

// vg_meter_has_long_work reports whether work is under way that is so long that others' slices
// must be told from it, if there are others, and vg_meter_wants_probes whether there are.
bool vg_meter_has_long_work(const struct vg_meter *meter);
bool vg_meter_wants_probes(const struct vg_meter *meter);

// vg_meter_probe sends a probe, from a thread that has this context.
void vg_meter_probe(struct vg_meter *meter, uint64_t context, uint64_t now);

// vg_meter_drop_stream drops a stream, vg_meter_drop_context all streams of a context.
void vg_meter_drop_stream(struct vg_meter *meter, CUstream handle);
void vg_meter_drop_context(struct vg_meter *meter, uint64_t context);

// vg_cover_add accounts for a stretch of time and returns how much of it was new.
int64_t vg_cover_add(struct vg_cover *covers, uint32_t *count, struct vg_cover stretch);

#endif
