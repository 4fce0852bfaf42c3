// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements utilisation of devices and of processes: the busy time of finished windows
 * of 100 ms, as a whole percentage. On a sampled GPU, all of a period's GPU time is charged to the
 * process that has the GPU at the period's end.
 */
#include "nvml.h"

#include <time.h>

enum { RATE_WINDOWS = 5 }; /* number of windows in the device's rate */

static unsigned percent(uint64_t busy_ns, uint64_t of_ns)
{
	uint64_t rounded = (busy_ns * 100 + of_ns / 2) / of_ns;

	return rounded < 100 ? (unsigned)rounded : 100;
}

/* current_window returns the window that is not finished yet. */
static uint64_t current_window(uint64_t length)
{
	return nv_state()->state->clock_ns / length;
}

static uint64_t busy_in(const struct gs_sample *ring, uint32_t size, uint64_t window)
{
	const struct gs_sample *sample = &ring[window % size];

	return sample->window == window ? sample->busy_ns : 0;
}

unsigned nv_busy_percent(const struct gs_gpu *gpu)
{
	uint64_t now = current_window(GS_SAMPLE_NS);
	uint64_t busy = 0;

	for (uint64_t back = 1; back <= RATE_WINDOWS; back++)
		busy += busy_in(gpu->samples, GS_GPU_SAMPLES, now - back);
	return percent(busy, RATE_WINDOWS * GS_SAMPLE_NS);
}

/*
 * day_offset_us is the difference between the time of day and CLOCK_MONOTONIC, in µs. The process
 * computes the difference once, so that a window has the same time in every call.
 */
static uint64_t day_offset_us;

static void take_day_offset(void)
{
	struct timespec day;

	clock_gettime(CLOCK_REALTIME, &day);
	day_offset_us = (uint64_t)day.tv_sec * 1000000 + (uint64_t)day.tv_nsec / 1000 -
			gs_now() / 1000;
}

/* window_time returns the time of a window's end, in µs since 1970. */
static uint64_t window_time(uint64_t window, uint64_t length)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	(void)pthread_once(&once, take_day_offset);
	return (window + 1) * length / 1000 + day_offset_us;
}

NVML_FUNCTION(nvmlDeviceGetUtilizationRates, nvmlDevice_t device, struct nvml_utilization *rates)
{
	nvmlReturn_t result = nv_enter_measured(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!rates)
		return NVML_ERROR_INVALID_ARGUMENT;
	nv_lock();
	*rates = (struct nvml_utilization){.gpu = nv_busy_percent(nv_gpu(device))};
	nv_unlock();
	return NVML_SUCCESS;
}

/* idle_engine reports an idle engine, for engines that are not simulated. */
static nvmlReturn_t idle_engine(nvmlDevice_t device, unsigned *busy, unsigned *period_us)
{
	nvmlReturn_t result = nv_enter_measured(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!busy || !period_us)
		return NVML_ERROR_INVALID_ARGUMENT;
	*busy = 0;
	*period_us = (unsigned)(GS_SAMPLE_NS / 1000);
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetJpgUtilization, nvmlDevice_t device, unsigned *busy, unsigned *us)
{
	return idle_engine(device, busy, us);
}

NVML_FUNCTION(nvmlDeviceGetOfaUtilization, nvmlDevice_t device, unsigned *busy, unsigned *us)
{
	return idle_engine(device, busy, us);
}

/* ---- samples of the device ---- */

NVML_FUNCTION(nvmlDeviceGetSamples, nvmlDevice_t device, unsigned type, nvml_u64 last_seen,
	      unsigned *value_type, unsigned *count, struct nvml_sample *samples)
{
	nvmlReturn_t result = nv_enter_measured(device);
	uint64_t now;
	unsigned found = 0;
	unsigned room;

	if (result != NVML_SUCCESS)
		return result;
	if (!value_type || !count)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (type != NVML_GPU_UTILIZATION_SAMPLES)
		return NVML_ERROR_NOT_SUPPORTED;
	*value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
	room = samples ? *count : GS_GPU_SAMPLES;
	nv_lock();
	now = current_window(GS_SAMPLE_NS);
	for (uint64_t window = now < GS_GPU_SAMPLES ? 0 : now - GS_GPU_SAMPLES + 1;
	     window < now && found < room; window++) {
		uint64_t time_us = window_time(window, GS_SAMPLE_NS);

		if (time_us <= last_seen)
			continue;
		if (samples)
			samples[found] = (struct nvml_sample){
				.timestamp = time_us,
				.value = percent(busy_in(nv_gpu(device)->samples, GS_GPU_SAMPLES,
							 window),
						 GS_SAMPLE_NS),
			};
		found++;
	}
	nv_unlock();
	*count = found;
	return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* ---- samples of processes ---- */

/* doing holds one process's utilisation in one window, in percent. The two calls below list this
 * value. */
struct doing {
	pid_t pid;
	uint64_t time_us;
	unsigned sm, encoder, decoder;
};

typedef void (*sink)(void *context, const struct doing *doing);

static void each_process_sample(nvmlDevice_t device, nvml_u64 last_seen, sink take, void *context)
{
	uint64_t own_namespace = gs_pid_namespace();
	uint64_t length = nv_gpu(device)->sampled ? GS_PERIOD_NS : GS_SAMPLE_NS;
	uint64_t now = current_window(length);
	struct gs_proc *proc;
	uint32_t cursor = 0;

	while ((proc = gs_proc_next(nv_state(), &cursor))) {
		const struct gs_proc_gpu *use = &proc->gpu[device->gpu];
		pid_t pid = nv_visible_pid(proc, own_namespace);

		for (uint64_t back = GS_PROC_SAMPLES - 1; pid > 0 && back > 0; back--) {
			uint64_t busy = busy_in(use->samples, GS_PROC_SAMPLES, now - back);
			bool lived = (now - back + 1) * length > proc->start_ns && use->bytes > 0;
			struct doing doing = {
				.pid = pid,
				.time_us = window_time(now - back, length),
				.sm = percent(busy, length),
				.encoder = lived ? proc->encoder_percent : 0,
				.decoder = lived ? proc->decoder_percent : 0,
			};

			if ((busy > 0 || doing.encoder || doing.decoder) && doing.time_us > last_seen)
				take(context, &doing);
		}
	}
}

/*
 * list_end returns the result of a list of `found` samples, and sets the caller's count. A query
 * without room asks for the size of the list. The caller holds the lock.
 */
static nvmlReturn_t list_end(nvmlDevice_t device, unsigned found, unsigned room, unsigned *count)
{
	struct gs_faults *faults = &nv_gpu(device)->faults;

	*count = found;
	if (room == 0 && found > 1 && faults->late_samples > 0) {
		faults->late_samples--;
		*count = found - 1;
	}
	if (found > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

struct sample_list {
	struct nvml_process_sample *samples;
	unsigned room, found;
};

static void take_sample(void *context, const struct doing *doing)
{
	struct sample_list *list = context;

	if (list->found < list->room)
		list->samples[list->found] = (struct nvml_process_sample){
			.pid = (unsigned)doing->pid,
			.timestamp = doing->time_us,
			.sm = doing->sm,
			.encoder = doing->encoder,
			.decoder = doing->decoder,
		};
	list->found++;
}

NVML_FUNCTION(nvmlDeviceGetProcessUtilization, nvmlDevice_t device,
	      struct nvml_process_sample *samples, unsigned *count, nvml_u64 last_seen)
{
	nvmlReturn_t result = nv_enter_measured(device);
	struct sample_list list = {.samples = samples};

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	list.room = samples ? *count : 0;
	nv_lock();
	each_process_sample(device, last_seen, take_sample, &list);
	result = list_end(device, list.found, list.room, count);
	nv_unlock();
	return result;
}

struct utilization_list {
	struct nvml_process_utilization *samples;
	unsigned room, found;
};

static void take_utilization(void *context, const struct doing *doing)
{
	struct utilization_list *list = context;

	if (list->found < list->room)
		list->samples[list->found] = (struct nvml_process_utilization){
			.timestamp = doing->time_us,
			.pid = (unsigned)doing->pid,
			.sm = doing->sm,
			.encoder = doing->encoder,
			.decoder = doing->decoder,
		};
	list->found++;
}

NVML_FUNCTION(nvmlDeviceGetProcessesUtilizationInfo, nvmlDevice_t device,
	      struct nvml_processes_utilization *info)
{
	nvmlReturn_t result = nv_enter_measured(device);
	struct utilization_list list = {0};

	if (result != NVML_SUCCESS)
		return result;
	if (!info)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (info->version != NVML_VERSION(struct nvml_processes_utilization, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	list.samples = info->samples;
	list.room = info->samples ? info->count : 0;
	nv_lock();
	each_process_sample(device, info->last_seen, take_utilization, &list);
	result = list_end(device, list.found, list.room, &info->count);
	nv_unlock();
	return result;
}
