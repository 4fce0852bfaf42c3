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

// vg_sum is what was seen of a class, in ns: of the last 50 ms of work or so.
struct vg_sum {
	int64_t charged;
	int64_t more; // that it took than it was charged
	int64_t most; // …a single time
};

struct vg_class {
	uint64_t key;      // 0: free
	uint64_t ns;       // the estimate
	uint64_t unsteady; // until when its length is taken to vary, as it was seen to
	uint64_t look;     // until when it is looked at whether it does
	uint64_t opened;   // when the current window began, or the last launch before any measure
	uint64_t sampled;  // when it was last measured on a stream that was dry
	uint32_t samples;  // taken so
	uint32_t to_see;   // pieces that the present sample still takes
	uint32_t taken;    // …and has…
	uint64_t least;    // …of which this is the least, in ns
	bool measured;
	bool company;      // it was observed beside work of the process's other streams
	// What launches do not ask for.
	uint32_t looks;    // one after another that found nothing
	uint64_t looked;   // when the last of them began
	uint64_t error;    // by which the estimate may be wrong, as what was measured was
	uint64_t floor;    // least of the window before
	uint64_t lowest;   // least of the current window; 0: none yet
	uint32_t seen;     // observations in the current window
	uint32_t averaged; // observations in the estimate, up to a few
	struct vg_sum waited; // what it took by the programs that waited for it…
	struct vg_sum unsure; // …by events, others' slices in it…
	struct vg_sum sure;   // …and without
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

// vg_class_observe takes an observation of one piece of work of the class, and by how much
// it may be wrong, in ns.
void vg_class_observe(struct vg_class *class, uint64_t ns, uint64_t error, uint64_t now);

// vg_class_begin_sample begins a sample of so many pieces. vg_class_observe_sample takes one of them,
// and with the last observes that each took as long as the least: they differ by what went before
// them (lead.h).
void vg_class_begin_sample(struct vg_class *class, uint32_t pieces, uint64_t now);
void vg_class_observe_sample(struct vg_class *class, uint64_t ns, uint64_t error, uint64_t now);

// vg_class_observe_roughly takes one out of which others' slices were taken, which
// may err to either side.
void vg_class_observe_roughly(struct vg_class *class, uint64_t ns, uint64_t error, uint64_t now);

// vg_class_compare enters by how much `more` than it was charged measured work of the
// class took, in ns (0: it did not), and whether others' slices were taken out of that
// (`sure`). Work that took more for sure, or unsure more than once, is looked at for a
// while, unless it was lately: each piece is measured, and others' slices are told from it.
void vg_class_compare(struct vg_class *class, int64_t charged, int64_t more, bool sure, uint64_t now);

// vg_class_waited does so for work that was not measured, by how long a program waited for it.
void vg_class_waited(struct vg_class *class, int64_t charged, int64_t waited, uint64_t now);

// vg_class_is_doubtful says whether work of the class is looked at, or known to vary.
bool vg_class_is_doubtful(const struct vg_class *class, uint64_t now);

// vg_class_forget drops what is known of a key that may come to mean another work, and
// vg_classes_forget that of all.
void vg_class_forget(struct vg_estimates *estimates, uint64_t key);
void vg_classes_forget(struct vg_estimates *estimates);

#endif
