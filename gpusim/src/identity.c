// SPDX-License-Identifier: Apache-2.0
/* This file implements identities: bytes of the state file that a live process holds locked. */
#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/auxv.h>
#include <unistd.h>

uint64_t gs_exec_id(void)
{
	const unsigned char *random = (const unsigned char *)getauxval(AT_RANDOM);
	uint64_t id = 0;

	for (int i = 0; random && i < 8; i++)
		id = id << 8 | random[i];
	return id;
}

static struct flock byte_lock(uint32_t id, short type)
{
	return (struct flock){
		.l_type = type,
		.l_whence = SEEK_SET,
		.l_start = GS_LOCK_BASE + (off_t)id,
		.l_len = 1,
	};
}

/*
 * is_own reports whether this process holds the identity, through this library or the other
 * library. F_GETLK reports only locks of other processes, so is_own compares the record beside the
 * lock.
 */
static bool is_own(const struct gs_handle *handle, uint32_t id)
{
	const struct gs_identity *identity = &handle->state->identities[id];

	return __atomic_load_n(&identity->in_use, __ATOMIC_ACQUIRE) != 0 &&
	       __atomic_load_n(&identity->exec_id, __ATOMIC_RELAXED) == handle->exec_id &&
	       __atomic_load_n(&identity->self_pid, __ATOMIC_RELAXED) == handle->pid;
}

bool gs_identity_alive(const struct gs_handle *handle, uint32_t id, pid_t *pid)
{
	struct flock lock = byte_lock(id, F_WRLCK);

	if (pid)
		*pid = 0;
	if (is_own(handle, id)) {
		if (pid)
			*pid = handle->pid;
		return true;
	}
	if (fcntl(handle->fd, F_GETLK, &lock) != 0)
		return true; /* an unknown process counts as alive */
	if (lock.l_type == F_UNLCK)
		return false;
	if (pid && lock.l_pid > 0)
		*pid = lock.l_pid;
	return true;
}

int gs_identity_take(struct gs_handle *handle, uint32_t id)
{
	struct gs_identity *identity = &handle->state->identities[id];
	struct flock lock = byte_lock(id, F_WRLCK);

	if (is_own(handle, id))
		return -EBUSY;
	if (fcntl(handle->fd, F_SETLK, &lock) != 0)
		return -errno;
	__atomic_store_n(&identity->exec_id, handle->exec_id, __ATOMIC_RELAXED);
	__atomic_store_n(&identity->self_pid, handle->pid, __ATOMIC_RELAXED);
	__atomic_store_n(&identity->in_use, 1, __ATOMIC_RELEASE);
	return 0;
}

void gs_identity_drop(struct gs_handle *handle, uint32_t id)
{
	struct flock lock = byte_lock(id, F_UNLCK);

	__atomic_store_n(&handle->state->identities[id].in_use, 0, __ATOMIC_RELEASE);
	(void)fcntl(handle->fd, F_SETLK, &lock);
}
