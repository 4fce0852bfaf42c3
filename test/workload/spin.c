// SPDX-License-Identifier: Apache-2.0

// spin keeps the GPU busy with kernels of a known length, launched in a named pattern. spin reports
// the number of kernels that ran.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"
#include "launch.h"

struct wl_spin_options {
	struct wl_common common;
	const char *pattern;
	double kernel_us, other_us, duration, warmup;
	uint64_t count, graph_nodes, streams, depth, blocks, shapes, run, other_run, burst;
	bool list, wait_line;
};

enum { WL_MARKS = 3 };

// wl_spin is the measurement. The program launches kernels in batches, with an event after each
// batch. Two batches are in flight, so that the GPU never waits for the program. The program's
// queue does not grow without bound.
struct wl_spin {
	struct wl_session session;
	struct wl_launcher launcher;
	CUevent marks[WL_MARKS]; // the ends of the last batches, in a ring
	uint64_t batches;
	uint64_t launches; // since the measurement began
	double gpu_s;      // between the first event and the last completed event
};

static int wl_marks_create(struct wl_spin *spin)
{
	for (size_t i = 0; i < WL_MARKS; i++)
		if (wl_session_check(&spin->session, "cuEventCreate",
				     WL_CALL(&spin->session.driver,
					     event_create, &spin->marks[i], 0)))
			return -1;
	return 0;
}

// wl_collect waits for the end of a batch and adds the time since the end of the previous batch.
// Batch 0 is the mark at the start and contains no kernels.
static int wl_collect(struct wl_spin *spin, uint64_t batch)
{
	CUevent end = spin->marks[batch % WL_MARKS];
	CUevent begin = spin->marks[(batch + WL_MARKS - 1) % WL_MARKS];
	float milliseconds = 0;

	if (wl_session_check(&spin->session, "cuEventSynchronize",
			     WL_CALL(&spin->session.driver, event_synchronize,
				     end)))
		return -1;
	if (batch == 0)
		return 0;
	if (wl_session_check(&spin->session, "cuEventElapsedTime",
			     WL_CALL(&spin->session.driver, event_elapsed,
				     &milliseconds, begin, end)))
		return -1;
	spin->gpu_s += (double)milliseconds / 1e3;
	return 0;
}

static int wl_batch(struct wl_spin *spin, uint64_t launches)
{
	uint64_t batch = spin->batches;

	for (uint64_t i = 0; i < launches; i++)
		if (wl_launcher_launch(&spin->launcher))
			return -1;
	spin->launches += launches;
	if (wl_launcher_record(&spin->launcher, spin->marks[batch % WL_MARKS]))
		return -1;
	spin->batches++;
	return batch > 1 ? wl_collect(spin, batch - 1) : 0;
}

// wl_batch_size bounds a batch by depth, and by 20 ms of kernels, so that a
// measurement ends close to its duration.
static uint64_t wl_batch_size(const struct wl_spin *spin,
			      const struct wl_spin_options *options)
{
	double longest_us = options->other_us > options->kernel_us ?
				    options->other_us : options->kernel_us;
	double launch_us = longest_us *
			   (double)wl_launcher_kernels(&spin->launcher);
	uint64_t size = options->depth;

	if (launch_us > 0 && (double)size * launch_us > 20e3)
		size = (uint64_t)(20e3 / launch_us);
	return size ? size : 1;
}

static int wl_spin_for(struct wl_spin *spin,
		       const struct wl_spin_options *options, double duration,
		       uint64_t count)
{
	uint64_t size = wl_batch_size(spin, options);
	double end = wl_now() + duration;

	spin->batches = 0;
	spin->launches = 0;
	spin->gpu_s = 0;
	if (wl_batch(spin, 0) || wl_collect(spin, 0))
		return -1;
	while (count ? spin->launches < count : wl_now() < end) {
		uint64_t left = count ? count - spin->launches : size;

		if (wl_batch(spin, left < size ? left : size))
			return -1;
	}
	return spin->batches > 1 ? wl_collect(spin, spin->batches - 1) : 0;
}

// wl_mean_us returns the average length of a kernel.
static double wl_mean_us(const struct wl_spin_options *options)
{
	double run = (double)options->run, other_run = (double)options->other_run;

	if (options->other_us <= 0)
		return options->kernel_us;
	return (options->kernel_us * run + options->other_us * other_run) / (run + other_run);
}

static void wl_report(const struct wl_spin *spin,
		      const struct wl_spin_options *options, double wall)
{
	double kernels = (double)(spin->launches *
				  wl_launcher_kernels(&spin->launcher));

	wl_json_open(NULL);
	wl_json_string("pattern", options->pattern);
	wl_json_integer("pid", getpid());
	wl_json_string("uuid", spin->session.uuid);
	wl_json_number("kernel_us", options->kernel_us);
	wl_json_bytes("launches", spin->launches);
	wl_json_number("kernels", kernels);
	wl_json_number("wall_s", wall);
	wl_json_number("kernels_per_s", kernels / wall);
	wl_json_number("kernel_time_s", kernels * wl_mean_us(options) / 1e6);
	wl_json_number("event_time_s", spin->gpu_s);
	wl_session_report(&spin->session);
	wl_json_close();
}

// wl_wait_line prints that the program is ready, and waits for a line, so that several programs can
// begin together.
static void wl_wait_line(void)
{
	int c;

	puts("ready");
	fflush(stdout);
	do
		c = getchar();
	while (c != '\n' && c != EOF);
}

static int wl_spin_run(struct wl_spin *spin,
		       const struct wl_spin_options *options)
{
	double began;

	if (wl_session_open(&spin->session, &options->common) ||
	    wl_session_load_spin(&spin->session) || wl_marks_create(spin) ||
	    wl_launcher_prepare(&spin->launcher))
		return -1;
	if (options->wait_line)
		wl_wait_line();
	if (options->warmup > 0 &&
	    wl_spin_for(spin, options, options->warmup, 0))
		return -1;
	began = wl_now();
	if (wl_spin_for(spin, options, options->duration, options->count))
		return -1;
	wl_report(spin, options, wl_now() - began);
	return 0;
}

static const char *wl_options_problem(const struct wl_spin_options *options)
{
	if (options->streams == 0 || options->streams > WL_MAX_STREAMS)
		return "--streams must be 1 to 64";
	if (options->graph_nodes == 0 || options->graph_nodes > 100000)
		return "--graph-nodes must be 1 to 100000";
	if (options->depth == 0 || options->depth > 512)
		return "--depth must be 1 to 512";
	if (options->blocks == 0 || options->blocks > 1000000)
		return "--blocks must be 1 to 1000000";
	if (options->shapes == 0 || options->shapes > 1000000)
		return "--shapes must be 1 to 1000000";
	if (options->other_us > 0 && strcmp(options->pattern, "legacy") == 0)
		return "--other-us is not for the pattern legacy, whose kernels' "
		       "length is set once";
	if (options->burst == 0 || options->burst > 1000000)
		return "--burst must be 1 to 1000000";
	if (options->run == 0)
		return "--run must be at least 1";
	if (options->other_us > 10e6)
		return "--other-us must be at most 10000000";
	if (options->kernel_us > 10e6)
		return "--kernel-us must be at most 10000000";
	return NULL;
}

static void wl_launcher_set(struct wl_spin *spin, const struct wl_spin_options *options)
{
	spin->launcher = (struct wl_launcher){
		.session = &spin->session,
		.pattern = wl_pattern_find(options->pattern),
		.kernel_ns = (uint64_t)(options->kernel_us * 1e3),
		.graph_nodes = options->graph_nodes,
		.stream_count = options->streams,
		.blocks = options->blocks,
		.shapes = options->shapes,
		.other_ns = (uint64_t)(options->other_us * 1e3),
		.run = options->run,
		.other_run = options->other_run,
		.burst = options->burst,
	};
}

int main(int argc, char **argv)
{
	struct wl_spin_options options = {
		.common = WL_COMMON_DEFAULTS,
		.pattern = "async",
		.kernel_us = 200,
		.duration = 2,
		.graph_nodes = 20,
		.streams = 4,
		.depth = 256,
		.blocks = 1,
		.shapes = 1,
		.run = 1,
		.burst = 1,
	};
	const struct wl_option table[] = {
		{"pattern", WL_OPTION_TEXT, &options.pattern,
		 "pattern of launches (default async; see --list)"},
		{"list", WL_OPTION_FLAG, &options.list, "list the patterns"},
		{"kernel-us", WL_OPTION_NUMBER, &options.kernel_us,
		 "length of a kernel in µs (default 200)"},
		{"other-us", WL_OPTION_NUMBER, &options.other_us,
		 "length of every other run of kernels (default as --kernel-us)"},
		{"run", WL_OPTION_COUNT, &options.run,
		 "kernels in a run (default 1)"},
		{"other-run", WL_OPTION_COUNT, &options.other_run,
		 "kernels in every other run (default as --run)"},
		{"blocks", WL_OPTION_COUNT, &options.blocks,
		 "blocks of a kernel, of a thread each (default 1)"},
		{"burst", WL_OPTION_COUNT, &options.burst,
		 "launches before each wait, of patterns that wait (default 1)"},
		{"shapes", WL_OPTION_COUNT, &options.shapes,
		 "number of kernel sizes in turn, each larger by one block "
		 "(default 1)"},
		{"duration", WL_OPTION_NUMBER, &options.duration,
		 "seconds of launching (default 2)"},
		{"count", WL_OPTION_COUNT, &options.count,
		 "number of launches, instead of a duration"},
		{"warmup", WL_OPTION_NUMBER, &options.warmup,
		 "seconds of uncounted launches before the measurement (default 0)"},
		{"wait-line", WL_OPTION_FLAG, &options.wait_line,
		 "print \"ready\", and launch after a line on standard input"},
		{"graph-nodes", WL_OPTION_COUNT, &options.graph_nodes,
		 "kernels in the graph (default 20)"},
		{"streams", WL_OPTION_COUNT, &options.streams,
		 "streams used in turn (default 4)"},
		{"depth", WL_OPTION_COUNT, &options.depth,
		 "launches in a batch; two are in flight (default 256)"},
		WL_COMMON_OPTIONS(options.common),
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	static struct wl_spin spin;
	const char *problem;

	wl_options_parse(argc, argv,
			 "Keep the GPU busy with kernels of a known length; "
			 "print the number of kernels as one JSON line.\n"
			 "event_time_s is the time between events, with other "
			 "processes' slices.",
			 table);
	if (options.list) {
		wl_pattern_list();
		return EXIT_SUCCESS;
	}
	if (options.other_run == 0)
		options.other_run = options.run;
	problem = wl_options_problem(&options);
	if (problem) {
		fprintf(stderr, "%s: %s\n", argv[0], problem);
		return WL_EXIT_USAGE;
	}
	wl_launcher_set(&spin, &options);
	if (!spin.launcher.pattern) {
		fprintf(stderr, "%s: unknown pattern \"%s\" (--list names "
				"them)\n", argv[0], options.pattern);
		return WL_EXIT_USAGE;
	}
	if (wl_spin_run(&spin, &options))
		return wl_session_fail(&spin.session, argv[0]);
	return EXIT_SUCCESS;
}
