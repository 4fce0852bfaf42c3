// SPDX-License-Identifier: Apache-2.0

// latency launches a short kernel at a fixed period, like a server that answers requests. latency
// reports the time of each kernel from launch to end.

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "json.h"
#include "launch.h"

struct wl_latency_options {
	struct wl_common common;
	double kernel_us, period_ms, duration, warmup;
};

static int wl_compare(const void *left, const void *right)
{
	double a = *(const double *)left;
	double b = *(const double *)right;

	return (a > b) - (a < b);
}

// wl_quantile returns the smallest sample that at least `share` of all samples do not exceed.
static double wl_quantile(const double *sorted, size_t count, double share)
{
	double rank = share * (double)count;
	size_t index = (size_t)rank;

	if ((double)index == rank && index > 0)
		index--;
	return sorted[index < count ? index : count - 1];
}

static int wl_measure(struct wl_launcher *launcher, double period,
		      double *samples, size_t count)
{
	double next = wl_now();

	for (size_t i = 0; i < count; i++) {
		double began;

		wl_sleep_until(next);
		began = wl_now();
		if (wl_launcher_launch(launcher))
			return -1;
		samples[i] = wl_now() - began;
		next += period;
		if (next < wl_now())
			next = wl_now(); // a late kernel causes no burst afterwards
	}
	return 0;
}

static void wl_report(const struct wl_session *session,
		      const struct wl_latency_options *options,
		      double *samples, size_t count)
{
	double sum = 0;

	qsort(samples, count, sizeof *samples, wl_compare);
	for (size_t i = 0; i < count; i++)
		sum += samples[i];
	wl_json_open(NULL);
	wl_json_integer("pid", getpid());
	wl_json_string("uuid", session->uuid);
	wl_json_number("kernel_us", options->kernel_us);
	wl_json_number("period_ms", options->period_ms);
	wl_json_bytes("samples", count);
	wl_json_number("mean_ms", sum / (double)count * 1e3);
	wl_json_number("p50_ms", wl_quantile(samples, count, 0.50) * 1e3);
	wl_json_number("p99_ms", wl_quantile(samples, count, 0.99) * 1e3);
	wl_json_number("max_ms", samples[count - 1] * 1e3);
	wl_session_report(session);
	wl_json_close();
}

enum { wl_first = 3 };

static size_t wl_warmup(const struct wl_latency_options *options)
{
	return (size_t)(options->warmup * 1e3 / options->period_ms);
}

// wl_latency_run also needs room for the samples of the warm-up.
static int wl_latency_run(struct wl_launcher *launcher,
			  const struct wl_latency_options *options,
			  double *samples, size_t count)
{
	if (wl_session_open(launcher->session, &options->common) ||
	    wl_session_load_spin(launcher->session) ||
	    wl_launcher_prepare(launcher))
		return -1;
	// The first launches load code. The launches of --warmup cover costs that occur once.
	if (wl_measure(launcher, 0, samples, wl_first) ||
	    wl_measure(launcher, options->period_ms / 1e3, samples, wl_warmup(options)))
		return -1;
	return wl_measure(launcher, options->period_ms / 1e3, samples, count);
}

int main(int argc, char **argv)
{
	struct wl_latency_options options = {
		.common = WL_COMMON_DEFAULTS,
		.kernel_us = 1000,
		.period_ms = 20,
		.duration = 10,
	};
	const struct wl_option table[] = {
		{"kernel-us", WL_OPTION_NUMBER, &options.kernel_us,
		 "length of the kernel in µs (default 1000)"},
		{"warmup", WL_OPTION_NUMBER, &options.warmup,
		 "seconds of uncounted launches before the measurement (default 0)"},
		{"period-ms", WL_OPTION_NUMBER, &options.period_ms,
		 "time from one launch to the next (default 20)"},
		{"duration", WL_OPTION_NUMBER, &options.duration,
		 "seconds to measure (default 10)"},
		WL_COMMON_OPTIONS(options.common),
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	static struct wl_session session;
	struct wl_launcher launcher = {
		.session = &session,
		.pattern = wl_pattern_find("sync"),
	};
	double launches;
	double *samples;
	int status = EXIT_SUCCESS;

	wl_options_parse(argc, argv,
			 "Launch one kernel per period and wait for the kernel; print "
			 "the latencies as one JSON line.", table);
	launches = options.period_ms > 0 ?
			   options.duration * 1e3 / options.period_ms : 0;
	if (launches < 1 || launches > 1e7 || options.warmup > 1e4) {
		fprintf(stderr, "%s: --duration must be 1 to 10000000 times "
				"--period-ms\n", argv[0]);
		return WL_EXIT_USAGE;
	}
	launcher.kernel_ns = (uint64_t)(options.kernel_us * 1e3);
	samples = calloc((size_t)launches + wl_warmup(&options) + wl_first, sizeof *samples);
	if (!samples) {
		fprintf(stderr, "%s: out of host memory\n", argv[0]);
		return EXIT_FAILURE;
	}
	if (wl_latency_run(&launcher, &options, samples, (size_t)launches))
		status = wl_session_fail(&session, argv[0]);
	else
		wl_report(&session, &options, samples, (size_t)launches);
	free(samples);
	return status;
}
