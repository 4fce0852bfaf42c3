// SPDX-License-Identifier: Apache-2.0
/* Which processes use a device, and how much of its memory they hold. */
#include "nvml.h"

#include <sys/stat.h>

uint64_t nv_own_pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

pid_t nv_visible_pid(struct gs_proc *proc, uint64_t own_namespace)
{
	pid_t pid = 0;

	/* Who lives, nv_lock() has found out; in a namespace all see the same pids. */
	if (own_namespace && proc->pid_namespace == own_namespace)
		return proc->self_pid;
	if (!gs_proc_alive(nv_state(), gs_slot(nv_state(), proc), &pid))
		return 0;
	if (pid > 0 && proc->pid_namespace != own_namespace)
		proc->seen_pid = pid;
	return pid;
}

/* What one call lists; the three versions of the structure differ in size. */
struct listing {
	void *entries;
	unsigned room;
	unsigned found;
	bool with_instance; /* versions 2 and 3 */
};

static void list_process(struct listing *listing, pid_t pid, uint64_t bytes)
{
	unsigned at = listing->found++;

	if (at >= listing->room)
		return;
	if (listing->with_instance)
		((struct nvml_process_v2 *)listing->entries)[at] = (struct nvml_process_v2){
			.pid = (unsigned)pid,
			.used_bytes = bytes,
			.gpu_instance = NVML_NO_INSTANCE,
			.compute_instance = NVML_NO_INSTANCE,
		};
	else
		((struct nvml_process_v1 *)listing->entries)[at] = (struct nvml_process_v1){
			.pid = (unsigned)pid,
			.used_bytes = bytes,
		};
}

/* Which processes a call lists. A process may be of more than one kind. */
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
	uint64_t own_namespace = nv_own_pid_namespace();
	struct gs_proc *proc;
	uint32_t cursor = 0;

	while ((proc = gs_proc_next(nv_state(), &cursor))) {
		pid_t pid;

		if (!is_wanted(proc, gpu, wanted))
			continue;
		pid = nv_visible_pid(proc, own_namespace);
		if (pid > 0)
			list_process(listing, pid, proc->gpu[gpu].bytes);
	}
}

static nvmlReturn_t running(nvmlDevice_t device, unsigned *count, void *entries,
			    bool with_instance, enum wanted wanted)
{
	nvmlReturn_t result = nv_enter_device(device);
	struct listing listing = {.entries = entries, .with_instance = with_instance};

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	listing.room = entries ? *count : 0;
	nv_lock();
	list_all(&listing, device->gpu, wanted);
	nv_unlock();
	*count = listing.found;
	return listing.found > listing.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetComputeRunningProcesses, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v1 *entries)
{
	return running(device, count, entries, false, WANT_COMPUTE);
}

NVML_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running(device, count, entries, true, WANT_COMPUTE);
}

NVML_FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running(device, count, entries, true, WANT_COMPUTE);
}

/* MPS's clients stand in the first list, too, beside their server. */
NVML_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v1 *entries)
{
	return running(device, count, entries, false, WANT_MPS);
}

NVML_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running(device, count, entries, true, WANT_MPS);
}

NVML_FUNCTION(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running(device, count, entries, true, WANT_MPS);
}

NVML_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v1 *entries)
{
	return running(device, count, entries, false, WANT_GRAPHICS);
}

NVML_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running(device, count, entries, true, WANT_GRAPHICS);
}

NVML_FUNCTION(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDevice_t device, unsigned *count,
	      struct nvml_process_v2 *entries)
{
	return running(device, count, entries, true, WANT_GRAPHICS);
}
