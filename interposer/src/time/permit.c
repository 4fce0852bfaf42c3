// SPDX-License-Identifier: Apache-2.0

// A permit: leave to launch the same work on the same stream once more without another
// look at all that the door looks at, which is most of what a launch costs.
//
// The door gives it for as much as it can see ahead: until the bucket is to be asked, an
// event is to be placed or too much is under way, and for no longer than a limit may take
// to be noticed that was changed. Whatever else happens to the meter ends it, as does a
// stream that runs dry: so what is entered with a permit is what the door would have.

#include "meter.h"
#include "stream.h"
#include "throttle.h"

enum { vg_permit_wait_ns = 2000000 }; // for the meter; the door waits for longer

// vg_permit_is_here reports whether the work goes where the permit's did. A stream that was
// made has its context; the default ones are another's in each. A thread's own have no permit.
static bool vg_permit_is_here(const struct vg_permit *permit, const struct vg_work *work)
{
	CUcontext context = NULL;

	if (permit->handle != work->stream)
		return false;
	if (work->stream && work->stream != vg_legacy_stream)
		return true;
	return (work->stream || !work->per_thread) &&
	       VG_CALL(cuCtxGetCurrent, &context) == CUDA_SUCCESS && vg_key(context) == permit->context;
}

// vg_permit_is_in_time reports whether the permit still holds and the stream has not run dry.
// The time is most of what a permit costs: for so little work as a stream may be wrong by
// anyway, it is not looked at. How long the stream was dry is told by the next look.
static bool vg_permit_is_in_time(struct vg_meter *meter)
{
	struct vg_permit *permit = &meter->permit;
	uint64_t now;

	permit->unseen += permit->ns;
	if (permit->unseen <= vg_dry_slack_ns)
		return true;
	permit->unseen = 0;
	now = vg_clock_now(&meter->clock);
	return now <= permit->until && now <= permit->stream->dry_at + vg_dry_slack_ns;
}

static bool vg_permit_is_good(struct vg_meter *meter, const struct vg_work *work)
{
	const struct vg_permit *permit = &meter->permit;

	return permit->room >= permit->ns && permit->key == work->key && vg_meter_is_mine(meter) &&
	       vg_permit_is_here(permit, work) && vg_permit_is_in_time(meter) &&
	       !vg_stream_capturing(work->stream, work->per_thread);
}

static void vg_permit_enter(struct vg_meter *meter)
{
	struct vg_permit *permit = &meter->permit;

	permit->room -= permit->ns;
	permit->stream->dry_at += (uint64_t)permit->ns;
	permit->segment->work += permit->ns;
	permit->segment->charged += permit->charge;
	permit->segment->count++;
	permit->segment->pieces++;
	meter->pieces++;
	meter->outstanding += permit->charge;
	meter->owed += permit->charge;
	if (permit->on_way)
		atomic_fetch_add(&permit->on_way->count, 1);
	vg_tally(permit->launches, 1);
}

bool vg_permit_use(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work)
{
	struct vg_meter *meter = atomic_load_explicit(&state->meters[0], memory_order_acquire);
	bool good;

	if (!meter || state->pages.device_count > 1)
		return false; // there is none
	if (!vg_try_lock(&meter->mutex) && !vg_lock_until(&meter->mutex, vg_now() + vg_permit_wait_ns))
		return false;
	good = !atomic_load(&meter->forgotten_count) && vg_permit_is_good(meter, work);
	if (good) {
		vg_permit_enter(meter);
		*ticket = (struct vg_ticket){.state = state,
					     .meter = meter,
					     .stream = work->stream,
					     .context = meter->permit.context,
					     .charge = meter->permit.charge,
					     .on_way = meter->permit.on_way,
					     .per_thread = work->per_thread};
	}
	vg_unlock(&meter->mutex);
	return good;
}
