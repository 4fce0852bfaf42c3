// SPDX-License-Identifier: Apache-2.0

// This header declares a mutex that is private to a process. In the child of a fork, the mutexes of
// wiped memory are unlocked.

#ifndef VG_MUTEX_H
#define VG_MUTEX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "rank.h"

// vg_mutex is unlocked when zero, so that zeroed memory contains usable mutexes. The child of a
// fork finds its state zeroed (memory/state.h). vg_mutex does not use libpthread's mutex, because
// glibc before 2.34 has libpthread as a separate library.
struct vg_mutex {
	_Atomic uint32_t word;
	uint32_t rank; // enum vg_rank; only in debug builds
};

enum { vg_mutex_free, vg_mutex_held, vg_mutex_waited_for }; // values of `word`

// vg_mutex_wait locks a mutex that another thread holds. vg_mutex_lock_until reports whether it
// locked the mutex before `when`, a vg_now time. vg_mutex_wake wakes one waiting thread.
void vg_mutex_wait(struct vg_mutex *mutex);
bool vg_mutex_lock_until(struct vg_mutex *mutex, uint64_t when);
void vg_mutex_wake(struct vg_mutex *mutex);

// Debug builds assert the lock order (rank.h). VG_MUTEX and vg_mutex_set_rank set a mutex's rank.
// vg_mutex_has_rank reports whether the mutex has a rank. Other builds store no rank, because
// initialised mutexes would make each start of a process touch one more page.
#ifdef VG_DEBUG
#define VG_MUTEX(of) {.rank = (of)}
#else
#define VG_MUTEX(of) {0}
#endif

static inline void vg_mutex_set_rank(struct vg_mutex *mutex, enum vg_rank rank)
{
#ifdef VG_DEBUG
	mutex->rank = rank;
#else
	(void)mutex;
	(void)rank;
#endif
}

static inline bool vg_mutex_has_rank(const struct vg_mutex *mutex)
{
#ifdef VG_DEBUG
	return mutex->rank != VG_RANK_NONE;
#else
	(void)mutex;
	return true;
#endif
}

static inline void vg_mutex_check(const struct vg_mutex *mutex)
{
#ifdef VG_DEBUG
	vg_rank_check(mutex->rank);
#else
	(void)mutex;
#endif
}

static inline void vg_mutex_enter(const struct vg_mutex *mutex)
{
#ifdef VG_DEBUG
	vg_rank_enter(mutex->rank);
#else
	(void)mutex;
#endif
}

static inline void vg_mutex_leave(const struct vg_mutex *mutex)
{
#ifdef VG_DEBUG
	vg_rank_leave(mutex->rank);
#else
	(void)mutex;
#endif
}

static inline bool vg_mutex_take(struct vg_mutex *mutex)
{
	uint32_t seen = vg_mutex_free;

	return atomic_compare_exchange_strong(&mutex->word, &seen, vg_mutex_held);
}

// vg_mutex_try_lock reports whether it locked the mutex. vg_mutex_try_lock never waits, and may
// break the lock order.
static inline bool vg_mutex_try_lock(struct vg_mutex *mutex)
{
	bool taken = vg_mutex_take(mutex);

	if (taken)
		vg_mutex_enter(mutex);
	return taken;
}

static inline void vg_mutex_lock(struct vg_mutex *mutex)
{
	vg_mutex_check(mutex);
	if (__builtin_expect(!vg_mutex_take(mutex), 0))
		vg_mutex_wait(mutex);
	vg_mutex_enter(mutex);
}

// vg_mutex_unlock may miss a thread that begins to wait during the unlock. An exchange would not
// miss the thread, but takes as long as the lock. A missed thread re-checks after a timeout
// (mutex.c).
static inline void vg_mutex_unlock(struct vg_mutex *mutex)
{
	vg_mutex_leave(mutex);
	if (__builtin_expect(atomic_load_explicit(&mutex->word, memory_order_relaxed) == vg_mutex_held, 1))
		atomic_store_explicit(&mutex->word, vg_mutex_free, memory_order_release);
	else if (atomic_exchange(&mutex->word, vg_mutex_free) == vg_mutex_waited_for)
		vg_mutex_wake(mutex);
}

#endif
