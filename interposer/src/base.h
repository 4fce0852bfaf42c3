// SPDX-License-Identifier: Apache-2.0

// What every file needs: a mutex that survives fork and killed owners, and one
// way to speak.

#ifndef VG_BASE_H
#define VG_BASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rank.h"

#define VG_MIB (UINT64_C(1) << 20)

// vg_mutex is unlocked when zero, so that zeroed memory holds good mutexes: a
// fork's child finds them so (see state.h). It is private to the process. It is
// not libpthread's, which glibc before 2.34 keeps in a library of its own.
struct vg_mutex {
	_Atomic uint32_t word;
	uint32_t rank; // enum vg_rank, of debug builds
};

enum { vg_free, vg_held, vg_waited_for }; // of its word

// These three are for a mutex that others want, too. vg_lock_until gives up at this vg_now, and
// reports whether it has the mutex.
void vg_lock_wait(struct vg_mutex *mutex);
bool vg_lock_until(struct vg_mutex *mutex, uint64_t when);
void vg_unlock_wake(struct vg_mutex *mutex);

// Lock order, in debug builds only: VG_MUTEX and vg_rank_set set a mutex's rank,
// vg_rank_known reports whether it has one, vg_rank_check aborts if taking it breaks the
// order, vg_rank_enter and vg_rank_leave record what the thread holds. Other builds store no
// rank: an initialised mutex would cost each start a page.
#ifdef VG_DEBUG
#define VG_MUTEX(of) {.rank = (of)}
static inline void vg_rank_set(struct vg_mutex *mutex, enum vg_rank rank)
{
	mutex->rank = rank;
}

static inline bool vg_rank_known(const struct vg_mutex *mutex)
{
	return mutex->rank != VG_RANK_NONE;
}

void vg_rank_check(const struct vg_mutex *mutex);
void vg_rank_enter(const struct vg_mutex *mutex);
void vg_rank_leave(const struct vg_mutex *mutex);
#else
#define VG_MUTEX(of) {0}
static inline void vg_rank_set(struct vg_mutex *mutex, enum vg_rank rank)
{
	(void)mutex;
	(void)rank;
}

static inline bool vg_rank_known(const struct vg_mutex *mutex)
{
	(void)mutex;
	return true;
}

static inline void vg_rank_check(const struct vg_mutex *mutex)
{
	(void)mutex;
}

static inline void vg_rank_enter(const struct vg_mutex *mutex)
{
	(void)mutex;
}

static inline void vg_rank_leave(const struct vg_mutex *mutex)
{
	(void)mutex;
}
#endif

static inline bool vg_take(struct vg_mutex *mutex)
{
	uint32_t seen = vg_free;

	return atomic_compare_exchange_strong(&mutex->word, &seen, vg_held);
}

// vg_try_lock never waits, so that it needs no order.
static inline bool vg_try_lock(struct vg_mutex *mutex)
{
	bool taken = vg_take(mutex);

	if (taken)
		vg_rank_enter(mutex);
	return taken;
}

static inline void vg_lock(struct vg_mutex *mutex)
{
	vg_rank_check(mutex);
	if (__builtin_expect(!vg_take(mutex), 0))
		vg_lock_wait(mutex);
	vg_rank_enter(mutex);
}

// An exchange would not miss who comes while the mutex is being unlocked, but costs a launch
// as much as the lock itself. Who is missed looks again by himself (base.c).
static inline void vg_unlock(struct vg_mutex *mutex)
{
	vg_rank_leave(mutex);
	if (__builtin_expect(atomic_load_explicit(&mutex->word, memory_order_relaxed) == vg_held, 1))
		atomic_store_explicit(&mutex->word, vg_free, memory_order_release);
	else if (atomic_exchange(&mutex->word, vg_free) == vg_waited_for)
		vg_unlock_wake(mutex);
}

// vg_say writes one line to standard error: "nri-vgpu: …". A topic speaks once
// per process, however often it has cause to.
enum vg_topic { VG_SAY_PAGES, VG_SAY_DRIVER, VG_SAY_MEMORY, VG_SAY_CONTEXT, VG_SAY_DOOR, VG_SAY_NAME, VG_SAY_IDENTITY, VG_SAY_POOLS };

void vg_say(enum vg_topic topic, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

// vg_keep_thread disables cancellation of the calling thread and returns its former state, which
// vg_let_thread restores: a thread cancelled in one of our waits would leave mutexes locked.
// In programs without pthread_setcancelstate no thread can be cancelled.
int vg_keep_thread(void);
void vg_let_thread(int kept);

// vg_now is CLOCK_MONOTONIC in nanoseconds.
uint64_t vg_now(void);

// vg_is_digit reports whether a character is one of 0 to 9. The C library's table of
// characters would be one more page to read at each start of a process.
static inline bool vg_is_digit(char c)
{
	return c >= '0' && c <= '9';
}

// vg_name_hash is the hash that ELF files have for names.
static inline uint32_t vg_name_hash(const char *name)
{
	uint32_t hash = 5381;

	for (; *name; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

// vg_append appends text to a string of length `at` in a buffer of `size` bytes, and returns
// the new length. If there is no room, it appends nothing and returns `size`. It replaces
// snprintf, which is slow at a process's start.
size_t vg_append(char *to, size_t size, size_t at, const char *text, size_t length);

// vg_join writes `dir` and `name`, one after the other, or "" if there is no room.
void vg_join(char *to, size_t size, const char *dir, const char *name);

static inline uint64_t vg_add_saturating(uint64_t a, uint64_t b)
{
	return a + b < a ? UINT64_MAX : a + b;
}

static inline uint64_t vg_round_up(uint64_t value, uint64_t unit)
{
	return vg_add_saturating(value, unit - 1) / unit * unit;
}

static inline uint64_t vg_min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

#endif
