// SPDX-License-Identifier: Apache-2.0

// This file reports memory to a program. The total is the limit, and the free memory is the rest of
// the limit. The reported total and free memory never exceed the driver's values for the GPU.

#include "base/now.h"
#include "base/number.h"
#include "memory/audit.h"
#include "memory/pool_held.h"
#include "pages/limits.h"
#include "pages/slot.h"
#include "pages/usage.h"

// vg_answer_ns is the time for which an answer of the driver is reused. Changes by the container
// itself are visible at once. A reused answer lacks only recent changes by other containers on the
// GPU. Any program must expect these changes.
static const uint64_t vg_answer_ns = 100000;

// vg_dead_ns is the longest time for which dead processes count as alive.
static const uint64_t vg_dead_ns = 100000000;

// vg_share is the device's data on the limits page and on the usage page.
struct vg_share {
	uint64_t limit;
	uint64_t used;
	uint64_t left;
};

// vg_figures are the two numbers that a program receives.
struct vg_figures {
	uint64_t available;
	uint64_t total;
};

static struct vg_share vg_info_share(struct vg_state *state, uint32_t device)
{
	struct vg_share share = {.limit = vg_limits_memory(&state->pages, device),
				 .used = vg_usage_memory(&state->pages, device)};

	share.left = share.limit > share.used ? share.limit - share.used : 0;
	return share;
}

// vg_total_of returns the memory that the container may use on a device with `bytes` bytes.
static uint64_t vg_total_of(struct vg_state *state, CUdevice device, uint64_t bytes)
{
	int index = vg_state_device(state, device);

	return index < 0 ? 0 : vg_min(bytes, vg_limits_memory(&state->pages, (uint32_t)index));
}

// vg_forget_the_dead empties the slots of dead processes at most once in vg_dead_ns. A program may
// query the free memory, and may not allocate if too little memory is free.
static void vg_forget_the_dead(struct vg_state *state, uint32_t device, uint64_t now)
{
	_Atomic uint64_t *reaped = &state->answers[device].reaped_ns;
	uint64_t last = atomic_load_explicit(reaped, memory_order_relaxed);

	if (now - last < vg_dead_ns || vg_slots_in_use(&state->pages) == 1 ||
	    !atomic_compare_exchange_strong(reaped, &last, now))
		return;
	vg_slots_reap(&state->pages, device);
}

// vg_answer_read reads the last answer. vg_answer_read returns false if the answer is older than
// vg_answer_ns, or if another thread is writing a newer answer.
static bool vg_answer_read(struct vg_answer *answer, uint64_t now, struct vg_figures *figures,
			   uint64_t *used)
{
	uint64_t version = atomic_load_explicit(&answer->version, memory_order_acquire);
	uint64_t ns = atomic_load_explicit(&answer->ns, memory_order_acquire);

	// Another thread's answer may be newer than `now`.
	if (version & 1 || (now > ns && now - ns > vg_answer_ns))
		return false;
	figures->available = atomic_load_explicit(&answer->available, memory_order_acquire);
	figures->total = atomic_load_explicit(&answer->total, memory_order_acquire);
	*used = atomic_load_explicit(&answer->used, memory_order_acquire);
	return atomic_load_explicit(&answer->version, memory_order_relaxed) == version;
}

// vg_answer_write stores an answer, unless another thread is writing. A reader that sees a new
// value also sees that the version has changed.
static void vg_answer_write(struct vg_answer *answer, uint64_t now, const struct vg_figures *figures,
			    uint64_t used)
{
	uint64_t version = atomic_load_explicit(&answer->version, memory_order_relaxed);

	if (version & 1 || !atomic_compare_exchange_strong(&answer->version, &version, version + 1))
		return;
	atomic_store_explicit(&answer->ns, now, memory_order_release);
	atomic_store_explicit(&answer->available, figures->available, memory_order_release);
	atomic_store_explicit(&answer->total, figures->total, memory_order_release);
	atomic_store_explicit(&answer->used, used, memory_order_release);
	atomic_store_explicit(&answer->version, version + 2, memory_order_release);
}

// vg_answer_again reuses the driver's last answer, less the memory that the container has taken
// since. vg_answer_again returns false if the answer is older than vg_answer_ns, or if the
// container's use has fallen since.
static bool vg_answer_again(struct vg_answer *answer, const struct vg_share *share, uint64_t now,
			    struct vg_figures *figures)
{
	uint64_t used;

	if (!vg_answer_read(answer, now, figures, &used) || share->used < used)
		return false;
	figures->available -= vg_min(share->used - used, figures->available);
	return true;
}

// vg_current_device sets `index` to the index on the pages of the current context's device, or to -1
// for a device that the pages lack.
static CUresult vg_current_device(struct vg_state *state, int *index)
{
	CUdevice device;
	CUresult result = VG_CALL(cuCtxGetDevice, &device);

	*index = result ? -1 : vg_state_device(state, device);
	return result;
}

// vg_bound lowers the driver's figures to the container's part of the GPU.
static void vg_bound(struct vg_figures *figures, const struct vg_share *share)
{
	figures->available = vg_min(figures->available, share->left);
	figures->total = vg_min(figures->total, share->limit);
}

// vg_reuse_memory reports whether an answer for the current context's device could be reused.
static bool vg_reuse_memory(struct vg_state *state, uint64_t now, struct vg_figures *figures)
{
	uint64_t answered = atomic_load_explicit(&state->answered_ns, memory_order_relaxed);
	struct vg_share share;
	int index;

	// Another thread's answer may be newer than `now`.
	if ((now > answered && now - answered > vg_answer_ns) || vg_current_device(state, &index) || index < 0)
		return false;
	vg_forget_the_dead(state, (uint32_t)index, now);
	share = vg_info_share(state, (uint32_t)index);
	if (!vg_answer_again(&state->answers[index], &share, now, figures))
		return false;
	vg_bound(figures, &share);
	return true;
}

// vg_ask_memory queries the driver for the memory before the device. The first call of the driver
// after a while is slow, so the call that the program requested is the first.
static CUresult vg_ask_memory(struct vg_state *state, uint64_t now, struct vg_figures *figures)
{
	uint64_t used[VG_MAX_DEVICES]; // before the query, see vg_answer_again
	size_t available = 0;
	size_t total = 0;
	struct vg_share share;
	CUresult result;
	int index;

	for (uint32_t i = 0; i < state->pages.device_count; i++)
		used[i] = vg_usage_memory(&state->pages, i);
	result = VG_CALL(cuMemGetInfo_v2, &available, &total);
	if (!result)
		result = vg_current_device(state, &index);
	*figures = (struct vg_figures){0};
	if (result || index < 0)
		return result;
	*figures = (struct vg_figures){.available = available, .total = total};
	vg_answer_write(&state->answers[index], now, figures, used[index]);
	atomic_store_explicit(&state->answered_ns, now, memory_order_relaxed);
	vg_forget_the_dead(state, (uint32_t)index, now);
	share = vg_info_share(state, (uint32_t)index);
	vg_bound(figures, &share);
	return CUDA_SUCCESS;
}

static CUresult vg_memory_info(struct vg_figures *figures)
{
	struct vg_state *state = vg_state_ready();
	uint64_t now;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	now = vg_now();
	vg_pool_held_refresh_stale(state);
	vg_audit_doubt(state);
	return vg_reuse_memory(state, now, figures) ? CUDA_SUCCESS : vg_ask_memory(state, now, figures);
}

VG_API(cuMemGetInfo_v2, size_t *available, size_t *total)
{
	struct vg_figures limited;
	CUresult result = vg_memory_info(&limited);

	if (!result && available)
		*available = limited.available;
	if (!result && total)
		*total = limited.total;
	return result;
}

static unsigned vg_narrow(uint64_t bytes)
{
	return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

VG_API(cuMemGetInfo, unsigned *available, unsigned *total)
{
	struct vg_figures limited;
	CUresult result = vg_memory_info(&limited);

	if (!result && available)
		*available = vg_narrow(limited.available);
	if (!result && total)
		*total = vg_narrow(limited.total);
	return result;
}

VG_API(cuDeviceTotalMem_v2, size_t *bytes, CUdevice device)
{
	struct vg_state *state = vg_state_ready();
	CUresult result = VG_CALL(cuDeviceTotalMem_v2, bytes, device);

	if (result)
		return result;
	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	*bytes = vg_total_of(state, device, *bytes);
	return CUDA_SUCCESS;
}

VG_API(cuDeviceTotalMem, unsigned *bytes, CUdevice device)
{
	struct vg_state *state = vg_state_ready();
	CUresult result = VG_CALL(cuDeviceTotalMem, bytes, device);
	size_t whole = 0;

	if (result)
		return result;
	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	result = VG_CALL(cuDeviceTotalMem_v2, &whole, device);
	*bytes = vg_narrow(vg_total_of(state, device, whole));
	return result;
}
