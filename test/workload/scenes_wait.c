// SPDX-License-Identifier: Apache-2.0

// This file contains scenes with work beside a long kernel. A caller that waits for this kernel
// hangs if the kernel never ends.

#include "scenes.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "spin_ptx.h"

enum { wl_stream_non_blocking = 1 };

static const double wl_persistent_us = 500e3;

static int wl_new_stream(struct wl_scenes *scenes, CUstream *stream)
{
	return wl_session_check(&scenes->session, "cuStreamCreate",
				WL_CALL(&scenes->session.driver, stream_create, stream,
					wl_stream_non_blocking));
}

static int wl_wait(struct wl_scenes *scenes, CUstream stream)
{
	return wl_session_check(&scenes->session, "cuStreamSynchronize",
				WL_CALL(&scenes->session.driver, stream_synchronize, stream));
}

// wl_some_launches launches kernels one after another and waits for each kernel.
static int wl_some_launches(struct wl_scenes *scenes, CUstream stream)
{
	for (uint64_t i = 0; i < scenes->launches; i++) {
		if (wl_scene_launch(scenes, stream, scenes->kernel_us) || wl_wait(scenes, stream))
			return -1;
		wl_scene_sleep(scenes->idle_us / 1e6);
	}
	return 0;
}

static int wl_scene_launches(struct wl_scenes *scenes)
{
	CUstream stream;

	return wl_new_stream(scenes, &stream) ? -1 : wl_some_launches(scenes, stream);
}

// wl_scene_green uses a stream of a green context, whose events belong to the green context, while
// another context is current.
static int wl_scene_green(struct wl_scenes *scenes)
{
	enum { resource_sm = 1, default_stream = 1 };
	struct wl_session *session = &scenes->session;
	const struct wl_driver *driver = &session->driver;
	CUdevResource resource;
	CUdevResourceDesc description;
	CUgreenCtx green;
	CUstream stream;

	if (wl_session_check(session, "cuDeviceGetDevResource",
			     WL_CALL(driver, device_resource, session->device, &resource, resource_sm)) ||
	    wl_session_check(session, "cuDevResourceGenerateDesc",
			     WL_CALL(driver, resource_desc, &description, &resource, 1)) ||
	    wl_session_check(session, "cuGreenCtxCreate",
			     WL_CALL(driver, green_create, &green, description, session->device,
				     default_stream)) ||
	    wl_session_check(session, "cuGreenCtxStreamCreate",
			     WL_CALL(driver, green_stream, &stream, green, wl_stream_non_blocking, 0)))
		return -1;
	return wl_some_launches(scenes, stream);
}

// wl_row launches kernels with pauses between the kernels, and waits only after the last launch.
static int wl_row(struct wl_scenes *scenes, double pause)
{
	CUstream stream;

	if (wl_new_stream(scenes, &stream))
		return -1;
	for (uint64_t i = 0; i < scenes->launches; i++) {
		if (wl_scene_launch(scenes, stream, scenes->kernel_us))
			return -1;
		if (pause > 0)
			wl_scene_sleep(pause);
	}
	return wl_wait(scenes, stream);
}

static int wl_scene_row(struct wl_scenes *scenes)
{
	return wl_row(scenes, 0);
}

static int wl_scene_paced(struct wl_scenes *scenes)
{
	return wl_row(scenes, scenes->idle_us / 1e6);
}

static int wl_scene_persistent(struct wl_scenes *scenes)
{
	CUstream streams[2];

	if (wl_new_stream(scenes, &streams[0]) || wl_new_stream(scenes, &streams[1]) ||
	    wl_scene_launch(scenes, streams[0], wl_persistent_us) ||
	    wl_some_launches(scenes, streams[1]))
		return -1;
	return wl_wait(scenes, streams[0]);
}

// wl_scene_allocation makes the process's first allocation beside a running kernel. The allocation
// is asynchronous if the memory comes from the driver's pool, and never waits.
static int wl_scene_allocation(struct wl_scenes *scenes)
{
	const struct wl_driver *driver = &scenes->session.driver;
	CUdeviceptr address;
	CUstream stream;
	double began;

	if (wl_new_stream(scenes, &stream) || wl_scene_launch(scenes, stream, wl_persistent_us))
		return -1;
	began = wl_now();
	if (wl_session_check(&scenes->session, "cuMemAlloc",
			     WL_CALL(driver, mem_alloc, &address, 1 << 20)))
		return -1;
	wl_scene_timed(scenes, began);
	return wl_wait(scenes, stream);
}

// ---- two GPUs

struct wl_second {
	struct wl_scenes own;
	CUstream stream;
	pthread_t thread;
	int failed;
};

static int wl_second_play(struct wl_scenes *scenes)
{
	struct wl_session *session = &scenes->session;
	const struct wl_driver *driver = &session->driver;
	CUmodule module;
	CUstream stream;

	if (wl_session_check(session, "cuDevicePrimaryCtxRetain",
			     WL_CALL(driver, primary_retain, &session->context, session->device)) ||
	    wl_session_check(session, "cuCtxSetCurrent",
			     WL_CALL(driver, ctx_set_current, session->context)) ||
	    wl_session_check(session, "cuModuleLoadData",
			     WL_CALL(driver, module_load, &module, wl_spin_ptx)) ||
	    wl_session_check(session, "cuModuleGetFunction",
			     WL_CALL(driver, module_function, &session->spin, module, "spin")) ||
	    wl_new_stream(scenes, &stream))
		return -1;
	return wl_some_launches(scenes, stream);
}

static void *wl_second_run(void *argument)
{
	struct wl_second *second = argument;

	second->failed = wl_second_play(&second->own);
	return NULL;
}

// wl_load loads code. A driver loads code with the module, or at the look-up of one of the module's
// functions.
static int wl_load(struct wl_scenes *scenes)
{
	struct wl_session *session = &scenes->session;
	const struct wl_driver *driver = &session->driver;
	double began = wl_now();
	CUfunction function;
	CUmodule module;

	if (wl_session_check(session, "cuModuleLoadData",
			     WL_CALL(driver, module_load, &module, wl_spin_ptx)) ||
	    wl_session_check(session, "cuModuleGetFunction",
			     WL_CALL(driver, module_function, &function, module, "spin")))
		return -1;
	scenes->loading = wl_now() - began;
	return 0;
}

// wl_scene_two_gpus runs a long kernel on the first GPU, and loads code meanwhile, which may wait
// for the kernel. A thread works on the second GPU, on which no work waits.
static int wl_scene_two_gpus(struct wl_scenes *scenes)
{
	struct wl_session *session = &scenes->session;
	struct wl_second second = {.own = *scenes};
	CUstream stream;
	int failed;

	second.own.session.device = scenes->session.device + 1;
	if (wl_new_stream(scenes, &stream) || wl_scene_launch(scenes, stream, wl_persistent_us) ||
	    pthread_create(&second.thread, NULL, wl_second_run, &second) != 0)
		return -1;
	failed = wl_load(scenes);
	pthread_join(second.thread, NULL);
	scenes->longest = second.own.longest;
	if (!failed && second.failed)
		return wl_session_check(session, second.own.session.call, second.own.session.result);
	return failed || wl_wait(scenes, stream) ? -1 : 0;
}

// ---- a full queue

// wl_crowd_run fills the queue of its GPU behind a long kernel, so that its launches wait for room.
static void *wl_crowd_run(void *argument)
{
	enum { more_than_fits = 3000, before = 1000 };
	struct wl_second *crowd = argument;
	struct wl_scenes *scenes = &crowd->own;
	struct wl_session *session = &scenes->session;
	CUstream stream = crowd->stream;

	crowd->failed = wl_session_check(session, "cuCtxSetCurrent",
					 WL_CALL(&session->driver, ctx_set_current, session->context));
	for (int i = 0; !crowd->failed && i < before; i++)
		crowd->failed = wl_scene_launch(scenes, stream, 1);
	crowd->failed = crowd->failed || wl_wait(scenes, stream) ||
			wl_scene_launch(scenes, stream, wl_persistent_us);
	for (int i = 0; !crowd->failed && i < more_than_fits; i++)
		crowd->failed = wl_scene_launch(scenes, stream, 1);
	return NULL;
}

// wl_ask asks whether a stream has work.
static int wl_ask(struct wl_scenes *scenes, CUstream stream)
{
	double began = wl_now();
	CUresult result = WL_CALL(&scenes->session.driver, stream_query, stream);

	wl_scene_timed(scenes, began);
	return wl_session_check(&scenes->session, "cuStreamQuery",
				result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result);
}

// wl_make_and_destroy makes a stream in another context and destroys the stream.
static int wl_make_and_destroy(struct wl_scenes *scenes, CUcontext there)
{
	const struct wl_driver *driver = &scenes->session.driver;
	double began = wl_now();
	CUstream stream;

	if (wl_session_check(&scenes->session, "cuCtxSetCurrent",
			     WL_CALL(driver, ctx_set_current, there)) ||
	    wl_new_stream(scenes, &stream) ||
	    wl_session_check(&scenes->session, "cuStreamDestroy",
			     WL_CALL(driver, stream_destroy, stream)))
		return -1;
	wl_scene_timed(scenes, began);
	return wl_session_check(&scenes->session, "cuCtxSetCurrent",
				WL_CALL(driver, ctx_set_current, scenes->session.context));
}

// wl_scene_full makes one thread wait for room in the queue of the first GPU. Meanwhile, calls that
// need no room do not wait. Examples are queries on the first GPU, and the creation and destruction
// of streams on the second GPU.
static int wl_scene_full(struct wl_scenes *scenes)
{
	struct wl_session *session = &scenes->session;
	const struct wl_driver *driver = &session->driver;
	struct wl_second crowd = {.own = *scenes};
	CUcontext second;
	CUstream idle;
	int failed = 0;

	if (wl_new_stream(scenes, &idle) || wl_new_stream(scenes, &crowd.stream))
		return -1;
	if (wl_session_check(session, "cuDevicePrimaryCtxRetain",
			     WL_CALL(driver, primary_retain, &second, session->device + 1)) ||
	    wl_make_and_destroy(scenes, second) ||
	    pthread_create(&crowd.thread, NULL, wl_crowd_run, &crowd) != 0)
		return -1;
	wl_scene_sleep(wl_persistent_us / 10 / 1e6); // by this time the queue is full
	scenes->longest = 0;
	for (int i = 0; !failed && i < 200; i++) {
		failed = wl_ask(scenes, idle) || wl_ask(scenes, crowd.stream) ||
			 wl_make_and_destroy(scenes, second);
		wl_scene_sleep(1e-3);
	}
	pthread_join(crowd.thread, NULL);
	if (crowd.failed)
		return wl_session_check(session, crowd.own.session.call, crowd.own.session.result);
	return failed ? -1 : 0;
}

// wl_scene_unlike launches kernels of many kinds behind a long kernel. `longest` is the time of all
// launches.
static int wl_scene_unlike(struct wl_scenes *scenes)
{
	enum { kinds = 40 };
	struct wl_session *session = &scenes->session;
	uint64_t ns = (uint64_t)(scenes->kernel_us * 1e3);
	void *parameters[] = {&ns};
	CUstream stream;
	double began;

	if (wl_new_stream(scenes, &stream) || wl_scene_launch(scenes, stream, wl_persistent_us))
		return -1;
	began = wl_now();
	for (unsigned blocks = 3; blocks < 3 + kinds; blocks++)
		if (wl_session_check(session, "cuLaunchKernel",
				     WL_CALL(&session->driver, launch, session->spin, blocks, 1, 1, 1, 1, 1, 0, stream,
					     parameters, NULL)))
			return -1;
	wl_scene_timed(scenes, began);
	return wl_wait(scenes, stream);
}

// wl_scene_lazy uses code that the driver loads at its first use, beside work of another stream.
static int wl_scene_lazy(struct wl_scenes *scenes)
{
	struct wl_session *session = &scenes->session;
	const struct wl_driver *driver = &session->driver;
	CUmodule module;
	CUstream streams[2];

	if (wl_new_stream(scenes, &streams[0]) || wl_new_stream(scenes, &streams[1]))
		return -1;
	for (uint64_t i = 0; i < scenes->launches / 10; i++) {
		if (wl_session_check(session, "cuModuleLoadData",
				     WL_CALL(driver, module_load, &module, wl_spin_ptx)) ||
		    wl_scene_launch(scenes, streams[0], scenes->kernel_us * 10) ||
		    wl_session_check(session, "cuModuleGetFunction",
				     WL_CALL(driver, module_function, &session->spin, module, "spin")) ||
		    wl_scene_launch(scenes, streams[1], scenes->kernel_us) ||
		    wl_wait(scenes, streams[1]) || wl_wait(scenes, streams[0]))
			return -1;
		wl_scene_sleep(scenes->idle_us * 10 / 1e6);
	}
	return 0;
}

// wl_scene_constructor opens a library whose constructor uses CUDA.
static int wl_scene_constructor(struct wl_scenes *scenes)
{
	char *message = scenes->session.message;
	double began = wl_now();
	int (*result)(void);
	void *library;
	void *symbol;

	library = scenes->module ? dlopen(scenes->module, RTLD_NOW) : NULL;
	wl_scene_timed(scenes, began);
	symbol = library ? dlsym(library, "wl_constructed") : NULL;
	if (!symbol) {
		snprintf(message, sizeof scenes->session.message, "--module: %s",
			 scenes->module ? dlerror() : "which library?");
		return -1;
	}
	memcpy(&result, &symbol, sizeof result);
	return wl_session_check(&scenes->session, "a constructor's call", result()) ||
			       wl_scene_launches(scenes) ? -1 : 0;
}

// ---- calls that a library between a program and its driver makes by itself

static CUresult wl_call_event(const struct wl_driver *driver, const char *name, CUstream stream)
{
	CUevent event;
	float ms;
	CUresult result = WL_CALL(driver, event_create, &event, 0);

	if (result || strcmp(name, "cuEventCreate") == 0)
		return result;
	result = WL_CALL(driver, event_record, event, stream);
	if (result || strcmp(name, "cuEventRecord") == 0)
		return result;
	result = WL_CALL(driver, stream_synchronize, stream);
	if (result)
		return result;
	if (strcmp(name, "cuEventQuery") == 0)
		return WL_CALL(driver, event_query, event);
	return WL_CALL(driver, event_elapsed, &ms, event, event);
}

static CUresult wl_call(const struct wl_driver *driver, const char *name, CUstream stream)
{
	CUcontext context;
	CUdevice device;
	int status;

	if (strcmp(name, "cuStreamQuery") == 0)
		return WL_CALL(driver, stream_query, stream);
	if (strcmp(name, "cuStreamIsCapturing") == 0)
		return WL_CALL(driver, stream_capturing, stream, &status);
	if (strcmp(name, "cuStreamGetCtx") == 0)
		return WL_CALL(driver, stream_context, stream, &context);
	if (strcmp(name, "cuStreamGetDevice") == 0)
		return WL_CALL(driver, stream_device, stream, &device);
	return wl_call_event(driver, name, stream);
}

// wl_scene_call calls one function of the driver repeatedly, on an idle stream.
static int wl_scene_call(struct wl_scenes *scenes)
{
	static const char *const names[] = {
		"cuEventCreate", "cuEventElapsedTime", "cuEventQuery", "cuEventRecord",
		"cuStreamGetCtx", "cuStreamGetDevice", "cuStreamIsCapturing", "cuStreamQuery",
	};
	struct wl_session *session = &scenes->session;
	const char *name = NULL;
	CUstream stream;

	for (size_t i = 0; scenes->call && i < sizeof names / sizeof *names; i++)
		if (strcmp(scenes->call, names[i]) == 0)
			name = names[i];
	if (!name) {
		snprintf(session->message, sizeof session->message,
			 "--call must be one of a few functions of events and streams");
		return -1;
	}
	if (wl_new_stream(scenes, &stream))
		return -1;
	for (uint64_t i = 0; i < scenes->launches; i++)
		if (wl_session_check(session, name, wl_call(&session->driver, name, stream)))
			return -1;
	return 0;
}

const struct wl_scene wl_wait_scenes[] = {
	{"launches", "kernels, with a wait for each kernel", wl_scene_launches},
	{"green", "kernels in a stream of a green context, with a wait for each kernel", wl_scene_green},
	{"row", "kernels, with one wait at the end", wl_scene_row},
	{"paced", "kernels with pauses, with one wait at the end", wl_scene_paced},
	{"persistent", "kernels beside a kernel of half a second", wl_scene_persistent},
	{"allocation", "a first allocation beside a kernel of half a second", wl_scene_allocation},
	{"two-gpus", "a long kernel and a load of code on one GPU, kernels on the next GPU", wl_scene_two_gpus},
	{"full", "a full queue and queries on one GPU, other streams on the next GPU", wl_scene_full},
	{"unlike", "kernels of many kinds behind a long kernel", wl_scene_unlike},
	{"lazy", "first uses of functions while other functions run", wl_scene_lazy},
	{"call", "the driver's function --call, repeatedly", wl_scene_call},
	{"constructor", "the load of a library whose constructor uses CUDA", wl_scene_constructor},
	{NULL, NULL, NULL},
};
