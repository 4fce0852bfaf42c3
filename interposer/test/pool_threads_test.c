// SPDX-License-Identifier: Apache-2.0

// This test checks that no function changes the records of pools while another thread works on
// these records.

#include <pthread.h>
#include <string.h>

#include "base/mutex.h"
#include "memory/pool_destroyed.h"
#include "memory/pool_held.h"
#include "one_pool.h"

static struct vg_pool_piece last_piece;

static void call_made(void)
{
	vg_pool_lifetime_made(process, other, &on_device);
}

static void call_opened(void)
{
	vg_pool_lifetime_opened(process, other);
}

static void call_ending(void)
{
	CHECK(vg_pool_lifetime_ending(process, handle, &(uint64_t){0}) == pool);
}

static void call_ended(void)
{
	vg_pool_lifetime_ended(process, pool, 0, CUDA_ERROR_NOT_FOUND);
}

static void call_context_ended(void)
{
	vg_pool_lifetime_context_ended(process, 0);
}

static void call_of(void)
{
	CHECK(vg_pool_of(process, other, 0));
}

static void call_sum(void)
{
	vg_pool_held_sum(process, 0, &(uint64_t){0});
}

static void call_drop_pointer(void)
{
	vg_pool_held_drop_pointer(process, pool, 0, 1);
}

static void call_refresh(void)
{
	vg_pool_held_refresh(process);
}

static void call_find(void)
{
	CHECK(vg_pool_destroyed_find(process, 1).pool == pool);
}

static void call_freed(void)
{
	vg_pool_destroyed_freed(process, &last_piece);
}

static void call_freed_in(void)
{
	vg_pool_destroyed_freed_in(process, &last_piece, NULL, false);
}

static void (*call)(void);
static atomic_bool over;

static void *run_call(void *unused)
{
	call();
	atomic_store(&over, true);
	return unused;
}

static void test_other_threads_are_waited_for(void)
{
	const struct {
		void (*call)(void);
		bool destroyed; // the pool
	} cases[] = {
		{call_made, false}, {call_opened, false}, {call_ending, false}, {call_ended, false}, {call_context_ended, false},
		{call_of, false}, {call_sum, false}, {call_drop_pointer, false}, {call_refresh, false},
		{call_find, true}, {call_freed, true}, {call_freed_in, true},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		pthread_t thread;

		memset(&events, 0, sizeof events);
		begin(200 * mib, 120 * mib, 120 * mib, handle);
		if (cases[i].destroyed) {
			destroy();
			last_piece = vg_pool_destroyed_find(process, 1);
		}
		call = cases[i].call;
		atomic_store(&over, false);
		vg_mutex_lock(&process->pool_mutex);
		CHECK_EQUAL(pthread_create(&thread, NULL, run_call, NULL), 0);
		while (atomic_load(&process->pool_mutex.word) != vg_mutex_waited_for)
			CHECK(!atomic_load(&over));
		vg_mutex_unlock(&process->pool_mutex);
		CHECK_EQUAL(pthread_join(thread, NULL), 0);
		CHECK(atomic_load(&over));
		events.reached = events.created;
		vg_pool_destroyed_look(process);
		CHECK_EQUAL(events.left, 0);
	}
}

int main(void)
{
	one_pool_driver();
	test_other_threads_are_waited_for();
	return 0;
}
