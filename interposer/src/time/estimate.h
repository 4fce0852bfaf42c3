// SPDX-License-Identifier: Apache-2.0

// This header covers estimates of the time for which each kind of work occupies the GPU when it
// runs alone. A table maps properties that are known before a launch (function and shape, graph,
// size of a copy) to measurements of earlier launches.
//
// A measurement is never less than the true time. A measurement is often more, because the
// measurement includes other tenants' slices and waits of the stream. The estimate is therefore the
// mean of the observations near the minimum of recent observations.

#ifndef VG_ESTIMATE_H
#define VG_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

enum {
	vg_classes = 1024,
	vg_varied = 16, // work varies if its time exceeds its charge by over 1/16
};

// vg_sum compares charges of a class with measured times, in ns, over about the last 50 ms of work.
struct vg_sum {
	int64_t charged;
	int64_t more; // time taken beyond the charge
	int64_t most; // largest excess of a single observation
};

struct vg_class {
	uint64_t key;      // 0: the entry is free
	uint64_t ns;       // the estimate
	uint64_t unsteady; // vg_now until which the class's length counts as varying
	uint64_t look;     // vg_now until which the class is at least checked for varying length; 0: no check
	uint64_t opened;   // start of the current window; before any measurement, the last launch
	uint64_t sampled;  // last measurement on an idle stream, as vg_now
	uint32_t samples;  // samples begun
	uint32_t to_see;   // pieces that the current sample still needs
	bool measured;
	bool company;      // the last observation was beside work of the process's other streams
	uint16_t also;     // bit mask of the other GPUs that the work uses
	// Launches do not read the fields below.
	uint32_t looks;    // consecutive checks for unsure excesses without a finding
	uint64_t looked;   // start of the last check, as vg_now
	uint64_t error;    // possible error of the estimate, from the errors of its measurements
	uint64_t floor;    // minimum of the previous window
	uint64_t lowest;   // minimum of the current window; 0: none yet
	uint32_t seen;     // observations in the current window
	uint32_t averaged; // observations in the mean, up to a few
	struct vg_sum waited; // from the time that programs waited for the work
	struct vg_sum unsure; // from events, with other containers' slices between them
	struct vg_sum sure;   // from events, without other containers' slices
	struct vg_sum check;  // the same, since the start of the last check
};

// vg_estimate_is_known reports whether the class has been measured and its length does not vary. A
// launch of a known class is charged the measured time of earlier launches. Work of several GPUs is
// never known, so that each launch is measured alone.
static inline bool vg_estimate_is_known(const struct vg_class *class, uint64_t now)
{
	return class->measured && class->unsteady <= now && !class->also;
}

// vg_estimate_is_checked reports whether a check of the class is in progress.
static inline bool vg_estimate_is_checked(const struct vg_class *class)
{
	return class->look != 0;
}

struct vg_estimates {
	struct vg_class classes[vg_classes];
};

// vg_estimate_of returns the class with this key. If the table has no such class, vg_estimate_of
// creates a class with the estimate `prior` (ns). vg_estimate_of may drop an old class to make
// room.
struct vg_class *vg_estimate_of(struct vg_estimates *estimates, uint64_t key, uint64_t prior);

// vg_estimate_observe adds an observation of one launch of the class. `ns` is the observed time and
// `error` is the possible error, both in ns.
void vg_estimate_observe(struct vg_class *class, uint64_t ns, uint64_t error, uint64_t now);

// vg_estimate_observe_roughly adds an observation from which other containers' slices were
// deducted. The observation may be too high or too low.
void vg_estimate_observe_roughly(struct vg_class *class, uint64_t ns, uint64_t error, uint64_t now);

// vg_estimate_compare records that measured work of the class took `more` ns beyond its charge, or
// no longer than its charge if `more` is 0. `sure` is true if the time contains no slices of other
// processes. One sure excess starts a check of the class. Several unsure excesses start a check,
// unless the last check was recent. During a check, the meter measures each piece and deducts other
// containers' slices. The check does not end while a relevant part of the excess is unsure, because
// that part may be the work's own.
void vg_estimate_compare(struct vg_class *class, int64_t charged, int64_t more, bool sure, uint64_t now);

// vg_estimate_waited records the time that a program waited for work of the class.
// Several long waits start a check of the class.
void vg_estimate_waited(struct vg_class *class, int64_t charged, int64_t waited, uint64_t now);

// vg_estimate_is_doubtful reports whether a check of the class is in progress, or the class's
// length varies.
bool vg_estimate_is_doubtful(const struct vg_class *class, uint64_t now);

// vg_estimate_forget discards the measurements of a key that may come to mean other work.
// vg_estimates_forget discards the measurements of all keys.
void vg_estimate_forget(struct vg_estimates *estimates, uint64_t key);
void vg_estimates_forget(struct vg_estimates *estimates);

#endif
