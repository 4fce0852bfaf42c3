// SPDX-License-Identifier: Apache-2.0
/* The files of the simulated NVML share these declarations. */
#ifndef GPUSIM_NVML_H
#define GPUSIM_NVML_H

#include "nvml_abi.h"
#include "state.h"

/* nv_device is an entry of the library's table, which has the state's order of GPUs and MIG devices.
 * A device handle is a pointer to an nv_device. */
struct nv_device {
	uint32_t gpu; /* the device's index in the state */
	uint32_t index; /* among the visible GPUs, or among the MIG devices of the GPU */
	bool opened; /* this process has requested a handle of the device */
};

/*
 * Every exported function begins with one of these functions. nv_enter() checks that the library is
 * initialised. nv_enter_device() also checks the handle, and applies the GPU's injected faults.
 * nv_enter_device() waits while NVML hangs, and returns NVML_ERROR_GPU_IS_LOST or the injected
 * error. nv_enter_name() does not apply the fault query-error, for calls that NVML can answer
 * without the GPU. nv_enter_gpu() also returns NVML_ERROR_NOT_SUPPORTED for a MIG device.
 * nv_enter_measured() returns this error for a MIG device and for a GPU in MIG mode.
 */
nvmlReturn_t nv_enter(void);
nvmlReturn_t nv_enter_device(nvmlDevice_t device);
nvmlReturn_t nv_enter_name(nvmlDevice_t device);
nvmlReturn_t nv_enter_gpu(nvmlDevice_t device);
nvmlReturn_t nv_enter_measured(nvmlDevice_t device);

/*
 * nv_cost waits for the cost that the profile sets for a call. With nvml_lock, only one process of
 * the machine waits at a time. The caller has called nv_enter(), and does not hold the state's
 * lock.
 */
void nv_cost(uint64_t ns);

/* nv_state returns the open state, which is valid after nv_enter(). */
struct gs_handle *nv_state(void);

/* nv_gpu returns the device's entry in the state, which is valid after nv_enter_device(). */
struct gs_gpu *nv_gpu(nvmlDevice_t device);

/* nv_card returns the entry of the device's GPU, which differs from nv_gpu() for a MIG device. */
struct gs_gpu *nv_card(nvmlDevice_t device);

/* nv_is_mig reports whether the device is a MIG device. */
bool nv_is_mig(nvmlDevice_t device);

/* nv_covers reports whether an entry of the state is the device itself, or a MIG device of it. */
bool nv_covers(nvmlDevice_t device, uint32_t gpu);

/* nv_handle returns the handle of an entry of the state, or NULL if the process cannot use the
 * entry's device. */
nvmlDevice_t nv_handle(uint32_t gpu);

/* These functions return the number of visible GPUs, and one of the GPUs. */
uint32_t nv_device_count(void);
nvmlDevice_t nv_device_at(uint32_t index);

/* nv_lock locks the state, advances its timeline and removes dead processes. */
void nv_lock(void);
void nv_unlock(void);

/* nv_copy_text copies text into a caller's buffer of this length. */
nvmlReturn_t nv_copy_text(char *to, unsigned length, const char *text);

/*
 * nv_visible_pid returns the pid by which NVML reports a process to a caller in this namespace. If
 * NVML does not report the process, nv_visible_pid returns 0. For a caller outside the process's
 * namespace, the function records the pid in the state for the history. The caller holds the lock
 * (nv_lock).
 */
pid_t nv_visible_pid(struct gs_proc *proc, uint64_t own_namespace);

/* nv_visible_bytes returns a process's bytes on a GPU in NVML's report to a caller in this
 * namespace. The caller holds the lock. */
uint64_t nv_visible_bytes(const struct gs_proc *proc, uint32_t gpu, uint64_t own_namespace);

/* nv_busy_percent returns the percentage of the last half second in which the GPU was busy. The
 * caller holds the lock. */
unsigned nv_busy_percent(const struct gs_gpu *gpu);

#endif
