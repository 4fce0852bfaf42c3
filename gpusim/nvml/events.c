// SPDX-License-Identifier: Apache-2.0
/* This file implements events: XIDs, which each waiter reads from the state's ring. */
#include "nvml.h"

#include <stdlib.h>
#include <time.h>

#define SUPPORTED_EVENTS NVML_EVENT_XID_CRITICAL_ERROR
#define POLL_NS 200000000 /* interval of a waiter's checks for new events */

struct nv_event_set {
	pthread_mutex_t mutex;
	bool undefined; /* a registration has failed with NVML_ERROR_UNKNOWN */
	uint64_t seen; /* the last XID that was delivered or is too old */
	uint64_t types[GS_MAX_GPUS]; /* registered, by the GPU's index in the state */
};

NVML_FUNCTION(nvmlEventSetCreate, nvmlEventSet_t *set)
{
	nvmlReturn_t result = nv_enter();

	if (result != NVML_SUCCESS)
		return result;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	if (!*set)
		return NVML_ERROR_MEMORY;
	pthread_mutex_init(&(*set)->mutex, NULL);
	nv_lock();
	(*set)->seen = nv_state()->state->xid_seq;
	nv_unlock();
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlEventSetFree, nvmlEventSet_t set)
{
	nvmlReturn_t result = nv_enter();

	if (result != NVML_SUCCESS)
		return result;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	pthread_mutex_destroy(&set->mutex);
	free(set);
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetSupportedEventTypes, nvmlDevice_t device, nvml_u64 *types)
{
	nvmlReturn_t result = nv_enter_name(device);

	if (result != NVML_SUCCESS)
		return result;
	if (nv_is_mig(device))
		return NVML_ERROR_NOT_SUPPORTED;
	if (!types)
		return NVML_ERROR_INVALID_ARGUMENT;
	*types = SUPPORTED_EVENTS;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceRegisterEvents, nvmlDevice_t device, nvml_u64 types, nvmlEventSet_t set)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (set && result == NVML_ERROR_UNKNOWN)
		__atomic_store_n(&set->undefined, true, __ATOMIC_RELAXED);
	if (result != NVML_SUCCESS)
		return result;
	if (!set)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~SUPPORTED_EVENTS)
		return NVML_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&set->mutex);
	set->types[device->gpu] |= types;
	pthread_mutex_unlock(&set->mutex);
	return NVML_SUCCESS;
}

/* card_of returns the index of the GPU of an entry of the state. Events belong to GPUs. */
static uint32_t card_of(uint32_t gpu)
{
	return (uint32_t)(gs_card(nv_state()->state, gpu) - nv_state()->state->gpus);
}

/* next_xid finds the next XID on a registered GPU. The caller holds the lock. */
static bool next_xid(struct nv_event_set *set, struct gs_xid *xid)
{
	const struct gs_state *state = nv_state()->state;

	if (state->xid_seq > set->seen + GS_XID_RING) /* overwritten before this set read it */
		set->seen = state->xid_seq - GS_XID_RING;
	while (set->seen < state->xid_seq) {
		*xid = state->xids[++set->seen % GS_XID_RING];
		if (xid->gpu < GS_MAX_GPUS && set->types[card_of(xid->gpu)])
			return true;
	}
	return false;
}

/* any_lost reports whether a registered GPU is lost. A lost GPU causes no further events. */
static bool any_lost(const struct nv_event_set *set)
{
	for (uint32_t gpu = 0; gpu < GS_MAX_GPUS; gpu++)
		if (set->types[gpu] && nv_state()->state->gpus[gpu].faults.lost)
			return true;
	return false;
}

/* poll_events checks once for an event or a lost GPU, and returns NVML_ERROR_TIMEOUT if the check
 * finds nothing. */
static nvmlReturn_t poll_events(struct nv_event_set *set, struct gs_xid *xid)
{
	nvmlReturn_t result = NVML_ERROR_TIMEOUT;

	pthread_mutex_lock(&set->mutex);
	gs_lock(nv_state());
	if (next_xid(set, xid))
		result = NVML_SUCCESS;
	else if (any_lost(set))
		result = NVML_ERROR_GPU_IS_LOST;
	gs_unlock(nv_state());
	pthread_mutex_unlock(&set->mutex);
	return result;
}

static nvmlReturn_t wait_events(struct nv_event_set *set, struct gs_xid *xid, unsigned timeout_ms)
{
	uint64_t end = gs_now() + timeout_ms * UINT64_C(1000000);
	const struct timespec pause = {0, POLL_NS};

	for (;;) {
		nvmlReturn_t result = poll_events(set, xid);

		if (result != NVML_ERROR_TIMEOUT || gs_now() >= end)
			return result;
		(void)nanosleep(&pause, NULL);
	}
}

NVML_FUNCTION(nvmlEventSetWait_v2, nvmlEventSet_t set, struct nvml_event *event,
	      unsigned timeout_ms)
{
	nvmlReturn_t result = nv_enter();
	const struct gs_mig *mig;
	struct gs_xid xid;

	if (result != NVML_SUCCESS)
		return result;
	if (!set || !event)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (__atomic_load_n(&set->undefined, __ATOMIC_RELAXED))
		return NVML_ERROR_UNKNOWN;
	result = wait_events(set, &xid, timeout_ms);
	if (result != NVML_SUCCESS)
		return result;
	mig = &nv_state()->state->gpus[xid.gpu].mig;
	*event = (struct nvml_event){
		.device = nv_handle(card_of(xid.gpu)),
		.type = NVML_EVENT_XID_CRITICAL_ERROR,
		.data = xid.xid,
		.gpu_instance = mig->role == GS_MIG_DEVICE ? mig->gpu_instance : NVML_NO_INSTANCE,
		.compute_instance = mig->role == GS_MIG_DEVICE ? 0 : NVML_NO_INSTANCE,
	};
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlEventSetWait, nvmlEventSet_t set, struct nvml_event_v1 *event,
	      unsigned timeout_ms)
{
	struct nvml_event full;
	nvmlReturn_t result;

	if (!event)
		return NVML_ERROR_INVALID_ARGUMENT;
	result = nvmlEventSetWait_v2(set, &full, timeout_ms);
	if (result == NVML_SUCCESS)
		*event = (struct nvml_event_v1){full.device, full.type, full.data};
	return result;
}
