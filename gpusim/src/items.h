// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_ITEMS_H
#define GPUSIM_ITEMS_H

#include "timeline.h"

static inline struct gs_item *gs_item_at(struct gs_state *state, uint32_t slot, uint16_t index)
{
	return &state->items[slot][index];
}

/* Whether the item that ref names has yet to finish. */
bool gs_item_pending(const struct gs_state *state, uint32_t slot, struct gs_ref ref);

/* The first dependency that is not met, seq 0 if all are. */
struct gs_ref gs_item_blocker(const struct gs_state *state, uint32_t slot, const struct gs_item *item);

/* Hangs the item on what blocks it, or makes it ready; marks end at once. */
void gs_item_settle(struct gs_state *state, uint32_t slot, uint16_t index);

/* Makes compute ready whose launch has arrived on the GPU. */
void gs_item_arrive(struct gs_state *state, uint32_t slot, uint16_t index, uint64_t at);

/* Ends an item that is in a ready or timed list, or hung nowhere. */
void gs_item_finish(struct gs_state *state, uint32_t slot, uint16_t index, uint64_t at);

#endif
