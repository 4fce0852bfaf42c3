// SPDX-License-Identifier: Apache-2.0
/* What the files of the simulated NVML share. */
#ifndef GPUSIM_NVML_H
#define GPUSIM_NVML_H

#include "nvml_abi.h"
#include "state.h"

/* A device handle is a pointer into the library's table of visible GPUs. */
struct nv_device {
	uint32_t gpu; /* its index in the state */
	uint32_t index; /* among the visible */
	bool opened; /* this process has had a handle of it */
};

/*
 * Every exported function begins with one of these. nv_enter() checks that the
 * library is initialised; nv_enter_device() also that the handle is one of ours,
 * and lets the GPU's injected faults act: it waits while NVML hangs, and returns
 * NVML_ERROR_GPU_IS_LOST or the error asked for.
 */
nvmlReturn_t nv_enter(void);
nvmlReturn_t nv_enter_device(nvmlDevice_t device);

/*
 * Takes the time of a call that the profile gives a cost: alone on the machine where
 * NVML has a lock of its own. Called after nv_enter(), without the state's lock.
 */
void nv_cost(uint64_t ns);

/* The open state; valid after nv_enter(). */
struct gs_handle *nv_state(void);

/* The device's entry in the state; valid after nv_enter_device(). */
struct gs_gpu *nv_gpu(nvmlDevice_t device);

/* The visible devices. */
uint32_t nv_device_count(void);
nvmlDevice_t nv_device_at(uint32_t index);

/* Locks the state with its timeline up to date and dead processes gone. */
void nv_lock(void);
void nv_unlock(void);

/* Copies text into a caller's buffer of this length. */
nvmlReturn_t nv_copy_text(char *to, unsigned length, const char *text);

/* Writes "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx". */
void nv_uuid_text(const struct gs_gpu *gpu, char text[41]);

/*
 * The pid of a process as NVML tells it to the caller, of the namespace given, 0 if it
 * is not told of. Notes the pid in the state for the history, where the caller looks
 * from outside. The caller holds the lock, by nv_lock().
 */
pid_t nv_visible_pid(struct gs_proc *proc, uint64_t own_namespace);

/* A process's bytes on a GPU as NVML tells them to a caller of this namespace. Locked. */
uint64_t nv_visible_bytes(const struct gs_proc *proc, uint32_t gpu, uint64_t own_namespace);

/* The part of the last half second in which the GPU was busy. Locked. */
unsigned nv_busy_percent(const struct gs_gpu *gpu);

#endif
