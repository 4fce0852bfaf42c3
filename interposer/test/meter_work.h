// SPDX-License-Identifier: Apache-2.0

// This header runs work for tests of the meter. The driver's clock only runs while work runs.

#ifndef VG_TEST_METER_WORK_H
#define VG_TEST_METER_WORK_H

#include "check.h"
#include "pages/pages.h"
#include "time/forget.h"
#include "time/meter.h"
#include "time/segment.h"

static const uint64_t work_ns = 1200000;

static uint64_t clock_ns = 1000000000; // less than the machine's uptime
static const uint64_t *program_ns = &clock_ns; // the program's time, which may be ahead of its work

// The agent reports that no other container uses the GPU.
static const struct vg_limits_page limits = {.others_looks = {UINT64_C(1) << VG_LEASE_PPM_BITS}};
static struct vg_usage_page usage;
static const struct vg_pages pages = {.limits = &limits, .usage = &usage};

static inline uint64_t work_time(void)
{
	return clock_ns;
}

static inline uint64_t program_time(void)
{
	return *program_ns;
}

static inline CUstream stream_of(uint64_t context, uint64_t number)
{
	return (CUstream)(uintptr_t)(context << 20 | (number + 1) << 4);
}

static inline void forget_stream(struct vg_meter *meter, CUstream stream)
{
	vg_forget(meter, vg_end_stream, (uint64_t)(uintptr_t)stream);
}

// run runs work that takes ns. The program launches the work at `now`, with a charge.
static inline void run(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class, int64_t charge,
		       uint64_t now, uint64_t ns)
{
	bool after = vg_segment_before(meter, stream, class, charge, now, false);

	clock_ns += ns;
	if (after)
		vg_segment_after(meter, stream, false);
}

// launch runs work of a class, and returns the charge.
static inline int64_t launch(struct vg_meter *meter, uint64_t context, uint64_t number, uint64_t key, uint64_t prior)
{
	struct vg_class *class = vg_estimate_of(&meter->estimates, key, prior);
	struct vg_stream *stream = vg_meter_stream(meter, stream_of(context, number), context, 0);
	int64_t charge = vg_meter_charge(meter, class);

	CHECK(stream);
	run(meter, stream, class, charge, clock_ns, work_ns);
	return charge;
}

// check_near checks that a number differs from another number by less than one part of `parts`.
static inline void check_near(int64_t got, int64_t want, int64_t parts)
{
	CHECK(got > want - want / parts && got < want + want / parts);
}

// enter enters work of a class for a thread that has not launched the work yet.
static inline struct vg_on_way *enter(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class)
{
	vg_segment_before(meter, stream, class, (int64_t)class->ns, clock_ns, false);
	return vg_meter_on_way_begin(stream);
}

// charge enters work of a class, and charges the work.
static inline struct vg_on_way *charge(struct vg_meter *meter, struct vg_stream *stream, struct vg_class *class)
{
	meter->owed += (int64_t)class->ns;
	return enter(meter, stream, class);
}

#endif
