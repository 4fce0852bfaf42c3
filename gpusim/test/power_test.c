// SPDX-License-Identifier: Apache-2.0
/* This test covers the speed of kernels: under a power limit, and beside each other. */
#include "harness.h"

static CUevent make_event(void)
{
	DRIVER(cuEventCreate, CUevent *, unsigned);
	CUevent event;

	OK(cuEventCreate(&event, 0));
	return event;
}

static double between(CUevent from, CUevent to)
{
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	float ms;

	OK(cuEventElapsedTime(&ms, from, to));
	return (double)ms;
}

#define KERNELS 60

/* the_clock_goes_up_and_down checks that the clock is 30 % faster for 20 ms, and 30 % slower for
 * the next 20 ms. */
static void the_clock_goes_up_and_down(void *unused)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventSynchronize, CUevent);
	double least = 1e9, most = 0;
	CUevent events[KERNELS + 1];

	(void)unused;
	begin();
	kernel("spin");
	spin(NULL, 40 * MS, 1);
	for (int i = 0; i <= KERNELS; i++) {
		events[i] = make_event();
		OK(cuEventRecord(events[i], NULL));
		spin(NULL, 4 * MS, 1);
	}
	OK(cuEventSynchronize(events[KERNELS]));
	for (int i = 0; i < KERNELS; i++) {
		double ms = between(events[i], events[i + 1]);

		least = ms < least ? ms : least;
		most = ms > most ? ms : most;
	}
	BETWEEN(least, 4 / 1.3 - 0.002, 4 / 1.3 + 0.002);
	BETWEEN(most, 4 / 0.7 - 0.002, 4 / 0.7 + 0.002);
	/* 60 × 4 ms are six periods, over which the changes cancel out. */
	BETWEEN(between(events[0], events[KERNELS]), 239.9, 240.1);
}

/*
 * side_by_side returns the time of two kernels of 80 ms with this many blocks each, in ms.
 */
static double side_by_side(unsigned blocks)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuStreamWaitEvent, CUstream, CUevent, unsigned);
	DRIVER(cuCtxSynchronize, void);
	CUevent from = make_event(), to[2] = {make_event(), make_event()};
	CUstream streams[2];
	double first, second;

	for (int i = 0; i < 2; i++)
		OK(cuStreamCreate(&streams[i], 1));
	spin(streams[0], 40 * MS, 1); /* keeps the host ahead */
	OK(cuEventRecord(from, streams[0]));
	OK(cuStreamWaitEvent(streams[1], from, 0));
	for (int i = 0; i < 2; i++) {
		spin(streams[i], 80 * MS, blocks);
		OK(cuEventRecord(to[i], streams[i]));
	}
	OK(cuCtxSynchronize());
	first = between(from, to[0]);
	second = between(from, to[1]);
	return first > second ? first : second;
}

static void kernels_slow_each_other_down(void *unused)
{
	(void)unused;
	begin();
	kernel("spin");
	BETWEEN(side_by_side(1), 119.9, 120.1);
	BETWEEN(side_by_side(1 << 20), 159.9, 160.1); /* one after the other */
}

int main(void)
{
	finish(start(the_clock_goes_up_and_down, NULL));
	finish(start(kernels_slow_each_other_down, NULL));
	return 0;
}
