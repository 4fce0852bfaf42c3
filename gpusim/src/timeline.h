// SPDX-License-Identifier: Apache-2.0
/*
 * This header covers the timeline: a discrete-event model of every GPU's work. Each reader of the
 * state advances the timeline under the lock. Between two reads, no code of the simulator runs. The
 * next reader computes the interval from the queued work, so that no work is lost.
 *
 * Within a process, items run when their dependencies are met, in order of becoming ready. The
 * items run side by side at full rate as long as they fit the GPU. Processes share a GPU by
 * preemptive round robin with equal slices. A process without ready work yields immediately. A
 * process that becomes ready waits for the running slice to end. All clients of the Multi-Process
 * Service count as one process for slices. In their slices the clients run side by side, as long as
 * they fit the GPU.
 */
#ifndef GPUSIM_TIMELINE_H
#define GPUSIM_TIMELINE_H

#include "state.h"

/*
 * gs_ref is one item of the calling process. seq distinguishes the item from later uses of its
 * slot.
 */
struct gs_ref {
	uint64_t seq; /* 0: no item, which counts as done */
	uint16_t item;
};

struct gs_work {
	enum gs_item_kind kind;
	uint32_t gpu;
	uint32_t demand_ppm;
	uint64_t duration_ns;
	uint64_t meet_mine, meet_theirs, meet_turn; /* see gs_item */
	uint32_t traps; /* see gs_item */
	uint64_t tag; /* not 0: gs_collect() returns the item after the item's end */
	struct gs_ref deps[GS_MAX_DEPS];
	uint32_t dep_count;
};

/* The process of the items calls each function under the lock, after gs_advance(). */

/* gs_enqueue queues work. gs_enqueue returns a reference with seq 0 if the queue is full. */
struct gs_ref gs_enqueue(struct gs_handle *handle, const struct gs_work *work);

bool gs_is_pending(const struct gs_handle *handle, struct gs_ref ref);

/*
 * gs_collect removes the next finished tagged item from the table, or returns false if no such item
 * exists.
 */
bool gs_collect(struct gs_handle *handle, struct gs_item *item);

/* gs_host_is_ready reports whether the dependencies of a host item are met. */
bool gs_host_is_ready(const struct gs_handle *handle, struct gs_ref ref);

/* gs_host_done ends a host item now. */
void gs_host_done(struct gs_handle *handle, struct gs_ref ref);

/*
 * gs_estimate returns a time before which the item cannot be done, even if no process queues work.
 */
uint64_t gs_estimate(const struct gs_handle *handle, struct gs_ref ref);

/* gs_sched_repair rebuilds the derived lists of all processes. */
void gs_sched_repair(struct gs_state *state);

/* gs_sched_forget removes a process's work from the timeline. */
void gs_sched_forget(struct gs_state *state, uint32_t slot);

#endif
