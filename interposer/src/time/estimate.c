// SPDX-License-Identifier: Apache-2.0

#include "estimate.h"

#include <stddef.h>

#include "base/number.h"

enum {
	vg_estimate_places = 8,          // slots that may hold a key
	// vg_window_observations is the number of observations in a window, and in the mean. At least
	// one of them contains no slice of another process, if the work is shorter than a slice. A
	// window is short, because the GPU's clock rate may change.
	vg_window_observations = 8,
	// vg_window_ns is the length of a check. While the process's other streams have work, which
	// most observations contain, vg_window_ns is also the least length of a window.
	vg_window_ns = 100000000,
	vg_nearness = 8,              // observations within 1/8 of the floor count as equally good
	// Errors that differ by more than the factor vg_fineness are not comparable.
	vg_fineness = 4,
	// vg_look_again_ns is the time between two checks. The time doubles after each check
	// without a finding.
	vg_look_again_ns = 400000000,
	vg_look_doublings = 3,        // limit of these doublings
	// A wait of a program is long if it exceeds vg_much_longer times the charge.
	vg_much_longer = 4,
	// vg_waited_slack_ns is added to the time of a long wait, because the program may also wait for
	// a processor.
	vg_waited_slack_ns = 500000,
	vg_sum_ns = 50000000,         // work after which a sum is halved
};

static const uint64_t vg_unsteady_ns = 10000000000; // time for which a class then counts as varying

static struct vg_class *vg_estimate_at(struct vg_estimates *estimates, uint64_t key, int place)
{
	uint64_t hash = key * UINT64_C(0x9e3779b97f4a7c15);

	return &estimates->classes[((hash >> 40) + (uint64_t)place) % vg_classes];
}

static struct vg_class *vg_estimate_find(struct vg_estimates *estimates, uint64_t key)
{
	for (int i = 0; i < vg_estimate_places; i++) {
		struct vg_class *class = vg_estimate_at(estimates, key, i);

		if (class->key == key)
			return class;
	}
	return NULL;
}

struct vg_class *vg_estimate_of(struct vg_estimates *estimates, uint64_t key, uint64_t prior)
{
	struct vg_class *class = vg_estimate_find(estimates, key);
	struct vg_class *victim;

	if (class)
		return class;
	victim = vg_estimate_at(estimates, key, 0);
	for (int i = 0; i < vg_estimate_places; i++) {
		class = vg_estimate_at(estimates, key, i);
		if (class->key == 0 || class->opened < victim->opened)
			victim = class;
		if (class->key == 0)
			break;
	}
	*victim = (struct vg_class){.key = key, .ns = prior};
	return victim;
}

void vg_estimate_forget(struct vg_estimates *estimates, uint64_t key)
{
	struct vg_class *class = vg_estimate_find(estimates, key);

	// The key stays, because a look-up ends at the first entry without a key.
	if (class)
		*class = (struct vg_class){.key = key, .ns = class->ns};
}

void vg_estimates_forget(struct vg_estimates *estimates)
{
	for (size_t i = 0; i < vg_classes; i++)
		vg_estimate_forget(estimates, estimates->classes[i].key);
}

static void vg_window_turn(struct vg_class *class, uint64_t now)
{
	class->floor = class->lowest;
	class->lowest = 0;
	class->seen = 0;
	class->opened = now;
}

static uint64_t vg_floor(const struct vg_class *class)
{
	if (class->lowest == 0)
		return class->floor;
	return class->floor ? vg_min(class->floor, class->lowest) : class->lowest;
}

// vg_estimate_average adds an observation to the mean, and its error to the mean error.
static void vg_estimate_average(struct vg_class *class, uint64_t ns, uint64_t error)
{
	if (class->averaged < vg_window_observations)
		class->averaged++;
	class->ns = (class->ns * (class->averaged - 1) + ns) / class->averaged;
	class->error = (class->error * (class->averaged - 1) + error) / class->averaged;
}

void vg_estimate_observe_roughly(struct vg_class *class, uint64_t ns, uint64_t error, uint64_t now)
{
	if (!class->measured)
		class->opened = now;
	class->measured = true;
	vg_estimate_average(class, ns ? ns : 1, error);
}

static void vg_sum_add(struct vg_sum *sum, int64_t charged, int64_t more)
{
	if (sum->charged >= vg_sum_ns)
		*sum = (struct vg_sum){sum->charged / 2, sum->more / 2, sum->most / 2};
	sum->charged += charged;
	sum->more += more;
	sum->most = more > sum->most ? more : sum->most;
}

// vg_sum_varies reports whether work took more time than its charge. vg_sum_varies ignores the
// largest excess, which a busy processor may have caused.
static bool vg_sum_varies(const struct vg_sum *sum)
{
	return sum->more - sum->most > sum->charged / vg_varied;
}

bool vg_estimate_is_doubtful(const struct vg_class *class, uint64_t now)
{
	return class->unsteady > now || vg_estimate_is_checked(class);
}

// vg_estimate_look starts a check of a class. A check has its own sum, because the clock may have
// just changed, after a long time without an excess.
static void vg_estimate_look(struct vg_class *class, uint64_t now)
{
	class->looked = now;
	class->look = now + vg_window_ns;
	class->waited = class->unsure = class->check = (struct vg_sum){0};
}

// vg_estimate_doubt starts a check of a class, if the last check was long enough ago.
static void vg_estimate_doubt(struct vg_class *class, uint64_t now)
{
	uint64_t pause = (uint64_t)vg_look_again_ns << vg_min(class->looks, vg_look_doublings);

	if (vg_estimate_is_doubtful(class, now) || (class->looked && now - class->looked < pause))
		return;
	class->looks++;
	vg_estimate_look(class, now);
}

// vg_estimate_settle ends a check after vg_window_ns, unless the work took more time than its charge
// and the time may be the work's own.
static void vg_estimate_settle(struct vg_class *class, uint64_t now)
{
	if (class->look <= now && class->unsure.more <= class->unsure.charged / vg_varied)
		class->look = 0;
}

void vg_estimate_waited(struct vg_class *class, int64_t charged, int64_t waited, uint64_t now)
{
	vg_sum_add(&class->waited, charged, waited > vg_much_longer * charged + vg_waited_slack_ns ?
						    waited - charged : 0);
	if (vg_sum_varies(&class->waited))
		vg_estimate_doubt(class, now);
}

void vg_estimate_compare(struct vg_class *class, int64_t charged, int64_t more, bool sure, uint64_t now)
{
	class->to_see -= class->to_see > 0;
	vg_sum_add(&class->unsure, charged, sure ? 0 : more);
	if (sure) {
		if (more > 0 && !vg_estimate_is_doubtful(class, now))
			vg_estimate_look(class, now);
		vg_sum_add(&class->sure, charged, more);
		vg_sum_add(&class->check, charged, more);
	} else if (vg_sum_varies(&class->unsure)) {
		vg_estimate_doubt(class, now);
	}
	if (class->unsteady > now ? sure && more > 0 : vg_sum_varies(&class->sure) || vg_sum_varies(&class->check)) {
		class->unsteady = now + vg_unsteady_ns;
		class->sure = (struct vg_sum){0};
		class->samples = 0; // a class that is known again has no samples
		class->looks = 0;
		class->look = 0;
	}
	vg_estimate_settle(class, now);
}

// vg_much_finer reports whether one error is so much smaller than another that an observation with
// the larger error adds nothing.
static bool vg_much_finer(uint64_t error, uint64_t than)
{
	return error * vg_fineness < than;
}

// vg_begins_anew reports whether an observation replaces the estimate. The first observation
// replaces the estimate. A much finer observation that agrees with the estimate replaces the
// estimate. A much coarser observation replaces the estimate if the work has become shorter.
static bool vg_begins_anew(const struct vg_class *class, uint64_t ns, uint64_t error)
{
	if (!class->measured)
		return true;
	if (vg_much_finer(error, class->error))
		return ns <= class->ns + class->ns / vg_nearness + class->error;
	return vg_much_finer(class->error, error) && ns + error < class->ns;
}

void vg_estimate_observe(struct vg_class *class, uint64_t ns, uint64_t error, uint64_t now)
{
	uint64_t floor;

	ns = ns ? ns : 1;
	if (vg_begins_anew(class, ns, error)) {
		class->averaged = class->measured; // the first launch of a function is slow
		class->measured = true;
		class->ns = class->lowest = ns;
		class->floor = 0;
		class->error = error;
		class->opened = now;
		class->seen = 1;
		return;
	}
	if (vg_much_finer(class->error, error) && ns <= class->ns + error)
		return;
	if (class->seen >= vg_window_observations && (!class->company || now - class->opened >= vg_window_ns))
		vg_window_turn(class, now);
	class->seen++;
	class->lowest = class->lowest ? vg_min(class->lowest, ns) : ns;
	floor = vg_floor(class);
	if (ns <= floor + floor / vg_nearness)
		vg_estimate_average(class, ns, error);
	if (class->ns > floor + floor / vg_nearness || class->ns < floor) {
		class->ns = floor;
		class->error = error > class->error ? error : class->error;
	}
}
