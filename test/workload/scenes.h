// SPDX-License-Identifier: Apache-2.0

// Scenes are short programs that hang, break or slow down with some libraries between a program and
// its driver.

#ifndef WORKLOAD_SCENES_H
#define WORKLOAD_SCENES_H

#include <pthread.h>
#include <stdatomic.h>

#include "session.h"

struct wl_scenes {
	struct wl_session session;
	struct wl_common common;
	const char *scene;
	const char *module;  // for the scene "constructor"
	const char *call;    // for the scene "call"
	uint64_t captures;
	uint64_t launches;
	uint64_t threads;    // for the scene "crowd"
	double kernel_us;
	double idle_us;      // between two kernels of the thread beside
	double hold_ms;      // length of a capture, and of longer work
	const char *mode;    // of captures, by its name
	uint64_t broken;     // captures that ended wrongly
	CUresult broken_by;  // the first error of such a capture
	double longest;      // longest call, in seconds
	double loading;      // time to load code, in seconds, in the scene "two-gpus"
};

struct wl_scene {
	const char *name;
	const char *help;
	int (*run)(struct wl_scenes *scenes); // 0, or -1 with the failure in the session
};

extern const struct wl_scene wl_capture_scenes[]; // ends with a NULL name
extern const struct wl_scene wl_wait_scenes[];
extern const struct wl_scene wl_many_scenes[];

// wl_scene_launch launches a kernel of this length, and records the duration of the call.
int wl_scene_launch(struct wl_scenes *scenes, CUstream stream, double us);
// wl_scene_timed records the duration of a call that began at this wl_now.
void wl_scene_timed(struct wl_scenes *scenes, double began);
void wl_scene_sleep(double seconds);

// wl_beside is a thread that works on a separate stream until the scene ends the thread. The thread
// runs kernels with pauses between the kernels, and waits for each kernel.
struct wl_beside {
	struct wl_scenes *scenes;
	struct wl_scenes own; // failures and times of the thread
	CUstream stream;
	pthread_t thread;
	_Atomic bool stop;
	int failed;
};

int wl_beside_start(struct wl_beside *beside, struct wl_scenes *scenes, CUstream stream);
int wl_beside_stop(struct wl_beside *beside);

#endif
