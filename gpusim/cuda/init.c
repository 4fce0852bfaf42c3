// SPDX-License-Identifier: Apache-2.0
/* This file implements the process's side of the driver: cuInit and the visible GPUs. */
#include "sim.h"

#include "calls.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;

/* ---- CUDA_VISIBLE_DEVICES ---- */

/* gpu_by_uuid returns the only GPU of the list whose UUID starts with the prefix. gpu_by_uuid
 * returns -1 if no GPU or several GPUs match. */
static int gpu_by_uuid(const char *prefix, size_t length, const uint32_t *gpus, int count)
{
	int found = -1;

	for (int i = 0; i < count; i++) {
		char text[GS_UUID_SIZE];

		gs_uuid_text(&sim.handle.state->gpus[gpus[i]], text);
		if (strncasecmp(text, prefix, length) != 0)
			continue;
		if (found >= 0)
			return -1;
		found = i;
	}
	return found;
}

/* parse_entry returns the index in the list for one entry of CUDA_VISIBLE_DEVICES, or -1 if the
 * entry names no GPU. */
static int parse_entry(const char *entry, size_t length, const uint32_t *gpus, int count)
{
	char text[64], *end;
	long index;

	while (length && isspace((unsigned char)*entry))
		entry++, length--;
	while (length && isspace((unsigned char)entry[length - 1]))
		length--;
	if (length == 0 || length >= sizeof(text))
		return -1;
	memcpy(text, entry, length);
	text[length] = '\0';
	if (strncasecmp(text, "GPU-", 4) == 0 || strncasecmp(text, "MIG-", 4) == 0)
		return gpu_by_uuid(text, length, gpus, count);
	index = strtol(text, &end, 10);
	return *end || index < 0 || index >= count ? -1 : (int)index;
}

/* taken reports whether the list already has the device. A list that names a device twice hides all
 * devices. */
static bool taken(const uint32_t *chosen, int count, uint32_t gpu)
{
	for (int i = 0; i < count; i++)
		if (chosen[i] == gpu)
			return true;
	return false;
}

/* choose reduces the list to the devices that the variable names before its first bad entry. */
static int choose(const char *list, uint32_t *gpus, int count)
{
	uint32_t chosen[GS_MAX_GPUS];
	int n = 0;

	while (n < (int)GS_MAX_GPUS) {
		size_t length = strcspn(list, ",");
		int index = parse_entry(list, length, gpus, count);

		if (index < 0)
			break;
		if (taken(chosen, n, gpus[index]))
			return 0;
		chosen[n++] = gpus[index];
		if (!list[length])
			break;
		list += length + 1;
	}
	memcpy(gpus, chosen, (size_t)n * sizeof(*gpus));
	return n;
}

/* keep_first_mig reduces a list with a MIG device to the first MIG device. A process enumerates a
 * single compute instance, and no GPU beside it. */
static int keep_first_mig(uint32_t *gpus, int count)
{
	for (int i = 0; i < count; i++) {
		if (sim.handle.state->gpus[gpus[i]].mig.role != GS_MIG_DEVICE)
			continue;
		gpus[0] = gpus[i];
		return 1;
	}
	return count;
}

static int visible_gpus(uint32_t gpus[GS_MAX_GPUS])
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	int count = 0;

	for (uint32_t g = 0; g < sim.handle.state->gpu_count; g++)
		if (sim.handle.state->gpus[g].mig.role != GS_MIG_ON && sim_mps_serves(g) &&
		    gs_gpu_visible(&sim.handle, g))
			gpus[count++] = g;
	if (list)
		count = choose(list, gpus, count);
	return keep_first_mig(gpus, count);
}

/* ---- cuInit ---- */

/*
 * make_live returns a word that reads 0 in a forked child. The driver refuses the child's calls,
 * because the child has neither the parent's slot nor the parent's threads. The kernel clears the
 * word after every kind of fork, and the check costs one load per call.
 */
static uint32_t *make_live(void)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	uint32_t *live = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (live == MAP_FAILED)
		return NULL;
	if (madvise(live, size, MADV_WIPEONFORK) != 0) {
		munmap(live, size);
		return NULL;
	}
	*live = 1;
	return live;
}

/* init_ns returns the time for which cuInit sleeps, which is the longest time of the visible GPUs. */
static uint64_t init_ns(void)
{
	uint64_t most = 0;

	for (int i = 0; i < sim.device_count; i++) {
		uint64_t own = sim_gpu(&sim.devices[i])->init_ns;

		most = own > most ? own : most;
	}
	return most;
}

static void shut_down(void)
{
	__atomic_store_n(&sim.ended, true, __ATOMIC_RELEASE);
}

__attribute__((destructor)) static void unload(void)
{
	if (sim.handle.state && sim.handle.state->driver.exits == GS_EXIT_DESTRUCTOR)
		shut_down();
}

/* arrange_exit registers the exit handler. Handlers that the program registered earlier run after
 * this handler. */
static bool arrange_exit(void)
{
	return sim.handle.state->driver.exits != GS_EXIT_HANDLER || atexit(shut_down) == 0;
}

static CUresult initialise(void)
{
	uint32_t gpus[GS_MAX_GPUS] = {0};
	CUresult mps;
	int err = 0;

	if (!sim.handle.state) {
		err = gs_open(&sim.handle, gs_path(), GS_PROCESS);
		if (err == -ENOENT || err == -EACCES)
			return CUDA_ERROR_NO_DEVICE;
		if (err)
			return CUDA_ERROR_UNKNOWN;
		err = gs_calls_load(&sim.handle.state->driver, "cuInit");
	}
	if (err)
		return (CUresult)err;
	mps = sim_mps_client() ? CUDA_SUCCESS : sim_mps_join();
	if (mps)
		return mps;
	sim.device_count = visible_gpus(gpus);
	for (int i = 0; i < sim.device_count; i++)
		sim.devices[i].gpu = gpus[i];
	sim_mps_limit();
	sim_pass(init_ns());
	return sim.device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CU_API CUresult cuInit(unsigned flags)
{
	CUresult err = CUDA_SUCCESS;

	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (__atomic_load_n(&sim.live, __ATOMIC_ACQUIRE))
		return sim_ready();
	pthread_mutex_lock(&init_mutex);
	if (!sim.live) {
		uint32_t *live;

		err = initialise();
		live = err ? NULL : make_live();
		if (!err && (!live || !arrange_exit()))
			err = CUDA_ERROR_OPERATING_SYSTEM;
		__atomic_store_n(&sim.live, live, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&init_mutex);
	return err;
}

CU_API CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = sim.handle.state ? (int)sim.handle.state->driver_version : 13000;
	return CUDA_SUCCESS;
}
