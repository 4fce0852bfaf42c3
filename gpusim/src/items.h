// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_ITEMS_H
#define GPUSIM_ITEMS_H

#include "timeline.h"

static inline struct gs_item *gs_item_at(struct gs_state *state, uint32_t slot, uint16_t index)
{
	return &state->items[slot][index];
}

/* gs_item_pending reports whether the item that ref names is unfinished. */
bool gs_item_pending(const struct gs_state *state, uint32_t slot, struct gs_ref ref);

/* gs_item_blocker returns the first unmet dependency, or a reference with seq 0 if all dependencies
 * are met. */
struct gs_ref gs_item_blocker(const struct gs_state *state, uint32_t slot, const struct gs_item *item);

/*
 * gs_item_settle queues the item behind its blocking dependency, or makes it ready. Marks end at
 * once.
 */
void gs_item_settle(struct gs_state *state, uint32_t slot, uint16_t index);

/* gs_item_arrive makes a compute item ready when its launch has arrived on the GPU. */
void gs_item_arrive(struct gs_state *state, uint32_t slot, uint16_t index, uint64_t at);

/* gs_item_finish ends an item that is in a ready or timed list, or in no list. */
void gs_item_finish(struct gs_state *state, uint32_t slot, uint16_t index, uint64_t at);

#endif
