// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "mutex.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "now.h"

static void vg_futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *most)
{
	int saved = errno;

	syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, most);
	errno = saved;
}

// vg_mutex_wait_most is the longest wait before a waiter re-checks the mutex. An owner that is
// interrupted between the two steps of vg_mutex_unlock may miss a waiter, and wakes no thread.
static const struct timespec vg_mutex_wait_most = {.tv_nsec = 2000000};

void vg_mutex_wait(struct vg_mutex *mutex)
{
	while (atomic_exchange(&mutex->word, vg_mutex_waited_for) != vg_mutex_free)
		vg_futex(&mutex->word, FUTEX_WAIT, vg_mutex_waited_for, &vg_mutex_wait_most);
}

bool vg_mutex_lock_until(struct vg_mutex *mutex, uint64_t when)
{
	vg_mutex_check(mutex);
	while (atomic_exchange(&mutex->word, vg_mutex_waited_for) != vg_mutex_free) {
		if (vg_now() >= when)
			return false;
		vg_futex(&mutex->word, FUTEX_WAIT, vg_mutex_waited_for, &vg_mutex_wait_most);
	}
	vg_mutex_enter(mutex);
	return true;
}

void vg_mutex_wake(struct vg_mutex *mutex)
{
	vg_futex(&mutex->word, FUTEX_WAKE, 1, NULL);
}
