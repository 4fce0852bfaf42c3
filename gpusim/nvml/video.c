// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements utilisation of a device's video engines. NVML lists the encoder's sessions,
 * but not the decoder's.
 */
#include "nvml.h"

#include <string.h>

/* engine_percent returns the sum of an engine's utilisation by the processes with memory of the
 * device. */
static unsigned engine_percent(uint32_t gpu, size_t field)
{
	struct gs_proc *proc;
	uint32_t cursor = 0;
	unsigned sum = 0;

	while ((proc = gs_proc_next(nv_state(), &cursor))) {
		uint32_t percent;

		memcpy(&percent, (const char *)proc + field, sizeof(percent));
		if (proc->gpu[gpu].bytes > 0)
			sum += percent;
	}
	return sum < 100 ? sum : 100;
}

static nvmlReturn_t engine_rate(nvmlDevice_t device, size_t field, unsigned *busy, unsigned *period_us)
{
	nvmlReturn_t result = nv_enter_measured(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!busy || !period_us)
		return NVML_ERROR_INVALID_ARGUMENT;
	nv_lock();
	*busy = engine_percent(device->gpu, field);
	nv_unlock();
	*period_us = (unsigned)(GS_SAMPLE_NS / 1000);
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetEncoderUtilization, nvmlDevice_t device, unsigned *busy, unsigned *us)
{
	return engine_rate(device, offsetof(struct gs_proc, encoder_percent), busy, us);
}

NVML_FUNCTION(nvmlDeviceGetDecoderUtilization, nvmlDevice_t device, unsigned *busy, unsigned *us)
{
	return engine_rate(device, offsetof(struct gs_proc, decoder_percent), busy, us);
}

/* If the caller has room for no session, the call succeeds and returns the count. A call for a list
 * of processes would fail. */
NVML_FUNCTION(nvmlDeviceGetEncoderSessions, nvmlDevice_t device, unsigned *count,
	      struct nvml_encoder_session *sessions)
{
	nvmlReturn_t result = nv_enter_gpu(device);
	uint64_t own_namespace = gs_pid_namespace();
	struct gs_proc *proc;
	uint32_t cursor = 0;
	unsigned found = 0;
	unsigned room;

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	room = *count;
	nv_lock();
	while ((proc = gs_proc_next(nv_state(), &cursor))) {
		bool encodes = proc->encoder_percent > 0 && proc->gpu[device->gpu].bytes > 0;
		pid_t pid = encodes ? nv_visible_pid(proc, own_namespace) : 0;

		if (pid > 0 && found < room && sessions)
			sessions[found] = (struct nvml_encoder_session){
				.id = found + 1, .pid = (unsigned)pid, .width = 1920, .height = 1080, .frames_per_s = 60,
			};
		found += pid > 0;
	}
	nv_unlock();
	*count = found;
	return room > 0 && found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
