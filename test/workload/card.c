// SPDX-License-Identifier: Apache-2.0

// card measures the driver and the card. The measurements are the cost of a start, the management
// library's report, and the drift of the GPU's clock against the host's clock. The program also
// measures the number of hardware queues, and the length of time slices.

#include "card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"
#include "nvml_view.h"

struct wl_card_options {
	struct wl_common common;
	const char *look, *nvml;
	uint64_t kernels;
};

// ---- start

static void wl_view(const char *when, const char *nvml)
{
	wl_json_open(when);
	wl_nvml_view(nvml);
	wl_json_close();
}

static void wl_tell_name(const char *name)
{
	wl_json_string(NULL, name);
}

// wl_identity compares the addresses that the driver's two kinds of look-up return.
static void wl_identity(const struct wl_session *session, const struct wl_card_options *options)
{
	struct wl_driver exported;
	char why[256];
	size_t both = 0;

	wl_json_array("lookups_differ");
	if (wl_driver_open(&exported, options->common.library, WL_LOOKUP_DLSYM, why, sizeof why) == 0)
		both = wl_driver_differences(&session->driver, &exported, wl_tell_name);
	wl_json_array_end();
	wl_json_bytes("lookups", both);
}

static int wl_start(struct wl_session *session, const struct wl_card_options *options)
{
	enum { multiprocessors = 16 };
	const struct wl_driver *driver = &session->driver;
	double began = wl_now();
	double initialised;
	int version = 0, count = 0;
	char name[96] = "";

	wl_view("before", options->nvml);
	began = wl_now();
	if (wl_session_device(session, &options->common))
		return -1;
	initialised = wl_now();
	if (wl_session_check(session, "cuDevicePrimaryCtxRetain",
			     WL_CALL(driver, primary_retain, &session->context, session->device)))
		return -1;
	wl_json_number("init_ms", (initialised - began) * 1e3);
	wl_json_number("context_ms", (wl_now() - initialised) * 1e3);
	WL_CALL(driver, driver_version, &version);
	WL_CALL(driver, device_name, name, sizeof name, session->device);
	WL_CALL(driver, device_attribute, &count, multiprocessors, session->device);
	wl_json_integer("cuda_version", version);
	wl_json_string("name", name);
	wl_json_string("uuid", session->uuid);
	wl_json_bytes("total_bytes", session->total);
	wl_json_integer("multiprocessors", count);
	wl_identity(session, options);
	wl_view("after", options->nvml);
	return 0;
}

// ---- clock

// wl_moment is the time of an event by the host's clock and by the GPU's clock.
struct wl_moment {
	double host, gpu;
};

// wl_read_clocks records events on an idle stream, and uses the event with the least delay.
static int wl_read_clocks(struct wl_session *session, CUevent base, CUevent event,
			  struct wl_moment *moment)
{
	enum { tries = 64 };
	const struct wl_driver *driver = &session->driver;
	double shortest = 1e9;

	for (int i = 0; i < tries; i++) {
		double began = wl_now();
		double ended;
		float ms = 0;

		if (wl_session_check(session, "cuEventRecord",
				     WL_CALL(driver, event_record, event, NULL)) ||
		    wl_session_check(session, "cuEventSynchronize",
				     WL_CALL(driver, event_synchronize, event)))
			return -1;
		ended = wl_now();
		if (wl_session_check(session, "cuEventElapsedTime",
				     WL_CALL(driver, event_elapsed, &ms, base, event)))
			return -1;
		if (ended - began < shortest) {
			shortest = ended - began;
			*moment = (struct wl_moment){(began + ended) / 2, (double)ms / 1e3};
		}
		wl_sleep_until(ended + 1e-3);
	}
	return 0;
}

// wl_clock reads both clocks. wl_clock reads both clocks again when standard input has a line or
// ends.
static int wl_clock(struct wl_session *session)
{
	const struct wl_driver *driver = &session->driver;
	struct wl_moment from, to;
	CUevent base, event;

	if (wl_session_check(session, "cuEventCreate", WL_CALL(driver, event_create, &base, 0)) ||
	    wl_session_check(session, "cuEventCreate", WL_CALL(driver, event_create, &event, 0)) ||
	    wl_session_check(session, "cuEventRecord", WL_CALL(driver, event_record, base, NULL)) ||
	    wl_session_check(session, "cuEventSynchronize",
			     WL_CALL(driver, event_synchronize, base)) ||
	    wl_read_clocks(session, base, event, &from))
		return -1;
	(void)getchar();
	if (wl_read_clocks(session, base, event, &to))
		return -1;
	wl_json_number("seconds", to.host - from.host);
	wl_json_number("drift_ppm",
		       ((to.gpu - from.gpu) / (to.host - from.host) - 1) * 1e6);
	return 0;
}

// ---- queues

enum { wl_streams = 40 };

struct wl_queues {
	CUstream streams[wl_streams];
	CUevent events[wl_streams];
};

static int wl_queues_make(struct wl_session *session, struct wl_queues *queues)
{
	const struct wl_driver *driver = &session->driver;
	const unsigned non_blocking = 1;

	for (int i = 0; i < wl_streams; i++)
		if (wl_session_check(session, "cuStreamCreate",
				     WL_CALL(driver, stream_create, &queues->streams[i],
					     non_blocking)) ||
		    wl_session_check(session, "cuEventCreate",
				     WL_CALL(driver, event_create, &queues->events[i], 0)))
			return -1;
	return 0;
}

// wl_queues_fill runs a kernel in the first stream, and records an event behind the kernel and in
// each other stream.
static int wl_queues_fill(struct wl_session *session, const struct wl_queues *queues)
{
	const struct wl_driver *driver = &session->driver;
	uint64_t long_ns = 40000000;
	void *parameters[] = {&long_ns};

	if (wl_session_check(session, "cuLaunchKernel",
			     WL_CALL(driver, launch, session->spin, 1, 1, 1, 1, 1, 1, 0,
				     queues->streams[0], parameters, NULL)))
		return -1;
	for (int i = 0; i < wl_streams; i++)
		if (wl_session_check(session, "cuEventRecord",
				     WL_CALL(driver, event_record, queues->events[i],
					     queues->streams[i])))
			return -1;
	return 0;
}

// wl_queues finds the first stream whose work waits for a kernel of another stream. The number of
// hardware queues equals the number of streams before this stream. 0 means that no stream waits.
// The result is void if the kernel ended before all streams were checked.
static int wl_queues(struct wl_session *session)
{
	enum { tries = 10 };
	const struct wl_driver *driver = &session->driver;
	struct wl_queues queues;
	bool running = false;
	int first = 0;

	if (wl_queues_make(session, &queues))
		return -1;
	for (int try = 0; try < tries && !running; try++) {
		first = 0;
		if (wl_queues_fill(session, &queues))
			return -1;
		wl_sleep_until(wl_now() + 10e-3);
		for (int i = wl_streams - 1; i > 0; i--)
			if (WL_CALL(driver, event_query, queues.events[i]) == CUDA_ERROR_NOT_READY)
				first = i;
		running = WL_CALL(driver, event_query, queues.events[0]) == CUDA_ERROR_NOT_READY;
		if (wl_session_check(session, "cuCtxSynchronize", WL_CALL(driver, ctx_synchronize)))
			return -1;
	}
	if (!running) {
		snprintf(session->message, sizeof session->message,
			 "this machine is too busy to detect queues");
		return -1;
	}
	wl_json_integer("connections", first);
	wl_json_integer("streams", wl_streams);
	return 0;
}

static int wl_look(struct wl_session *session, const struct wl_card_options *options)
{
	if (strcmp(options->look, "start") == 0)
		return wl_start(session, options);
	if (wl_session_open(session, &options->common) || wl_session_load_spin(session))
		return -1;
	if (strcmp(options->look, "clock") == 0)
		return wl_clock(session);
	if (strcmp(options->look, "queues") == 0)
		return wl_queues(session);
	return wl_card_slice(session, options->kernels);
}

int main(int argc, char **argv)
{
	static const char *const looks[] = {"start", "clock", "queues", "slice"};
	static struct wl_session session;
	struct wl_card_options options = {
		.common = WL_COMMON_DEFAULTS,
		.look = "start",
		.nvml = "libnvidia-ml.so.1",
		.kernels = 20000,
	};
	const struct wl_option table[] = {
		{"look", WL_OPTION_TEXT, &options.look,
		 "start (default), clock (from now until standard input has a line), "
		 "queues, or slice (beside a process that saturates the GPU)"},
		{"kernels", WL_OPTION_COUNT, &options.kernels,
		 "number of 20 µs kernels for the search of slices (default 20000)"},
		{"nvml-library", WL_OPTION_TEXT, &options.nvml,
		 "the management library (default libnvidia-ml.so.1)"},
		WL_COMMON_OPTIONS(options.common),
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	bool known = false;
	int failed;

	wl_options_parse(argc, argv, "Measure the driver and the card; print the results as one "
				     "JSON line.", table);
	for (size_t i = 0; i < sizeof looks / sizeof *looks; i++)
		known = known || strcmp(options.look, looks[i]) == 0;
	if (!known || options.kernels < 2 || options.kernels > 1000000) {
		fprintf(stderr, "%s: --look must be start, clock, queues or slice, and --kernels "
				"2 to 1000000\n", argv[0]);
		return WL_EXIT_USAGE;
	}
	wl_json_open(NULL);
	wl_json_integer("pid", getpid());
	failed = wl_look(&session, &options);
	if (failed)
		wl_session_report(&session);
	wl_json_close();
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
