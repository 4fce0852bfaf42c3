// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "base.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void vg_futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *most)
{
	int saved = errno;

	syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, most);
	errno = saved;
}

// An owner that was interrupted between its two steps of vg_unlock may not have seen that
// it is waited for, and wakes nobody: so a wait ends after this.
static const struct timespec vg_lock_wait_most = {.tv_nsec = 2000000};

void vg_lock_wait(struct vg_mutex *mutex)
{
	while (atomic_exchange(&mutex->word, vg_waited_for) != vg_free)
		vg_futex(&mutex->word, FUTEX_WAIT, vg_waited_for, &vg_lock_wait_most);
}

bool vg_lock_until(struct vg_mutex *mutex, uint64_t when)
{
	vg_rank_check(mutex);
	while (atomic_exchange(&mutex->word, vg_waited_for) != vg_free) {
		if (vg_now() >= when)
			return false;
		vg_futex(&mutex->word, FUTEX_WAIT, vg_waited_for, &vg_lock_wait_most);
	}
	vg_rank_enter(mutex);
	return true;
}

void vg_unlock_wake(struct vg_mutex *mutex)
{
	vg_futex(&mutex->word, FUTEX_WAKE, 1, NULL);
}

size_t vg_append(char *to, size_t size, size_t at, const char *text, size_t length)
{
	if (at >= size || length >= size - at)
		return size;
	memcpy(to + at, text, length);
	to[at + length] = '\0';
	return at + length;
}

void vg_join(char *to, size_t size, const char *dir, const char *name)
{
	size_t length = vg_append(to, size, 0, dir, strlen(dir));

	if (vg_append(to, size, length, name, strlen(name)) == size)
		to[0] = '\0';
}

#ifdef VG_DEBUG
// What the thread holds, by rank: some mutexes have the same rank, as the parts of the
// table, of which a thread holds one at a time.
static __thread uint32_t vg_ranks_held[VG_RANK_COUNT];

static void vg_rank_broken(const char *what, const struct vg_mutex *mutex, uint32_t beside)
{
	fprintf(stderr, "nri-vgpu: lock order: %s a mutex of rank %u beside rank %u\n", what,
		mutex->rank, beside);
	abort();
}

void vg_rank_check(const struct vg_mutex *mutex)
{
	if (mutex->rank == VG_RANK_NONE || mutex->rank >= VG_RANK_COUNT)
		vg_rank_broken("taking an uninitialised mutex,", mutex, 0);
	for (uint32_t i = mutex->rank; i < VG_RANK_COUNT; i++)
		if (vg_ranks_held[i])
			vg_rank_broken("taking", mutex, i);
}

void vg_rank_enter(const struct vg_mutex *mutex)
{
	vg_ranks_held[mutex->rank]++;
}

void vg_rank_leave(const struct vg_mutex *mutex)
{
	if (!vg_ranks_held[mutex->rank])
		vg_rank_broken("giving back, without holding it,", mutex, mutex->rank);
	vg_ranks_held[mutex->rank]--;
}
#endif

void vg_say(enum vg_topic topic, const char *format, ...)
{
	static _Atomic uint32_t said;
	uint32_t bit = UINT32_C(1) << topic;
	char line[512] = "nri-vgpu: ";
	size_t length = strlen(line);
	va_list arguments;
	int saved = errno;

	if (atomic_fetch_or(&said, bit) & bit)
		return;
	va_start(arguments, format);
	vsnprintf(line + length, sizeof line - length - 1, format, arguments);
	va_end(arguments);
	length = strlen(line);
	line[length++] = '\n';
	// One write, so that lines of several processes don't mix; where it
	// fails, there is nobody left to tell.
	if (write(STDERR_FILENO, line, length) < 0)
		errno = saved;
	errno = saved;
}

int pthread_setcancelstate(int state, int *old) __attribute__((weak));

int vg_keep_thread(void)
{
	enum { disable = 1 };
	int before = disable;

	if (pthread_setcancelstate)
		pthread_setcancelstate(disable, &before);
	return before;
}

void vg_let_thread(int kept)
{
	if (pthread_setcancelstate)
		pthread_setcancelstate(kept, &kept);
}

uint64_t vg_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
