// SPDX-License-Identifier: Apache-2.0
/* This file implements initialisation and shutdown, device handles, and the check at the start of
 * every call. */
#include "nvml.h"

#include "calls.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
	pthread_mutex_t mutex; /* guards all fields below */
	unsigned users;
	struct gs_handle handle;
	bool open;
	bool started; /* the cost of the process's first nvmlInit has been spent */
	uint32_t count;
	struct nv_device devices[GS_MAX_GPUS]; /* GPUs, in the state's order */
	struct nv_device migs[GS_MAX_GPUS][GS_MIG_MAX]; /* MIG devices, by GPU and index */
	uint32_t visible[GS_MAX_GPUS];	       /* entries of the visible GPUs */
	struct gs_nvml_user *user;
} nv = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static nvmlReturn_t open_error(int err)
{
	switch (err) {
	case -EACCES:
	case -EPERM:
		return NVML_ERROR_NO_PERMISSION;
	case -EPROTO:
		return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
	case -ENOSPC:
		return NVML_ERROR_INSUFFICIENT_RESOURCES;
	default:
		return NVML_ERROR_DRIVER_NOT_LOADED;
	}
}

/* ---- costs of calls ---- */

/* turn orders the threads of this process at NVML's machine-wide lock, because the threads share
 * the process's record lock. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static void set_machine_lock(short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = GS_NVML_LOCK, .l_len = 1};

	while (fcntl(nv.handle.fd, F_SETLKW, &lock) != 0 && errno == EINTR)
		;
}

static void sleep_ns(uint64_t ns)
{
	struct timespec left = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};

	while (nanosleep(&left, &left) != 0 && errno == EINTR)
		;
}

void nv_cost(uint64_t ns)
{
	bool queue = nv.handle.state->driver.nvml_lock;

	if (!ns)
		return;
	if (queue) {
		pthread_mutex_lock(&turn);
		set_machine_lock(F_WRLCK);
	}
	sleep_ns(ns);
	if (queue) {
		set_machine_lock(F_UNLCK);
		pthread_mutex_unlock(&turn);
	}
}

/* ---- the open state ---- */

/* count_calls starts the count of calls at 1, because the entry did not count the call that opens
 * the state. */
static void count_calls(void)
{
	struct gs_nvml_user *parent = nv.user;

	gs_lock(&nv.handle);
	nv.user = gs_nvml_user_add(&nv.handle);
	nv.user->calls = 1;
	if (parent) /* the entry counted a forked child's call for the parent */
		(void)__atomic_sub_fetch(&parent->calls, 1, __ATOMIC_RELAXED);
	gs_unlock(&nv.handle);
	gs_calls_count(&nv.user->calls);
}

/*
 * open_state opens the state once per process and keeps the state open. Closing the state would
 * drop the locks that the CUDA library holds on the same file. A forked child opens the state
 * again, because the child has no lock of its parent. `call` is the call that opens the state.
 */
static nvmlReturn_t open_state(const char *call)
{
	nvmlReturn_t result;
	int err;

	if (nv.open && nv.handle.pid == getpid())
		return NVML_SUCCESS;
	err = gs_open(&nv.handle, gs_path(), GS_OBSERVER);
	nv.open = err == 0;
	if (err)
		return open_error(err);
	nv.started = false;
	for (uint32_t i = 0; i < GS_MAX_GPUS; i++)
		nv.devices[i].opened = false;
	result = (nvmlReturn_t)gs_calls_load(&nv.handle.state->driver, call);
	count_calls();
	return result;
}

static void find_devices(void)
{
	nv.count = 0;
	for (uint32_t gpu = 0; gpu < nv.handle.state->gpu_count; gpu++) {
		if (nv.handle.state->gpus[gpu].mig.role >= GS_MIG_DEVICE ||
		    !gs_gpu_visible(&nv.handle, gpu))
			continue;
		nv.devices[gpu].gpu = gpu;
		nv.devices[gpu].index = nv.count;
		nv.visible[nv.count++] = gpu;
	}
}

static nvmlReturn_t initialise(const char *call)
{
	nvmlReturn_t result;

	pthread_mutex_lock(&nv.mutex);
	result = open_state(call);
	if (result == NVML_SUCCESS) {
		if (!nv.started)
			nv_cost(nv.handle.state->driver.nvml_open_ns);
		nv.started = true;
		if (nv.users == 0)
			find_devices();
		nv.users++;
	}
	pthread_mutex_unlock(&nv.mutex);
	return result;
}

NVML_FUNCTION(nvmlInitWithFlags, unsigned flags)
{
	(void)flags;
	return initialise("nvmlInitWithFlags");
}

NVML_FUNCTION(nvmlInit_v2, void)
{
	return initialise("nvmlInit_v2");
}

NVML_FUNCTION(nvmlInit, void)
{
	return initialise("nvmlInit");
}

NVML_FUNCTION(nvmlShutdown, void)
{
	nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

	pthread_mutex_lock(&nv.mutex);
	if (nv.users > 0) {
		nv.users--;
		result = NVML_SUCCESS;
	}
	pthread_mutex_unlock(&nv.mutex);
	return result;
}

nvmlReturn_t nv_enter(void)
{
	nvmlReturn_t result;

	pthread_mutex_lock(&nv.mutex);
	result = nv.users > 0 ? open_state("") : NVML_ERROR_UNINITIALIZED;
	pthread_mutex_unlock(&nv.mutex);
	return result;
}

struct gs_handle *nv_state(void)
{
	return &nv.handle;
}

struct gs_gpu *nv_gpu(nvmlDevice_t device)
{
	return &nv.handle.state->gpus[device->gpu];
}

uint32_t nv_device_count(void)
{
	return nv.count;
}

nvmlDevice_t nv_device_at(uint32_t index)
{
	return &nv.devices[nv.visible[index]];
}

struct gs_gpu *nv_card(nvmlDevice_t device)
{
	return gs_card(nv.handle.state, device->gpu);
}

bool nv_is_mig(nvmlDevice_t device)
{
	return nv_gpu(device)->mig.role == GS_MIG_DEVICE;
}

/* mig_index returns the index of a MIG device among the MIG devices of its GPU. */
static uint32_t mig_index(uint32_t gpu)
{
	const struct gs_gpu *gpus = nv.handle.state->gpus;
	uint32_t index = 0;

	for (uint32_t g = 0; g < gpu; g++)
		index += gpus[g].mig.role == GS_MIG_DEVICE && gpus[g].mig.parent == gpus[gpu].mig.parent;
	return index;
}

nvmlDevice_t nv_handle(uint32_t gpu)
{
	const struct gs_state *state = nv.handle.state;

	if (gpu >= state->gpu_count || !gs_gpu_visible(&nv.handle, gpu))
		return NULL;
	if (state->gpus[gpu].mig.role == GS_MIG_DEVICE) {
		uint32_t index = mig_index(gpu);
		struct nv_device *mig = &nv.migs[state->gpus[gpu].mig.parent][index];

		mig->gpu = gpu;
		mig->index = index;
		return mig;
	}
	return &nv.devices[gpu];
}

/* is_device reports whether a handle is a visible GPU, or a MIG device that exists. */
static bool is_device(nvmlDevice_t device)
{
	const struct nv_device *migs = nv.migs[0];

	for (uint32_t i = 0; i < nv.count; i++)
		if (device == nv_device_at(i))
			return true;
	return device >= migs && device < migs + GS_MAX_GPUS * GS_MIG_MAX && nv_is_mig(device);
}

/* wait_out_hang waits in short sleeps, so that an injected hang can be ended at any time. */
static void wait_out_hang(const struct gs_faults *faults)
{
	const struct timespec pause = {0, 10000000};

	while (gs_now() < __atomic_load_n(&faults->nvml_hang_until, __ATOMIC_RELAXED))
		(void)nanosleep(&pause, NULL);
}

nvmlReturn_t nv_enter_name(nvmlDevice_t device)
{
	nvmlReturn_t result = nv_enter();
	const struct gs_faults *faults;

	if (result != NVML_SUCCESS)
		return result;
	if (!is_device(device))
		return NVML_ERROR_INVALID_ARGUMENT;
	faults = &nv_card(device)->faults;
	wait_out_hang(faults);
	if (__atomic_load_n(&faults->lost, __ATOMIC_RELAXED))
		return NVML_ERROR_GPU_IS_LOST;
	return (nvmlReturn_t)__atomic_load_n(&faults->nvml_error, __ATOMIC_RELAXED);
}

nvmlReturn_t nv_enter_device(nvmlDevice_t device)
{
	nvmlReturn_t result = nv_enter_name(device);

	if (result != NVML_SUCCESS)
		return result;
	return (nvmlReturn_t)__atomic_load_n(&nv_card(device)->faults.query_error, __ATOMIC_RELAXED);
}

nvmlReturn_t nv_enter_gpu(nvmlDevice_t device)
{
	nvmlReturn_t result = nv_enter_device(device);

	return result == NVML_SUCCESS && nv_is_mig(device) ? NVML_ERROR_NOT_SUPPORTED : result;
}

nvmlReturn_t nv_enter_measured(nvmlDevice_t device)
{
	nvmlReturn_t result = nv_enter_device(device);

	return result == NVML_SUCCESS && nv_gpu(device)->mig.role != GS_MIG_OFF ?
		       NVML_ERROR_NOT_SUPPORTED :
		       result;
}

/*
 * CROWD is the number of live processes from which nv_lock checks for dead processes at most once
 * in FRESH_NS. The check makes a system call for each process, and the time of each call grows with
 * the number of processes.
 */
#define CROWD 64
#define FRESH_NS 500000

void nv_lock(void)
{
	const struct gs_state *state = nv.handle.state;

	gs_lock(&nv.handle);
	if (state->last_living < CROWD || gs_now() - state->last_reap_ns > FRESH_NS)
		gs_reap(&nv.handle);
	gs_advance(&nv.handle, gs_now());
}

void nv_unlock(void)
{
	gs_unlock(&nv.handle);
}

nvmlReturn_t nv_copy_text(char *to, unsigned length, const char *text)
{
	size_t size = strlen(text) + 1;

	if (!to)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (length < size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(to, text, size);
	return NVML_SUCCESS;
}
