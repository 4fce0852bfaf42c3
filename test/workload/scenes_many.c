// SPDX-License-Identifier: Apache-2.0

// This file contains scenes with work of many threads, and of several contexts of one process.

#include "scenes.h"

#include <stdio.h>
#include <stdlib.h>

#include "spin_ptx.h"

enum { wl_non_blocking = 1, wl_crowd_streams = 8 };

static int wl_wait(struct wl_scenes *scenes, CUstream stream)
{
	return wl_session_check(&scenes->session, "cuStreamSynchronize",
				WL_CALL(&scenes->session.driver, stream_synchronize, stream));
}

static int wl_enter(struct wl_scenes *scenes)
{
	return wl_session_check(&scenes->session, "cuCtxSetCurrent",
				WL_CALL(&scenes->session.driver, ctx_set_current,
					scenes->session.context));
}

// ---- many threads

struct wl_one {
	struct wl_scenes own;
	CUstream stream;
	pthread_t thread;
	double until;
	int failed;
};

static void *wl_one_run(void *argument)
{
	struct wl_one *one = argument;

	one->failed = wl_enter(&one->own);
	while (!one->failed && wl_now() < one->until)
		one->failed = wl_scene_launch(&one->own, one->stream, one->own.kernel_us) ||
			      wl_wait(&one->own, one->stream);
	return NULL;
}

static int wl_crowd_play(struct wl_scenes *scenes, struct wl_one *crowd, const CUstream *streams)
{
	double until = wl_now() + scenes->hold_ms / 1e3;
	uint64_t started = 0;
	int failed = 0;

	for (; started < scenes->threads; started++) {
		struct wl_one *one = &crowd[started];

		one->own = *scenes;
		one->stream = streams[started % wl_crowd_streams];
		one->until = until;
		if (pthread_create(&one->thread, NULL, wl_one_run, one) == 0)
			continue;
		snprintf(scenes->session.message, sizeof scenes->session.message, "no thread");
		failed = -1;
		break;
	}
	for (uint64_t i = 0; i < started; i++) {
		pthread_join(crowd[i].thread, NULL);
		if (crowd[i].own.longest > scenes->longest)
			scenes->longest = crowd[i].own.longest;
		if (crowd[i].failed)
			failed = wl_session_check(&scenes->session, crowd[i].own.session.call,
						  crowd[i].own.session.result);
	}
	return failed;
}

// wl_scene_crowd makes many threads launch kernels on a few streams. A thread waits for each of its
// kernels.
static int wl_scene_crowd(struct wl_scenes *scenes)
{
	CUstream streams[wl_crowd_streams];
	struct wl_one *crowd;
	int failed;

	for (int i = 0; i < wl_crowd_streams; i++)
		if (wl_session_check(&scenes->session, "cuStreamCreate",
				     WL_CALL(&scenes->session.driver, stream_create, &streams[i],
					     wl_non_blocking)))
			return -1;
	crowd = calloc(scenes->threads, sizeof *crowd);
	if (!crowd) {
		snprintf(scenes->session.message, sizeof scenes->session.message, "no memory");
		return -1;
	}
	failed = wl_crowd_play(scenes, crowd, streams);
	free(crowd);
	return failed;
}

// ---- two contexts

static int wl_second_context(struct wl_scenes *second)
{
	struct wl_session *session = &second->session;
	const struct wl_driver *driver = &session->driver;
	CUmodule module;

	return wl_session_check(session, "cuCtxCreate",
				WL_CALL(driver, ctx_create, &session->context, 0, session->device)) ||
			       wl_session_check(session, "cuModuleLoadData",
						WL_CALL(driver, module_load, &module, wl_spin_ptx)) ||
			       wl_session_check(session, "cuModuleGetFunction",
						WL_CALL(driver, module_function, &session->spin, module,
							"spin")) ? -1 : 0;
}

// wl_scene_contexts runs some kernels on the default stream of one context. Meanwhile,
// wl_scene_contexts launches shorter kernels of another context, and waits for these kernels.
static int wl_scene_contexts(struct wl_scenes *scenes)
{
	enum { at_a_time = 4 };
	struct wl_scenes second = *scenes;
	int failed = wl_second_context(&second);

	for (uint64_t i = 0; !failed && i < scenes->launches; i++) {
		failed = wl_enter(scenes) || wl_scene_launch(scenes, NULL, scenes->kernel_us) ||
			 wl_enter(&second) || wl_scene_launch(&second, NULL, scenes->kernel_us / 100) ||
			 wl_wait(&second, NULL);
		if (!failed && i % at_a_time == 0)
			failed = wl_enter(scenes) || wl_wait(scenes, NULL);
	}
	if (second.longest > scenes->longest)
		scenes->longest = second.longest;
	if (failed && second.session.result)
		return wl_session_check(&scenes->session, second.session.call, second.session.result);
	return failed || wl_enter(scenes) || wl_wait(scenes, NULL) ? -1 : 0;
}

const struct wl_scene wl_many_scenes[] = {
	{"crowd", "many threads launch on a few streams, for the time of --hold-ms", wl_scene_crowd},
	{"contexts", "kernels on the default streams of two contexts", wl_scene_contexts},
	{NULL, NULL, NULL},
};
