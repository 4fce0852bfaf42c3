// SPDX-License-Identifier: Apache-2.0
/* This file lists the processes that use a device, and the memory of each process on the device. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>

/*
 * UNSEEN_PIDS is the base of the host pids of processes in containers before an observer on the
 * host has read the processes. A process in a container cannot determine its pid on the host.
 * UNSEEN_PIDS is above 4194304, the highest pid of a kernel.
 */
#define UNSEEN_PIDS 5000000

/* host_pid returns the host's pid of a process, for any caller. */
static pid_t host_pid(const struct gs_proc *proc)
{
	if (proc->pid_namespace == nv_state()->state->pid_namespace)
		return proc->self_pid;
	if (proc->seen_pid > 0)
		return proc->seen_pid;
	return UNSEEN_PIDS + (pid_t)gs_slot(nv_state(), proc);
}

static bool on_host(uint64_t namespace)
{
	return namespace && namespace == nv_state()->state->pid_namespace;
}

pid_t nv_visible_pid(struct gs_proc *proc, uint64_t own_namespace)
{
	bool host_pids = nv_state()->state->driver.nvml == GS_NVML_HOST_PIDS;
	pid_t pid = 0;

	/* nv_lock() has found the live processes. All callers in a namespace see the same pids. */
	if (host_pids && !on_host(own_namespace))
		return host_pid(proc);
	if (own_namespace && proc->pid_namespace == own_namespace)
		return proc->self_pid;
	if (!gs_proc_alive(nv_state(), gs_slot(nv_state(), proc), &pid))
		return 0;
	if (pid > 0 && proc->pid_namespace != own_namespace)
		proc->seen_pid = pid;
	return pid;
}

uint64_t nv_visible_bytes(const struct gs_proc *proc, uint32_t gpu, uint64_t own_namespace)
{
	switch (nv_state()->state->driver.nvml) {
	case GS_NVML_NOT_AVAILABLE:
		return UINT64_MAX;
	case GS_NVML_OWN_ZERO:
		return on_host(own_namespace) ? proc->gpu[gpu].bytes : 0;
	default:
		return proc->gpu[gpu].bytes;
	}
}

/* listing is the output of one call. The versions of the structure differ in size. */
struct listing {
	char *entries;
	size_t size; /* of an entry */
	unsigned room;
	unsigned found;
};

static void list_process(struct listing *listing, pid_t pid, uint64_t bytes, const struct gs_mig *mig)
{
	bool instance = mig->role == GS_MIG_DEVICE;
	unsigned at = listing->found++;
	struct nvml_process_535 entry;

	if (at >= listing->room)
		return;
	entry = (struct nvml_process_535){.process = {
		.pid = (unsigned)pid,
		.used_bytes = bytes,
		.gpu_instance = instance ? mig->gpu_instance : NVML_NO_INSTANCE,
		.compute_instance = instance ? 0 : NVML_NO_INSTANCE,
	}};
	/* Each version begins with the fields of the earlier version. */
	memcpy(listing->entries + at * listing->size, &entry, listing->size);
}

/* wanted is the kind of processes that a call lists. A process may have several kinds of use. */
enum wanted { WANT_COMPUTE, WANT_MPS, WANT_GRAPHICS };

static bool is_wanted(const struct gs_proc *proc, uint32_t gpu, enum wanted wanted)
{
	const struct gs_proc_gpu *use = &proc->gpu[gpu];

	if (use->contexts == 0 && use->bytes == 0)
		return false;
	switch (wanted) {
	case WANT_GRAPHICS:
		return proc->graphics;
	case WANT_MPS:
		return proc->mps == GS_MPS_CLIENT;
	default:
		return use->contexts > 0 || !proc->graphics;
	}
}

static void list_all(struct listing *listing, uint32_t gpu, enum wanted wanted)
{
	uint64_t own_namespace = gs_pid_namespace();
	struct gs_proc *proc;
	uint32_t cursor = 0;

	while ((proc = gs_proc_next(nv_state(), &cursor))) {
		pid_t pid;

		if (!is_wanted(proc, gpu, wanted))
			continue;
		pid = nv_visible_pid(proc, own_namespace);
		if (pid > 0)
			list_process(listing, pid, nv_visible_bytes(proc, gpu, own_namespace),
				     &nv_state()->state->gpus[gpu].mig);
	}
}

static nvmlReturn_t running(nvmlDevice_t device, unsigned *count, void *entries, size_t size,
			    enum wanted wanted)
{
	nvmlReturn_t result = nv_enter_device(device);
	struct listing listing = {.entries = entries, .size = size};

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	listing.room = entries ? *count : 0;
	nv_cost(nv_state()->state->driver.nvml_processes_ns);
	nv_lock();
	for (uint32_t g = 0; g < nv_state()->state->gpu_count; g++)
		if (nv_covers(device, g))
			list_all(&listing, g, wanted);
	nv_unlock();
	*count = listing.found;
	return listing.found > listing.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t running_v3(nvmlDevice_t device, unsigned *count, void *entries, enum wanted wanted)
{
	nvmlReturn_t result = nv_enter_device(device);
	size_t size = sizeof(struct nvml_process_v2);
	unsigned branch, release;

	if (result != NVML_SUCCESS)
		return result;
	if (sscanf(nv_state()->state->driver_version_text, "%u.%u", &branch, &release) == 2 &&
	    branch == 535 && release >= 43 && release < 98)
		size = sizeof(struct nvml_process_535);
	return running(device, count, entries, size, wanted);
}

NVML_FUNCTION(nvmlDeviceGetComputeRunningProcesses, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v1 *entries)
{
	return running(device, count, entries, sizeof(struct nvml_process_v1), WANT_COMPUTE);
}

NVML_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running(device, count, entries, sizeof(struct nvml_process_v2), WANT_COMPUTE);
}

NVML_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running_v3(device, count, entries, WANT_COMPUTE);
}

/* The list of compute processes contains MPS's clients and their server. */
NVML_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v1 *entries)
{
	return running(device, count, entries, sizeof(struct nvml_process_v1), WANT_MPS);
}

NVML_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running(device, count, entries, sizeof(struct nvml_process_v2), WANT_MPS);
}

NVML_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running_v3(device, count, entries, WANT_MPS);
}

NVML_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v1 *entries)
{
	return running(device, count, entries, sizeof(struct nvml_process_v1), WANT_GRAPHICS);
}

NVML_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running(device, count, entries, sizeof(struct nvml_process_v2), WANT_GRAPHICS);
}

NVML_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running_v3(device, count, entries, WANT_GRAPHICS);
}
