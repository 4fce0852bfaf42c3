// SPDX-License-Identifier: Apache-2.0

#include "fastpath.h"

#include "base/mutex.h"
#include "base/now.h"
#include "driver/capture.h"
#include "driver/handle.h"
#include "memory/state.h"
#include "meter.h"

// vg_fastpath_is_here reports whether the work goes to the stream of the last launch. A per-thread
// stream has no fast path.
static bool vg_fastpath_is_here(const struct vg_stream *stream, const struct vg_work *work)
{
	CUcontext context = NULL;

	if (stream->handle != work->stream)
		return false;
	if (vg_handle_is_created(work->stream))
		return true;
	return !vg_handle_is_own(work->stream, work->per_thread) &&
	       VG_CALL(cuCtxGetCurrent, &context) == CUDA_SUCCESS && vg_handle_key(context) == stream->context;
}

// vg_fastpath_is_in_time reports whether the fast path is still valid and the stream has not become
// idle. Reading the clock takes most of the fast path's time. vg_fastpath_is_in_time reads the
// clock only after more work than the error of `idle_at`. The throttle's next check determines when
// the stream becomes idle.
static bool vg_fastpath_is_in_time(struct vg_meter *meter)
{
	struct vg_fastpath *fastpath = &meter->fastpath;
	uint64_t now;

	fastpath->unseen += fastpath->ns;
	if (fastpath->unseen <= vg_idle_slack_ns)
		return true;
	fastpath->unseen = 0;
	now = vg_now();
	return now <= fastpath->until && now <= fastpath->stream->idle_at + vg_idle_slack_ns;
}

static bool vg_fastpath_is_good(struct vg_meter *meter, const struct vg_work *work)
{
	const struct vg_fastpath *fastpath = &meter->fastpath;

	return fastpath->room >= fastpath->ns && fastpath->key == work->key &&
	       vg_fastpath_is_here(fastpath->stream, work) && vg_fastpath_is_in_time(meter) &&
	       !vg_capture_is_on(work->stream, work->per_thread);
}

static void vg_fastpath_enter(struct vg_meter *meter)
{
	struct vg_fastpath *fastpath = &meter->fastpath;
	struct vg_segment *segment = vg_stream_segment(fastpath->stream);

	fastpath->room -= fastpath->ns;
	fastpath->stream->idle_at += (uint64_t)fastpath->ns;
	segment->work += fastpath->ns;
	segment->charged += fastpath->charge;
	segment->count++;
	segment->pieces++;
	meter->pieces++;
	meter->outstanding += fastpath->charge;
	meter->owed += fastpath->charge;
	vg_tally(fastpath->launches, 1);
}

bool vg_fastpath_use(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work)
{
	struct vg_meter *meter = atomic_load_explicit(&state->meters[0], memory_order_acquire);
	bool good;

	if (!meter || state->pages.device_count > 1)
		return false; // no fast path without a meter or with several GPUs
	if (!vg_mutex_try_lock(&meter->mutex) && !vg_mutex_lock_until(&meter->mutex, vg_now() + vg_meter_wait_ns))
		return false;
	good = !atomic_load(&meter->stale) && vg_fastpath_is_good(meter, work);
	if (good) {
		vg_fastpath_enter(meter);
		*ticket = (struct vg_ticket){.state = state,
					     .meter = meter,
					     .work = *work,
					     .context = meter->fastpath.stream->context,
					     .charge = meter->fastpath.charge,
					     .at = meter->fastpath.until - vg_fastpath_ns,
					     .on_way = vg_meter_on_way_begin(meter->fastpath.stream),
					     .segment = meter->fastpath.stream->head,
					     .covered = true};
	}
	vg_mutex_unlock(&meter->mutex);
	return good;
}
