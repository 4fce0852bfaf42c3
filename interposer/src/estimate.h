// SPDX-License-Identifier: Apache-2.0

// How long a kind of work holds the GPU by itself: a table from what is known
// of a launch before it runs (function and shape, graph, size of a copy) to what
// was measured of such work.
//
// What is measured is never less than the truth, and often more: other tenants'
// slices, and time in which the stream had to wait, lie between two events. So
// the estimate is the mean of the observations near the least of the last ones.

#ifndef VG_ESTIMATE_H
#define VG_ESTIMATE_H

#include "base.h"

enum { vg_classes = 1024 };

struct vg_class {
	uint64_t key;     // 0: free
	uint64_t ns;      // the estimate
	uint64_t floor;   // least of the window before
	uint64_t lowest;  // least of the current window; 0: none yet
	uint64_t opened;  // when the current window began, or the last launch before any measure
	uint64_t sampled; // when it was last measured on a stream that was dry
	uint32_t seen;    // observations in the current window
	uint32_t averaged; // observations in the estimate, up to a few
	uint32_t samples;  // taken on a stream that was dry
	uint64_t doubted;  // when it last took more than it was charged, and nobody knew why
	uint64_t checked;  // when it was last seen why: others' slices
	uint64_t unsteady; // until when its length is taken to vary, as it was seen to
	uint32_t surprises; // sure ones that took more, since one that did not
	bool measured;
};

// vg_class_is_known says whether work of a class can be charged by what others of it
// took: it has been measured, and does not vary.
static inline bool vg_class_is_known(const struct vg_class *class, uint64_t now)
{
	return class->measured && class->unsteady <= now;
}

struct vg_estimates {
	struct vg_class classes[vg_classes];
};

// vg_class_of is the class with this key, made with the estimate `prior` (ns)
// if it is new; an old one may be forgotten for it.
struct vg_class *vg_class_of(struct vg_estimates *estimates, uint64_t key, uint64_t prior);

// vg_class_observe takes an observation of one piece of work of the class, in ns.
void vg_class_observe(struct vg_class *class, uint64_t ns, uint64_t now);

// vg_class_observe_roughly takes one out of which others' slices were taken, which
// may err to either side.
void vg_class_observe_roughly(struct vg_class *class, uint64_t ns, uint64_t now);

// vg_class_doubt is told that work of the class took more than it was charged, or did
// not (`more`), and whether others' slices were taken out of that (`sure`). What is
// doubted is to be measured so that it is sure: vg_class_is_doubtful.
void vg_class_doubt(struct vg_class *class, bool more, bool sure, uint64_t now);
bool vg_class_is_doubtful(const struct vg_class *class, uint64_t now);

// vg_class_forget drops what is known of a key that may come to mean another work.
void vg_class_forget(struct vg_estimates *estimates, uint64_t key);

#endif
