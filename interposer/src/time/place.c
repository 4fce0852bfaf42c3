// SPDX-License-Identifier: Apache-2.0

#include "place.h"

#include <stdlib.h>

#include "base/mutex.h"
#include "base/now.h"
#include "base/thread.h"
#include "driver/capture.h"
#include "driver/handle.h"
#include "driver/stream.h"
#include "memory/state.h"
#include "meter.h"
#include "others.h"
#include "pages/limits.h"

// vg_meter_at returns the meter of a GPU at this place, and creates the meter at the first use.
static struct vg_meter *vg_meter_at(_Atomic(struct vg_meter *) *place, const struct vg_pages *pages, uint32_t device)
{
	struct vg_meter *meter = atomic_load(place);
	struct vg_meter *made;

	if (meter)
		return meter;
	made = calloc(1, sizeof *made);
	if (!made)
		return NULL;
	made->pages = pages;
	made->device = device;
	made->deducted = vg_others_charged(pages, device, vg_now());
	vg_mutex_set_rank(&made->mutex, VG_RANK_METER);
	if (!atomic_compare_exchange_strong(place, &meter, made)) {
		free(made);
		return meter;
	}
	return made;
}

struct vg_meter *vg_place_beside(struct vg_meter *meter)
{
	struct vg_meter *beside = vg_meter_at(&meter->beside, meter->pages, meter->device);

	return beside ? beside : meter;
}

bool vg_place_context(const struct vg_work *work, CUcontext *context)
{
	CUstream stream = work->stream;

	// If the driver does not report a stream's context, the stream counts as a stream of the
	// current context.
	if (vg_handle_is_created(stream) && VG_CALL(cuStreamGetCtx, stream, context) == CUDA_SUCCESS)
		return *context != NULL;
	return VG_CALL(cuCtxGetCurrent, context) == CUDA_SUCCESS && *context;
}

// A place is the address of a context or a stream, with the index of its GPU in the unused low
// bits. The interposer caches the last places, because a query of the driver at each launch would
// take too long.
enum { vg_place_mask = 15 };
_Static_assert(VG_MAX_DEVICES <= vg_place_mask + 1, "an index has four bits");

static int vg_place_find(const _Atomic uint64_t *last, const void *handle)
{
	uint64_t place = atomic_load_explicit(last, memory_order_relaxed);

	return handle && (place & ~(uint64_t)vg_place_mask) == vg_handle_key(handle) ?
		       (int)(place & vg_place_mask) : -1;
}

static void vg_place_keep(_Atomic uint64_t *last, const void *handle, int index)
{
	if (handle && index >= 0 && (vg_handle_key(handle) & vg_place_mask) == 0)
		atomic_store_explicit(last, vg_handle_key(handle) | (uint64_t)index, memory_order_relaxed);
}

static int vg_context_place(struct vg_state *state, const struct vg_work *work, CUcontext context)
{
	int index = vg_place_find(&state->place, context);
	CUdevice device;

	if (index >= 0 || (vg_stream_device(work->stream, &device) && VG_CALL(cuCtxGetDevice, &device)))
		return index;
	index = vg_state_device(state, device);
	vg_place_keep(&state->place, context, index);
	return index;
}

// vg_work_place returns the index of the GPU for work, or -1 if the GPU is unknown. For a cached
// stream, vg_work_place does not set `context`, because the stream's record has the context.
static int vg_work_place(struct vg_state *state, const struct vg_work *work, CUcontext *context)
{
	int index = vg_place_find(&state->stream_place, work->stream);

	if (index >= 0)
		return index;
	if (!vg_place_context(work, context))
		return -1;
	index = vg_context_place(state, work, *context);
	vg_place_keep(&state->stream_place, work->stream, index);
	return index;
}

void vg_place_meter(struct vg_ticket *ticket)
{
	struct vg_state *state = ticket->state;
	const struct vg_work *work = &ticket->work;
	CUcontext context = NULL;
	int index = vg_work_place(state, work, &context);

	if (index < 0 || (!work->gpus && vg_limits_compute(&state->pages, (uint32_t)index) >= VG_PPM))
		return;
	ticket->context = vg_handle_key(context);
	ticket->thread = vg_handle_is_own(work->stream, work->per_thread) ? vg_thread_key() : 0;
	ticket->meter = vg_meter_at(&state->meters[index], &state->pages, (uint32_t)index);
}

void vg_place_fill(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work)
{
	*ticket = (struct vg_ticket){.state = state, .work = *work};
	ticket->captured = vg_capture_is_on(work->stream, work->per_thread);
	if (!ticket->captured) {
		vg_place_meter(ticket);
		return;
	}
	ticket->at = vg_now();
	ticket->capture = vg_capture_id(work->stream, work->per_thread);
}
