// SPDX-License-Identifier: Apache-2.0

// scenes plays one scene, and prints the scene's duration and failures.

#include "scenes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"

static const double wl_long_us = 10e3;

void wl_scene_sleep(double seconds)
{
	wl_sleep_until(wl_now() + seconds);
}

void wl_scene_timed(struct wl_scenes *scenes, double began)
{
	double took = wl_now() - began;

	if (took > scenes->longest)
		scenes->longest = took;
}

int wl_scene_launch(struct wl_scenes *scenes, CUstream stream, double us)
{
	struct wl_session *session = &scenes->session;
	uint64_t ns = (uint64_t)(us * 1e3);
	void *parameters[] = {&ns};
	double began = wl_now();
	unsigned blocks = us < wl_long_us ? 1 : 2; // other work has another shape
	CUresult result = WL_CALL(&session->driver, launch, session->spin, blocks, 1, 1, 1, 1,
				  1, 0, stream, parameters, NULL);

	wl_scene_timed(scenes, began);
	return wl_session_check(session, "cuLaunchKernel", result);
}

static void *wl_beside_run(void *argument)
{
	struct wl_beside *beside = argument;
	struct wl_session *session = &beside->own.session;
	const struct wl_driver *driver = &session->driver;

	beside->failed = wl_session_check(session, "cuCtxSetCurrent",
					  WL_CALL(driver, ctx_set_current, session->context));
	while (!beside->failed && !beside->stop) {
		beside->failed = wl_scene_launch(&beside->own, beside->stream,
						 beside->own.kernel_us);
		if (!beside->failed)
			beside->failed = wl_session_check(session, "cuStreamSynchronize",
							  WL_CALL(driver, stream_synchronize,
								  beside->stream));
		wl_scene_sleep(beside->own.idle_us / 1e6);
	}
	return NULL;
}

int wl_beside_start(struct wl_beside *beside, struct wl_scenes *scenes, CUstream stream)
{
	memset(beside, 0, sizeof *beside);
	beside->scenes = scenes;
	beside->own = *scenes;
	beside->stream = stream;
	if (pthread_create(&beside->thread, NULL, wl_beside_run, beside) == 0)
		return 0;
	snprintf(scenes->session.message, sizeof scenes->session.message, "no thread");
	return -1;
}

int wl_beside_stop(struct wl_beside *beside)
{
	struct wl_scenes *scenes = beside->scenes;

	beside->stop = true;
	pthread_join(beside->thread, NULL);
	if (beside->own.longest > scenes->longest)
		scenes->longest = beside->own.longest;
	return beside->failed ? wl_session_check(&scenes->session, beside->own.session.call,
						 beside->own.session.result) : 0;
}

static const struct wl_scene *const wl_all_scenes[] = {
	wl_capture_scenes, wl_wait_scenes, wl_many_scenes, NULL,
};

static const struct wl_scene *wl_scene_in(const struct wl_scene *scene, const char *name)
{
	while (scene->name && strcmp(scene->name, name) != 0)
		scene++;
	return scene->name ? scene : NULL;
}

static const struct wl_scene *wl_scene_find(const char *name)
{
	const struct wl_scene *scene = NULL;

	for (size_t i = 0; !scene && wl_all_scenes[i]; i++)
		scene = wl_scene_in(wl_all_scenes[i], name);
	return scene;
}

static void wl_scenes_list(const struct wl_scene *scene)
{
	for (; scene->name; scene++)
		printf("%-14s%s\n", scene->name, scene->help);
}

// wl_scene_play prints the result and returns the exit status.
static int wl_scene_play(struct wl_scenes *scenes, const struct wl_scene *scene,
			 const char *program)
{
	struct wl_session *session = &scenes->session;
	double began;
	int failed;

	if (wl_session_open(session, &scenes->common) || wl_session_load_spin(session))
		return wl_session_fail(session, program);
	scenes->longest = 0;
	began = wl_now();
	failed = scene->run(scenes);
	began = wl_now() - began;
	wl_json_open(NULL);
	wl_json_integer("pid", getpid());
	wl_json_string("scene", scene->name);
	wl_json_bytes("wall_us", (uint64_t)(began * 1e6));
	wl_json_bytes("longest_us", (uint64_t)(scenes->longest * 1e6));
	if (scenes->loading > 0)
		wl_json_bytes("loading_us", (uint64_t)(scenes->loading * 1e6));
	wl_json_bytes("broken", scenes->broken);
	if (scenes->broken)
		wl_json_string("broken_by", wl_error_name(&session->driver, scenes->broken_by));
	if (failed)
		wl_session_report(session);
	wl_json_close();
	return failed || scenes->broken ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	static struct wl_scenes scenes = {
		.common = WL_COMMON_DEFAULTS,
		.captures = 40,
		.launches = 200,
		.threads = 200,
		.kernel_us = 200,
		.idle_us = 800,
		.hold_ms = 2,
		.mode = "thread-local",
	};
	bool list = false;
	const struct wl_option table[] = {
		{"scene", WL_OPTION_TEXT, &scenes.scene, "the scene (see --list)"},
		{"list", WL_OPTION_FLAG, &list, "list the scenes"},
		{"module", WL_OPTION_TEXT, &scenes.module,
		 "the library that \"constructor\" opens"},
		{"call", WL_OPTION_TEXT, &scenes.call, "the driver's function that \"call\" calls"},
		{"captures", WL_OPTION_COUNT, &scenes.captures, "captures (default 40)"},
		{"launches", WL_OPTION_COUNT, &scenes.launches, "launches (default 200)"},
		{"threads", WL_OPTION_COUNT, &scenes.threads, "threads of \"crowd\" (default 200)"},
		{"kernel-us", WL_OPTION_NUMBER, &scenes.kernel_us,
		 "length of a kernel in µs (default 200)"},
		{"idle-us", WL_OPTION_NUMBER, &scenes.idle_us,
		 "pause after a kernel in µs (default 800)"},
		{"hold-ms", WL_OPTION_NUMBER, &scenes.hold_ms,
		 "duration of captures, or of long work, in ms (default 2)"},
		{"mode", WL_OPTION_TEXT, &scenes.mode,
		 "mode of captures: global, thread-local (default) or relaxed"},
		WL_COMMON_OPTIONS(scenes.common),
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	const struct wl_scene *scene;

	wl_options_parse(argc, argv, "Play a scene that may fail if a library "
				     "replaces the driver; print the result as one JSON line.",
			 table);
	if (list) {
		for (size_t i = 0; wl_all_scenes[i]; i++)
			wl_scenes_list(wl_all_scenes[i]);
		return EXIT_SUCCESS;
	}
	scene = scenes.scene ? wl_scene_find(scenes.scene) : NULL;
	if (!scene) {
		fprintf(stderr, "%s: --scene must be one of --list\n", argv[0]);
		return WL_EXIT_USAGE;
	}
	return wl_scene_play(&scenes, scene, argv[0]);
}
