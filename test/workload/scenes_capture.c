// SPDX-License-Identifier: Apache-2.0

// This file contains scenes with captures of streams, beside other work of the process that a
// driver permits during a capture.

#include "scenes.h"

#include <stdio.h>
#include <string.h>

enum {
	wl_streams = 4,
	wl_blocking = 0,
	wl_non_blocking = 1,
	wl_capture_global = 0,
	wl_capture_thread_local = 1,
	wl_capture_relaxed = 2,
	wl_nodes = 5,
};

// wl_capture_mode returns the mode by its name, or -1.
static int wl_capture_mode(struct wl_scenes *scenes)
{
	static const char *const names[] = {
		[wl_capture_global] = "global", [wl_capture_thread_local] = "thread-local",
		[wl_capture_relaxed] = "relaxed",
	};

	for (int i = 0; i <= wl_capture_relaxed; i++)
		if (strcmp(scenes->mode, names[i]) == 0)
			return i;
	snprintf(scenes->session.message, sizeof scenes->session.message,
		 "--mode must be global, thread-local or relaxed");
	return -1;
}

static int wl_make_streams(struct wl_scenes *scenes, CUstream *streams, size_t count, unsigned flags)
{
	struct wl_session *session = &scenes->session;

	for (size_t i = 0; i < count; i++)
		if (wl_session_check(session, "cuStreamCreate",
				     WL_CALL(&session->driver, stream_create, &streams[i], flags)))
			return -1;
	return 0;
}

static void wl_capture_failed(struct wl_scenes *scenes, CUresult result)
{
	if (!scenes->broken++)
		scenes->broken_by = result;
}

// wl_graph_run launches the captured graph once.
static int wl_graph_run(struct wl_scenes *scenes, CUstream stream, CUgraph graph)
{
	struct wl_session *session = &scenes->session;
	const struct wl_driver *driver = &session->driver;
	CUgraphExec exec;

	if (wl_session_check(session, "cuGraphInstantiate",
			     WL_CALL(driver, graph_instantiate, &exec, graph, 0)))
		return -1;
	if (wl_session_check(session, "cuGraphLaunch", WL_CALL(driver, graph_launch, exec, stream)) ||
	    wl_session_check(session, "cuStreamSynchronize",
			     WL_CALL(driver, stream_synchronize, stream)))
		return -1;
	return wl_session_check(session, "cuGraphExecDestroy", WL_CALL(driver, graph_exec_destroy, exec));
}

// wl_capture captures some kernels in a stream, for the configured time. wl_capture counts a
// capture that breaks.
static int wl_capture(struct wl_scenes *scenes, CUstream stream, int mode)
{
	const struct wl_driver *driver = &scenes->session.driver;
	CUresult result = WL_CALL(driver, capture_begin, stream, mode);
	CUgraph graph = NULL;
	CUresult end;
	int failed = 0;

	if (result) {
		wl_capture_failed(scenes, result);
		return 0;
	}
	for (int i = 0; i < wl_nodes; i++) {
		if (wl_scene_launch(scenes, stream, scenes->kernel_us / wl_nodes))
			result = scenes->session.result;
		wl_scene_sleep(scenes->hold_ms / 1e3 / wl_nodes);
	}
	end = WL_CALL(driver, capture_end, stream, &graph);
	if (result || end) {
		wl_capture_failed(scenes, result ? result : end);
		return 0;
	}
	failed = wl_graph_run(scenes, stream, graph);
	WL_CALL(driver, graph_destroy, graph);
	return failed;
}

// wl_scene_captures captures blocking streams one after another. Before each capture,
// wl_scene_captures launches on the legacy stream, which is unusable during the capture. Another
// thread works on a non-blocking stream.
static int wl_scene_captures(struct wl_scenes *scenes)
{
	CUstream streams[wl_streams], beside_stream;
	struct wl_beside beside;
	int mode = wl_capture_mode(scenes);
	int failed = 0;

	if (mode < 0 || wl_make_streams(scenes, streams, wl_streams, wl_blocking) ||
	    wl_make_streams(scenes, &beside_stream, 1, wl_non_blocking) ||
	    wl_beside_start(&beside, scenes, beside_stream))
		return -1;
	for (uint64_t i = 0; !failed && i < scenes->captures; i++) {
		failed = wl_scene_launch(scenes, NULL, scenes->kernel_us) ||
			 wl_scene_launch(scenes, NULL, scenes->kernel_us) ||
			 wl_capture(scenes, streams[i % wl_streams], mode);
	}
	return wl_beside_stop(&beside) || failed ? -1 : 0;
}

// wl_capturer is a thread that captures its own stream repeatedly.
struct wl_capturer {
	struct wl_scenes own;
	CUstream stream;
	int mode;
	pthread_t thread;
	int failed;
};

static void *wl_capturer_run(void *argument)
{
	struct wl_capturer *capturer = argument;
	struct wl_session *session = &capturer->own.session;

	capturer->failed = wl_session_check(session, "cuCtxSetCurrent",
					    WL_CALL(&session->driver, ctx_set_current, session->context));
	for (uint64_t i = 0; !capturer->failed && i < capturer->own.captures / wl_streams; i++)
		capturer->failed = wl_capture(&capturer->own, capturer->stream, capturer->mode);
	return NULL;
}

// wl_scene_captures_at_once captures non-blocking streams in four threads at the same time, while
// another thread launches on the legacy stream all the time.
static int wl_scene_captures_at_once(struct wl_scenes *scenes)
{
	struct wl_capturer capturers[wl_streams];
	CUstream streams[wl_streams];
	struct wl_beside beside;
	int mode = wl_capture_mode(scenes);
	int failed = 0;

	if (mode < 0 || wl_make_streams(scenes, streams, wl_streams, wl_non_blocking) ||
	    wl_beside_start(&beside, scenes, NULL))
		return -1;
	for (int i = 0; i < wl_streams; i++) {
		capturers[i] = (struct wl_capturer){.own = *scenes, .stream = streams[i], .mode = mode};
		pthread_create(&capturers[i].thread, NULL, wl_capturer_run, &capturers[i]);
	}
	for (int i = 0; i < wl_streams; i++) {
		const struct wl_capturer *capturer = &capturers[i];

		pthread_join(capturer->thread, NULL);
		if (capturer->own.broken)
			scenes->broken_by = capturer->own.broken_by;
		scenes->broken += capturer->own.broken;
		if (capturer->failed)
			failed = wl_session_check(&scenes->session, capturer->own.session.call,
						  capturer->own.session.result);
	}
	return wl_beside_stop(&beside) || failed ? -1 : 0;
}

// ---- a thread waits for an event when a capture begins that forbids queries

struct wl_waiter {
	struct wl_session session;
	CUevent event;
	_Atomic bool waits;
	int failed;
};

static void *wl_waiter_run(void *argument)
{
	struct wl_waiter *waiter = argument;
	const struct wl_driver *driver = &waiter->session.driver;

	waiter->failed = wl_session_check(&waiter->session, "cuCtxSetCurrent",
					  WL_CALL(driver, ctx_set_current, waiter->session.context));
	waiter->waits = true;
	if (!waiter->failed)
		waiter->failed = wl_session_check(&waiter->session, "cuEventSynchronize",
						  WL_CALL(driver, event_synchronize, waiter->event));
	return NULL;
}

// wl_wait_and_capture makes a thread wait for the end of long work, and then captures a stream.
static int wl_wait_and_capture(struct wl_scenes *scenes, CUstream working, CUstream captured)
{
	struct wl_waiter waiter = {.session = scenes->session};
	const struct wl_driver *driver = &scenes->session.driver;
	pthread_t thread;
	int failed;

	if (wl_session_check(&scenes->session, "cuEventCreate",
			     WL_CALL(driver, event_create, &waiter.event, 0)) ||
	    wl_scene_launch(scenes, working, 20e3 + scenes->hold_ms * 1e3) ||
	    wl_session_check(&scenes->session, "cuEventRecord",
			     WL_CALL(driver, event_record, waiter.event, working)) ||
	    pthread_create(&thread, NULL, wl_waiter_run, &waiter) != 0)
		return -1;
	while (!waiter.waits)
		wl_scene_sleep(1e-4);
	wl_scene_sleep(5e-3); // by this time the thread is in the driver
	failed = wl_capture(scenes, captured, wl_capture_global);
	pthread_join(thread, NULL);
	if (waiter.failed)
		return wl_session_check(&scenes->session, waiter.session.call, waiter.session.result);
	return failed;
}

static int wl_scene_event_wait(struct wl_scenes *scenes)
{
	CUstream streams[2];

	if (wl_make_streams(scenes, streams, 2, wl_non_blocking))
		return -1;
	for (uint64_t i = 0; i < scenes->captures; i++)
		if (wl_wait_and_capture(scenes, streams[0], streams[1]))
			return -1;
	return 0;
}

// ---- launches beside a long capture

static int wl_launch_and_wait(struct wl_scenes *scenes, CUstream stream, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		if (wl_scene_launch(scenes, stream, scenes->kernel_us) ||
		    wl_session_check(&scenes->session, "cuStreamSynchronize",
				     WL_CALL(&scenes->session.driver, stream_synchronize, stream)))
			return -1;
	return 0;
}

// wl_scene_beside also launches the work before the capture, so that the work has an estimate.
static int wl_scene_beside(struct wl_scenes *scenes)
{
	enum { before = 20 };
	struct wl_session *session = &scenes->session;
	const struct wl_driver *driver = &session->driver;
	CUstream streams[2];
	CUgraph graph;

	if (wl_make_streams(scenes, streams, 2, wl_non_blocking) ||
	    wl_launch_and_wait(scenes, streams[1], before) ||
	    wl_session_check(session, "cuStreamBeginCapture",
			     WL_CALL(driver, capture_begin, streams[0], wl_capture_relaxed)))
		return -1;
	return wl_launch_and_wait(scenes, streams[1], scenes->launches) ||
			       wl_session_check(session, "cuStreamEndCapture",
						WL_CALL(driver, capture_end, streams[0], &graph)) ? -1 : 0;
}

const struct wl_scene wl_capture_scenes[] = {
	{"captures", "captures of blocking streams in turn, with launches on the legacy stream between the captures",
	 wl_scene_captures},
	{"at-once", "four threads capture non-blocking streams beside launches on the legacy stream",
	 wl_scene_captures_at_once},
	{"event-wait", "a capture in the global mode begins while a thread waits for an event",
	 wl_scene_event_wait},
	{"beside", "kernels, with a wait for each kernel, beside a capture of another stream", wl_scene_beside},
	{NULL, NULL, NULL},
};
