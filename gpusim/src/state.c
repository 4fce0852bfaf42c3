// SPDX-License-Identifier: Apache-2.0
/* This file opens the state, its process table and its memory counters. */
#include "state.h"

#include "identity.h"
#include "repair.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAP_EVERY_NS 1000000 /* time for which a dead process may hold slices */

const char *gs_path(void)
{
	const char *path = getenv("GPUSIM_STATE");

	return path && *path ? path : GS_DEFAULT_PATH;
}

static int map_state(struct gs_handle *handle)
{
	struct stat st;
	void *map;

	if (fstat(handle->fd, &st) != 0)
		return -errno;
	if (st.st_size != (off_t)sizeof(struct gs_state))
		return -EPROTO;
	map = mmap(NULL, sizeof(struct gs_state), PROT_READ | PROT_WRITE, MAP_SHARED, handle->fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	handle->state = map;
	if (handle->state->magic != GS_MAGIC || handle->state->version != GS_VERSION ||
	    handle->state->gpu_count > GS_MAX_GPUS) {
		munmap(map, sizeof(struct gs_state));
		handle->state = NULL;
		return -EPROTO;
	}
	return 0;
}

uint64_t gs_pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

static void describe_self(struct gs_proc *proc, const struct gs_handle *handle)
{
	proc->self_pid = handle->pid;
	proc->exec_id = handle->exec_id;
	proc->start_ns = gs_now();
	proc->pid_namespace = gs_pid_namespace();
	(void)prctl(PR_GET_NAME, proc->comm);
	if (gethostname(proc->hostname, sizeof(proc->hostname) - 1) != 0)
		proc->hostname[0] = '\0';
}

/* enter_process fills in this process's slot, which no process held. The caller holds the lock. */
static void enter_process(struct gs_handle *handle, uint32_t slot)
{
	struct gs_proc *proc = &handle->state->procs[slot];

	memset(proc, 0, sizeof(*proc));
	describe_self(proc, handle);
	proc->next_seq = 1;
	proc->timed_head = proc->done_head = proc->free_head = GS_NONE;
	for (uint32_t g = 0; g < GS_MAX_GPUS; g++)
		proc->gpu[g].ready_head = proc->gpu[g].ready_tail = GS_NONE;
	if (handle->state->procs_end <= slot)
		handle->state->procs_end = slot + 1;
	proc->in_use = 1;
}

static int take_first(struct gs_handle *handle, uint32_t first, uint32_t end, uint32_t *id)
{
	for (*id = first; *id < end; ++*id) {
		int err;

		if (*id < GS_MAX_PROCS && handle->state->procs[*id].in_use)
			continue;
		err = gs_identity_take(handle, *id);
		if (err != -EBUSY && err != -EAGAIN && err != -EACCES)
			return err;
	}
	return -ENOSPC;
}

static int take_observer(struct gs_handle *handle)
{
	int err = take_first(handle, GS_MAX_PROCS, GS_MAX_IDS, &handle->id);

	if (!err)
		gs_lock_inherit(handle);
	return err;
}

/*
 * take_process takes an unused process slot under the lock. A new process clears a dead process's
 * slot. Without the lock, other processes could mistake the new process for the dead process before
 * the clearing. The process first becomes an observer, because locking needs an identity.
 */
static int take_process(struct gs_handle *handle)
{
	uint32_t slot;
	int err = take_observer(handle);

	if (err)
		return err;
	gs_lock(handle);
	err = take_first(handle, 0, GS_MAX_PROCS, &slot);
	if (err == -ENOSPC) {
		gs_reap(handle);
		err = take_first(handle, 0, GS_MAX_PROCS, &slot);
	}
	if (!err)
		enter_process(handle, slot);
	gs_unlock(handle);
	gs_identity_drop(handle, handle->id);
	if (!err)
		handle->id = slot;
	return err;
}

static void set_dir(struct gs_handle *handle, const char *path)
{
	const char *slash = strrchr(path, '/');
	int length = slash ? (int)(slash - path) : 1;

	(void)snprintf(handle->dir, sizeof(handle->dir), "%.*s", length, slash ? path : ".");
}

int gs_open(struct gs_handle *handle, const char *path, enum gs_role role)
{
	int err;

	memset(handle, 0, sizeof(*handle));
	pthread_mutex_init(&handle->mutex, NULL);
	set_dir(handle, path);
	handle->pid = getpid();
	handle->exec_id = gs_exec_id();
	handle->fd = open(path, O_RDWR | O_CLOEXEC);
	if (handle->fd < 0)
		return -errno;
	err = map_state(handle);
	if (!err)
		err = role == GS_PROCESS ? take_process(handle) : take_observer(handle);
	if (!err)
		return 0;
	if (handle->state)
		munmap(handle->state, sizeof(struct gs_state));
	close(handle->fd);
	handle->state = NULL;
	handle->fd = -1;
	return err;
}

void gs_close(struct gs_handle *handle)
{
	if (!handle->state)
		return;
	if (handle->id < GS_MAX_PROCS) {
		gs_lock(handle);
		gs_forget(handle->state, handle->id);
		gs_unlock(handle);
	}
	gs_identity_drop(handle, handle->id);
	munmap(handle->state, sizeof(struct gs_state));
	close(handle->fd);
	handle->state = NULL;
	handle->fd = -1;
}

static bool can_open(const struct gs_handle *handle, const char *kind, uint32_t minor)
{
	char path[sizeof(handle->dir) + 16];
	int fd;

	(void)snprintf(path, sizeof(path), "%s/%s%u", handle->dir, kind, minor);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return false;
	close(fd);
	return true;
}

bool gs_gpu_visible(const struct gs_handle *handle, uint32_t gpu)
{
	const struct gs_gpu *entry = &handle->state->gpus[gpu];
	uint32_t cap = gs_mig_cap(entry->minor, entry->mig.gpu_instance);

	if (entry->mig.role == GS_MIG_GONE || !can_open(handle, "gpu", entry->minor))
		return false;
	return entry->mig.role != GS_MIG_DEVICE ||
	       (can_open(handle, "cap", cap) && can_open(handle, "cap", cap + 1));
}

bool gs_proc_alive(struct gs_handle *handle, uint32_t slot, pid_t *pid)
{
	return gs_identity_alive(handle, slot, pid);
}

struct gs_proc *gs_proc_next(struct gs_handle *handle, uint32_t *cursor)
{
	uint32_t end = (uint32_t)handle->state->procs_end;

	while (*cursor < end) {
		struct gs_proc *proc = &handle->state->procs[(*cursor)++];

		if (proc->in_use)
			return proc;
	}
	return NULL;
}

uint32_t gs_slot(const struct gs_handle *handle, const struct gs_proc *proc)
{
	return (uint32_t)(proc - handle->state->procs);
}

uint32_t gs_reap(struct gs_handle *handle)
{
	struct gs_proc *proc;
	uint32_t cursor = 0;
	uint32_t living = 0;

	while ((proc = gs_proc_next(handle, &cursor)))
		if (gs_proc_alive(handle, gs_slot(handle, proc), NULL)) {
			living++;
		} else {
			gs_compute(handle->state, gs_now()); /* work that ran until the death has run */
			gs_forget(handle->state, gs_slot(handle, proc));
		}
	handle->state->last_living = living;
	handle->state->last_reap_ns = gs_now();
	return living;
}

void gs_advance(struct gs_handle *handle, uint64_t now)
{
	struct gs_state *state = handle->state;

	if (now > state->last_reap_ns + REAP_EVERY_NS)
		gs_reap(handle);
	gs_compute(state, now);
}

static bool fits(const struct gs_gpu *gpu, uint64_t bytes)
{
	return bytes <= gpu->memory_bytes && gpu->used_bytes <= gpu->memory_bytes - bytes;
}

/*
 * note_peak updates the peak. The peak must not count the memory of a dead process. This memory is
 * free from the process's death on, although gs_reap frees the memory only when needed.
 */
static void note_peak(struct gs_handle *handle, uint32_t gpu)
{
	struct gs_gpu *g = &handle->state->gpus[gpu];

	if (g->used_bytes <= g->peak_used_bytes)
		return;
	if (g->used_bytes != handle->state->procs[handle->id].gpu[gpu].bytes)
		gs_reap(handle);
	if (g->used_bytes > g->peak_used_bytes)
		g->peak_used_bytes = g->used_bytes;
}

bool gs_charge(struct gs_handle *handle, uint32_t gpu, uint64_t bytes)
{
	struct gs_gpu *g = &handle->state->gpus[gpu];
	struct gs_proc_gpu *mine = &handle->state->procs[handle->id].gpu[gpu];

	if (mine->limit_bytes && (bytes > mine->limit_bytes || mine->bytes > mine->limit_bytes - bytes))
		return false;
	if (!fits(g, bytes))
		gs_reap(handle);
	if (!fits(g, bytes))
		return false;
	mine->bytes += bytes;
	if (mine->bytes > mine->peak_bytes)
		mine->peak_bytes = mine->bytes;
	g->used_bytes += bytes;
	note_peak(handle, gpu);
	return true;
}

void gs_uncharge(struct gs_handle *handle, uint32_t gpu, uint64_t bytes)
{
	handle->state->procs[handle->id].gpu[gpu].bytes -= bytes;
	handle->state->gpus[gpu].used_bytes -= bytes;
}
