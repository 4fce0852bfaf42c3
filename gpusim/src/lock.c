// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements the machine-wide lock: a futex word that names its holder's identity.
 *
 * A robust pthread mutex would not work, because the mutex identifies its holder by thread id.
 * Processes in the pid namespaces of several containers share thread ids. In this lock, a waiter
 * queries the kernel whether the holder's identity byte is still locked. If the byte is unlocked,
 * the waiter takes the lock over.
 */
#include "identity.h"
#include "repair.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WAITERS UINT32_C(0x80000000)
/* INHERITED marks a lock as taken by the new holder of a dead process's identity. */
#define INHERITED UINT32_C(0x40000000)
#define HOLDER(word) (((word) & ~(WAITERS | INHERITED)) - 1)
#define SPINS 200
#define CHECK_HOLDER_NS 2000000 /* wait before a check of the holder */

static void futex_wait(uint32_t *word, uint32_t value, long ns)
{
	struct timespec timeout = {0, ns};

	(void)syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

static void futex_wake(uint32_t *word)
{
	(void)syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static bool take(uint32_t *word, uint32_t expected, uint32_t value)
{
	return __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQUIRE,
					   __ATOMIC_RELAXED);
}

/* take_over takes the lock from a dead holder, and repairs the half-written state. */
static bool take_over(struct gs_handle *handle, uint32_t seen)
{
	struct gs_state *state = handle->state;
	
	if (gs_identity_alive(handle, HOLDER(seen), NULL))
		return false;
	if (!take(&state->lock, seen, (handle->id + 1) | WAITERS))
		return false;
	gs_repair(state);
	state->recoveries++;
	return true;
}

static bool spin(uint32_t *word, uint32_t mine)
{
	for (int i = 0; i < SPINS; i++) {
		if (__atomic_load_n(word, __ATOMIC_RELAXED) == 0 && take(word, 0, mine))
			return true;
		__atomic_signal_fence(__ATOMIC_SEQ_CST);
	}
	return false;
}

static void lock_slowly(struct gs_handle *handle)
{
	uint32_t *word = &handle->state->lock;
	uint32_t mine = handle->id + 1;

	if (spin(word, mine))
		return;
	for (;;) {
		uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);

		/* Other processes may also wait from here on. Therefore take() must keep the mark. */
		if (seen == 0 && take(word, 0, mine | WAITERS))
			return;
		if (seen == 0)
			continue;
		if (!(seen & WAITERS) && !take(word, seen, seen | WAITERS))
			continue;
		futex_wait(word, seen | WAITERS, CHECK_HOLDER_NS);
		if (__atomic_load_n(word, __ATOMIC_RELAXED) == (seen | WAITERS) &&
		    take_over(handle, seen | WAITERS))
			return;
	}
}

void gs_lock(struct gs_handle *handle)
{
	pthread_mutex_lock(&handle->mutex);
	if (!take(&handle->state->lock, 0, handle->id + 1))
		lock_slowly(handle);
}

void gs_unlock(struct gs_handle *handle)
{
	uint32_t *word = &handle->state->lock;

	if (__atomic_exchange_n(word, 0, __ATOMIC_RELEASE) & WAITERS)
		futex_wake(word);
	pthread_mutex_unlock(&handle->mutex);
}

void gs_lock_inherit(struct gs_handle *handle)
{
	uint32_t seen = __atomic_load_n(&handle->state->lock, __ATOMIC_RELAXED);

	/* The identity's last holder died while it held the lock. No other process can detect this
	 * state any more. */
	if (seen == 0 || HOLDER(seen) != handle->id)
		return;
	/* take() fails if a waiter has found the identity free and has just taken the lock over. */
	if (!take(&handle->state->lock, seen, seen ^ INHERITED))
		return;
	gs_repair(handle->state);
	handle->state->recoveries++;
	__atomic_store_n(&handle->state->lock, 0, __ATOMIC_RELEASE);
	futex_wake(&handle->state->lock);
}
