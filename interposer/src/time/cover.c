// SPDX-License-Identifier: Apache-2.0

#include "cover.h"

#include <string.h>

#include "base/number.h"

static void vg_cover_remove(struct vg_cover *covers, uint32_t *count, uint32_t index)
{
	(*count)--;
	memmove(&covers[index], &covers[index + 1], (*count - index) * sizeof *covers);
}

// vg_cover_room makes room for a stretch. vg_cover_room merges the two oldest stretches, so that
// the gap between these stretches counts as covered.
static void vg_cover_room(struct vg_cover *covers, uint32_t *count)
{
	covers[1].from = covers[0].from;
	vg_cover_remove(covers, count, 0);
}

int64_t vg_cover_add(struct vg_cover *covers, uint32_t *count, struct vg_cover stretch)
{
	int64_t fresh = stretch.to - stretch.from;
	uint32_t at = 0;

	if (fresh <= 0)
		return 0;
	if (*count == vg_covers)
		vg_cover_room(covers, count);
	while (at < *count && covers[at].to < stretch.from)
		at++;
	while (at < *count && covers[at].from <= stretch.to) {
		fresh -= vg_least(covers[at].to, stretch.to) - vg_most(covers[at].from, stretch.from);
		stretch.from = vg_least(stretch.from, covers[at].from);
		stretch.to = vg_most(stretch.to, covers[at].to);
		vg_cover_remove(covers, count, at);
	}
	memmove(&covers[at + 1], &covers[at], (*count - at) * sizeof *covers);
	covers[at] = stretch;
	(*count)++;
	return fresh;
}
