// SPDX-License-Identifier: Apache-2.0

#include "watch.h"

#include "base/now.h"
#include "base/number.h"
#include "base/sleep.h"
#include "base/thread.h"
#include "driver/capture.h"
#include "driver/handle.h"
#include "driver/stream.h"
#include "events.h"
#include "idle.h"
#include "load/capture_count.h"
#include "meter.h"
#include "throttle.h"

enum {
	vg_watch_ns = 50000,  // time between two checks
	vg_close_ns = 10000,  // time between two checks near the expected end of the work
	vg_near_ns = 200000,
	vg_alone_ns = 1000000, // time between two checks without other processes
};

// vg_watched is the object that a thread waits for.
struct vg_watched {
	CUstream stream;
	CUevent event;    // NULL: wait for the stream
	uint64_t context; // 0: wait for the stream or event
	bool per_thread;
};

static bool vg_context_done(struct vg_meter *meter, uint64_t context)
{
	bool done;

	if (!vg_meter_lock(meter, vg_meter_wait_ns))
		return true;
	done = vg_idle_context_done(meter, context, vg_thread_key());
	vg_meter_unlock(meter);
	return done;
}

static bool vg_watched_done(struct vg_meter *meter, const struct vg_watched *watched)
{
	if (watched->context)
		return vg_context_done(meter, watched->context);
	if (watched->event)
		return vg_stream_event_done(watched->event);
	return vg_stream_ask(watched->stream, watched->per_thread) != vg_work_left;
}

static struct vg_meter *vg_watch_meter(struct vg_state *state)
{
	CUdevice device;
	int index;

	if (VG_CALL(cuCtxGetDevice, &device))
		return NULL;
	index = vg_state_device(state, device);
	return index < 0 ? NULL : atomic_load(&state->meters[index]);
}

// vg_watch_pause returns the time until the next check, in ns. Without other processes, a check
// before the expected end of the work can only find new processes.
static uint64_t vg_watch_pause(const struct vg_meter *meter, uint64_t now, bool probes)
{
	uint64_t end = vg_meter_busy_until(meter);

	if (end < now + vg_near_ns && now < end + vg_near_ns)
		return vg_close_ns;
	return probes || end < now ? vg_watch_ns : vg_min(end - vg_near_ns - now, vg_alone_ns);
}

// vg_watch_look sends a probe if the time since the last probe is long enough. vg_watch_look
// returns the time until the next check, in ns, or 0 if no unfinished work is long or overdue.
static uint64_t vg_watch_look(struct vg_meter *meter, uint64_t context, uint64_t *probed)
{
	uint64_t now = vg_now();
	bool lengthy = vg_meter_has_long_work(meter);
	bool probes = (lengthy || vg_meter_overdue(meter) <= now) && vg_events_probe_due(meter, now) <= now;

	if (!probes && !lengthy)
		return 0;
	if (now - *probed >= vg_probe_ns) {
		vg_events_read(meter, now);
		if (probes)
			vg_events_probe(meter, context, now);
		*probed = now;
	}
	return vg_watch_pause(meter, now, probes);
}

void vg_watch_polled(void)
{
	struct vg_state *state = vg_throttle_state();
	struct vg_meter *meter = state ? vg_watch_meter(state) : NULL;

	// The lock's holder sends probes now or at its next check.
	if (!meter || !vg_meter_try_lock(meter))
		return;
	vg_watch_look(meter, vg_handle_context(), &meter->polled);
	vg_meter_unlock(meter);
}

// vg_watch waits for an object, and reports whether the wait delayed the program's call of the
// driver. If streams may be captured, vg_watch returns at once, because a capture forbids many of
// vg_watch's calls.
static bool vg_watch(const struct vg_watched *watched)
{
	struct vg_state *state = vg_throttle_state();
	struct vg_meter *meter = state ? vg_watch_meter(state) : NULL;
	uint64_t context = 0;
	uint64_t probed = 0;
	bool waited = false;
	uint64_t wait;

	while (meter && !vg_capture_count_maybe()) {
		if (!vg_meter_lock(meter, vg_meter_wait_ns))
			return waited;
		if (!context && vg_meter_has_long_work(meter))
			context = vg_handle_context();
		wait = vg_watch_look(meter, context, &probed);
		vg_meter_unlock(meter);
		if (wait == 0 || vg_watched_done(meter, watched))
			return waited;
		waited = true;
		vg_sleep_until(vg_now() + wait);
	}
	return waited;
}

void vg_watch_stream(CUstream stream, bool per_thread)
{
	if (vg_throttle_state())
		vg_watch(&(struct vg_watched){.stream = stream, .per_thread = per_thread});
}

bool vg_watch_event(CUevent event)
{
	return event && vg_throttle_state() && vg_watch(&(struct vg_watched){.event = event});
}

// vg_watch_current returns the context if it is the thread's current context, whose streams the
// thread may query. For any other context, vg_watch_current returns 0.
static uint64_t vg_watch_current(CUcontext context)
{
	uint64_t current = vg_handle_context();

	return !context || vg_handle_key(context) == current ? current : 0;
}

void vg_watch_context(CUcontext context)
{
	uint64_t key = vg_throttle_state() ? vg_watch_current(context) : 0;

	if (key)
		vg_watch(&(struct vg_watched){.context = key});
}

// vg_watch_waited locks the meter of the current GPU after a wait, and settles the work of unknown
// length. vg_watch_waited returns NULL if there is no such meter, or the meter is stuck.
static struct vg_meter *vg_watch_waited(void)
{
	struct vg_state *state = vg_throttle_state();
	struct vg_meter *meter = state ? vg_watch_meter(state) : NULL;

	if (!meter || !vg_meter_lock(meter, vg_meter_wait_ns))
		return NULL;
	vg_throttle_waited(state, meter);
	return meter;
}

void vg_watch_stream_waited(CUstream stream, bool per_thread)
{
	struct vg_meter *meter = vg_watch_waited();

	if (!meter)
		return;
	vg_idle_waited(meter, stream, vg_handle_is_created(stream) ? 0 : vg_handle_context(),
		       vg_handle_is_own(stream, per_thread) ? vg_thread_key() : 0, vg_now());
	vg_meter_unlock(meter);
}

void vg_watch_context_waited(CUcontext context)
{
	struct vg_meter *meter = vg_watch_waited();
	uint64_t key = meter ? vg_watch_current(context) : 0;

	if (key)
		vg_idle_context_waited(meter, key, vg_now());
	if (meter)
		vg_meter_unlock(meter);
}

void vg_watch_other_waited(void)
{
	struct vg_meter *meter = vg_watch_waited();

	if (!meter)
		return;
	vg_idle_other_waited(meter, vg_handle_context(), vg_thread_key(), vg_now());
	vg_meter_unlock(meter);
}
