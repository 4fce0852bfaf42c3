// SPDX-License-Identifier: Apache-2.0

// What a program is told about its memory: the limit as the total, and as free
// what is left of the limit, but never more than the GPU has.

#include "audit.h"
#include "pool.h"
#include "slot.h"

// For so long an answer of the driver serves further questions. What its own
// container takes and frees is seen at once all the same: the answer lags
// behind those alone who share the GPU, as any does that a program acts upon.
static const uint64_t vg_answer_ns = 100000;

// And for so long dead processes may be taken for living ones.
static const uint64_t vg_dead_ns = 100000000;

// What the usage page and the limits page say of a device.
struct vg_share {
	uint64_t limit;
	uint64_t used;
	uint64_t left;
};

static struct vg_share vg_share_of(struct vg_state *state, uint32_t device)
{
	struct vg_share share = {.limit = vg_memory_limit(&state->pages, device),
				 .used = vg_memory_used(&state->pages, device)};

	share.left = share.limit > share.used ? share.limit - share.used : 0;
	return share;
}

// vg_describe turns the driver's figures for a device into the container's.
static void vg_describe(struct vg_state *state, CUdevice device, uint64_t *available, uint64_t *total)
{
	int index = vg_device_index(state, device);
	struct vg_share share;

	if (index < 0) {
		*available = 0;
		*total = 0;
		return;
	}
	share = vg_share_of(state, (uint32_t)index);
	*available = vg_min(*available, share.left);
	*total = vg_min(*total, share.limit);
}

// vg_forget_the_dead empties the slots of dead processes from time to time: a
// program may well ask before it allocates, and then not try.
static void vg_forget_the_dead(struct vg_state *state, uint32_t device, uint64_t now)
{
	uint64_t last = atomic_load(&state->reaped_ns[device]);

	if (now - last < vg_dead_ns || vg_slots_in_use(&state->pages) == 1 ||
	    !atomic_compare_exchange_strong(&state->reaped_ns[device], &last, now))
		return;
	vg_slots_reap(&state->pages, device);
}

// vg_answer_again answers without the driver, if its last answer was at most
// vg_answer_ns ago and the container has freed nothing since. What it has taken
// since is not free any more.
static bool vg_answer_again(struct vg_state *state, uint32_t device, const struct vg_share *share,
			    uint64_t now, struct vg_answer *answer)
{
	// Another thread's newer answer does as well.
	if (now - atomic_load(&state->answered_ns[device]) > vg_answer_ns)
		return false;
	vg_lock(&state->answer_mutex);
	*answer = state->answers[device];
	vg_unlock(&state->answer_mutex);
	if (share->used < answer->used)
		return false;
	answer->available -= vg_min(share->used - answer->used, answer->available);
	return true;
}

static CUresult vg_ask_driver(struct vg_state *state, uint32_t device, const struct vg_share *share,
			      uint64_t now, struct vg_answer *answer)
{
	size_t available = 0;
	size_t total = 0;
	CUresult result = VG_CALL(cuMemGetInfo_v2, &available, &total);

	if (result)
		return result;
	*answer = (struct vg_answer){.used = share->used, .available = available, .total = total};
	vg_lock(&state->answer_mutex);
	state->answers[device] = *answer;
	atomic_store_explicit(&state->answered_ns[device], now, memory_order_relaxed);
	vg_unlock(&state->answer_mutex);
	return CUDA_SUCCESS;
}

static CUresult vg_device_info(struct vg_state *state, uint32_t device, uint64_t *available,
			       uint64_t *total)
{
	uint64_t now = vg_now();
	struct vg_answer answer;
	struct vg_share share;
	CUresult result;

	vg_forget_the_dead(state, device, now);
	vg_pools_refresh_stale(state);
	vg_audit_doubt(state);
	share = vg_share_of(state, device);
	if (!vg_answer_again(state, device, &share, now, &answer)) {
		result = vg_ask_driver(state, device, &share, now, &answer);
		if (result)
			return result;
	}
	*available = vg_min(answer.available, share.left);
	*total = vg_min(answer.total, share.limit);
	return CUDA_SUCCESS;
}

static CUresult vg_memory_info(uint64_t *available, uint64_t *total)
{
	struct vg_state *state = vg_ready_state();
	CUdevice device;
	CUresult result;
	int index;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	result = VG_CALL(cuCtxGetDevice, &device);
	if (result)
		return result;
	index = vg_device_index(state, device);
	if (index >= 0)
		return vg_device_info(state, (uint32_t)index, available, total);
	*available = *total = 0;
	return CUDA_SUCCESS;
}

VG_API(cuMemGetInfo_v2, size_t *available, size_t *total)
{
	uint64_t limited_available;
	uint64_t limited_total;
	CUresult result = vg_memory_info(&limited_available, &limited_total);

	if (!result && available)
		*available = limited_available;
	if (!result && total)
		*total = limited_total;
	return result;
}

static unsigned vg_narrow(uint64_t bytes)
{
	return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

VG_API(cuMemGetInfo, unsigned *available, unsigned *total)
{
	uint64_t limited_available;
	uint64_t limited_total;
	CUresult result = vg_memory_info(&limited_available, &limited_total);

	if (!result && available)
		*available = vg_narrow(limited_available);
	if (!result && total)
		*total = vg_narrow(limited_total);
	return result;
}

VG_API(cuDeviceTotalMem_v2, size_t *bytes, CUdevice device)
{
	struct vg_state *state = vg_ready_state();
	CUresult result = VG_CALL(cuDeviceTotalMem_v2, bytes, device);
	uint64_t available = 0;
	uint64_t total;

	if (result)
		return result;
	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	total = *bytes;
	vg_describe(state, device, &available, &total);
	*bytes = total;
	return CUDA_SUCCESS;
}

VG_API(cuDeviceTotalMem, unsigned *bytes, CUdevice device)
{
	struct vg_state *state = vg_ready_state();
	CUresult result = VG_CALL(cuDeviceTotalMem, bytes, device);
	uint64_t available = 0;
	size_t whole = 0;
	uint64_t total;

	if (result)
		return result;
	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	result = VG_CALL(cuDeviceTotalMem_v2, &whole, device);
	total = whole;
	vg_describe(state, device, &available, &total);
	*bytes = vg_narrow(total);
	return result;
}
