// SPDX-License-Identifier: Apache-2.0

// This test covers a contended meter. Threads wait for their turn, and the next holder drops the
// records of streams that end meanwhile.

#include "time/meter.h"

#include <pthread.h>
#include <time.h>

#include "check.h"
#include "time/forget.h"

static uint64_t real_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

enum { rounds = 20 };

static struct vg_meter wanted = {
	.mutex = {.rank = VG_RANK_METER},
};
static _Atomic bool taken;

static void hold(uint64_t ns)
{
	const struct timespec time = {.tv_nsec = (long)ns};

	CHECK(vg_meter_lock(&wanted, UINT64_C(10000000000)));
	atomic_store(&taken, true);
	nanosleep(&time, NULL);
	vg_meter_unlock(&wanted);
}

static void *hold_again(void *unused)
{
	for (int i = 0; i < rounds; i++)
		hold(40000000);
	return unused;
}

static void *hold_on(void *unused)
{
	hold(900000000);
	return unused;
}

// If streams end while a meter is stuck in the driver, the meter's next holder drops all records. The
// ending thread waits at most once.
static void test_ends(void)
{
	enum { ends = 100 };
	static struct vg_stream other = {.used = true, .handle = (CUstream)0x7000};
	uint64_t began;
	pthread_t thread;

	atomic_store(&taken, false);
	CHECK_EQUAL(pthread_create(&thread, NULL, hold_on, NULL), 0);
	while (!atomic_load(&taken))
		continue;
	wanted.streams[0] = other; // the holder does not check this stream
	began = real_ns();
	for (uint64_t i = 0; i < ends; i++)
		vg_forget(&wanted, vg_end_stream, 0x1000 + i);
	CHECK(real_ns() - began < 300000000);
	CHECK_EQUAL(pthread_join(thread, NULL), 0);
	CHECK(vg_meter_try_lock(&wanted));
	CHECK(!wanted.streams[0].used);
	vg_meter_unlock(&wanted);
}

// While a meter passes from thread to thread, a thread waits for its turn. A thread that holds the
// meter for the whole wait counts as stuck in the driver.
static void test_turns(void *(*holder)(void *), bool gets_it)
{
	pthread_t thread;
	bool got;

	atomic_store(&taken, false);
	CHECK_EQUAL(pthread_create(&thread, NULL, holder, NULL), 0);
	while (!atomic_load(&taken))
		continue;
	got = vg_meter_lock_in_turn(&wanted, 150000000);
	if (got)
		vg_meter_unlock(&wanted);
	CHECK_EQUAL(got, gets_it);
	CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

int main(void)
{
	test_turns(hold_again, true);
	test_turns(hold_on, false);
	test_ends();
	return 0;
}
