// SPDX-License-Identifier: Apache-2.0

// storm allocates and frees device memory at random, in many threads, by all ways at once, and
// forks meanwhile. A test may kill storm at any moment. Out of memory is an expected result. Every
// other failure ends the storm.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "json.h"
#include "storm.h"

// wl_childhood runs a child without exec. The driver does not work in the child, because the child
// must not take memory that is charged to no process.
__attribute__((noreturn)) static void wl_childhood(struct wl_storm *storm,
						   uint64_t random)
{
	const struct wl_driver *driver = &storm->session.driver;
	CUdeviceptr pointer;

	alarm(wl_child_patience_s);
	if (WL_CALL(driver, mem_alloc, &pointer, 1 << 20) == CUDA_SUCCESS)
		_exit(2);
	if (wl_below(&random, 2) && WL_CALL(driver, init, 0) == CUDA_SUCCESS &&
	    WL_CALL(driver, mem_alloc, &pointer, 1 << 20) == CUDA_SUCCESS)
		_exit(3);
	usleep((useconds_t)wl_below(&random, 200000)); // the child may outlive its parent
	_exit(0);
}

// wl_new_life runs a child with exec. The child is a small storm, and outlives a killed parent.
__attribute__((noreturn)) static void wl_new_life(const struct wl_storm *storm,
						  uint64_t random)
{
	const struct wl_storm_options *options = storm->options;
	char device[24], seed[24], threads[24], largest[24], lookup[24];
	char *arguments[] = {
		(char *)(uintptr_t)storm->program, "--threads", threads, "--seed", seed,
		"--device", device, "--largest", largest, "--lookup", lookup,
		"--library", (char *)(uintptr_t)options->common.library,
		"--ways", (char *)(uintptr_t)options->ways,
		"--duration", "0.5", "--fork-period", "0", NULL,
	};
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	alarm(wl_child_patience_s);
	snprintf(device, sizeof device, "%llu",
		 (unsigned long long)options->common.device);
	snprintf(seed, sizeof seed, "%llu", (unsigned long long)(random >> 8));
	snprintf(threads, sizeof threads, "%d", wl_child_threads);
	snprintf(largest, sizeof largest, "%llu",
		 (unsigned long long)options->largest);
	snprintf(lookup, sizeof lookup, "%s", options->common.lookup);
	if (null >= 0)
		dup2(null, STDOUT_FILENO);
	execv("/proc/self/exe", arguments);
	_exit(4);
}

static void wl_collect(struct wl_storm *storm, int flags)
{
	int status;

	while (storm->children > 0) {
		pid_t pid = waitpid(-1, &status, flags);

		if (pid == 0 || (pid < 0 && errno != EINTR))
			return;
		if (pid < 0)
			continue;
		storm->children--;
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			continue;
		storm->child_failures++;
		storm->child_status = status;
		atomic_store(&storm->stop, true);
	}
}

static void wl_fork(struct wl_storm *storm, uint64_t *random)
{
	bool exec = wl_below(random, 3) == 0;
	uint64_t seed = wl_random(random);
	pid_t pid;

	if (storm->children >= wl_most_children)
		return;
	pid = fork();
	if (pid == 0 && exec)
		wl_new_life(storm, seed);
	if (pid == 0)
		wl_childhood(storm, wl_seeded(seed, 0));
	if (pid < 0)
		return;
	storm->children++;
	if (exec)
		storm->execs++;
	else
		storm->forks++;
}

// wl_watch forks until the storm is over.
static void wl_watch(struct wl_storm *storm)
{
	double period = storm->options->fork_period;
	uint64_t random = wl_seeded(storm->options->seed, wl_most_ways);

	while (!atomic_load(&storm->stop) && wl_now() < storm->deadline) {
		double part = (double)wl_below(&random, 2000) / 1000;
		double until = wl_now() + (period > 0 ? period * part : 0.05);

		wl_sleep_until(until < storm->deadline ? until : storm->deadline);
		if (period > 0)
			wl_fork(storm, &random);
		wl_collect(storm, WNOHANG);
	}
}

// ---- the whole storm

// wl_start makes the context. If the container is full, wl_start waits for the context.
static int wl_start(struct wl_storm *storm)
{
	struct wl_session *session = &storm->session;

	while (wl_session_open(session, &storm->options->common)) {
		if (session->result != CUDA_ERROR_OUT_OF_MEMORY)
			return -1;
		storm->start_refusals++;
		if (wl_now() > storm->deadline)
			return 1;
		wl_sleep_until(wl_now() + 0.02);
	}
	return 0;
}

static size_t wl_run(struct wl_storm *storm, struct wl_thread *threads)
{
	size_t started = 0;

	for (; started < storm->options->threads; started++) {
		struct wl_thread *thread = &threads[started];

		thread->storm = storm;
		thread->session = storm->session;
		thread->random = wl_seeded(storm->options->seed, started);
		thread->greed = 80;
		if (pthread_create(&thread->id, NULL, wl_storm_work, thread))
			break;
	}
	wl_watch(storm);
	for (size_t i = 0; i < started; i++)
		pthread_join(threads[i].id, NULL);
	wl_collect(storm, 0);
	return started;
}

static void wl_report(const struct wl_storm *storm,
		      const struct wl_session *failed, double wall)
{
	bool fine = !failed && !storm->child_failures;

	wl_json_open(NULL);
	wl_json_integer("pid", getpid());
	wl_json_bytes("seed", storm->options->seed);
	wl_json_bytes("threads", storm->options->threads);
	wl_json_bytes("device", storm->options->common.device);
	wl_json_bytes("frees", storm->frees);
	wl_json_bytes("refusals", storm->refusals);
	wl_json_bytes("start_refusals", storm->start_refusals);
	wl_json_bytes("forks", storm->forks);
	wl_json_bytes("execs", storm->execs);
	wl_json_bytes("child_failures", storm->child_failures);
	wl_json_integer("child_status", storm->child_status);
	wl_json_open("takes");
	for (size_t i = 0; i < storm->way_count; i++)
		wl_json_bytes(storm->ways[i]->name, storm->takes[i]);
	wl_json_close();
	wl_json_number("wall_s", wall);
	wl_json_string("outcome", fine ? "deadline" : "error");
	if (failed)
		wl_session_report(failed);
	wl_json_close();
}

static int wl_storm_main(struct wl_storm *storm)
{
	size_t count = storm->options->threads;
	struct wl_thread *threads = calloc(count, sizeof *threads);
	const struct wl_session *failed = NULL;
	double began = wl_now();
	size_t started = 0;
	int refused;

	if (!threads) {
		fprintf(stderr, "%s: out of host memory\n", storm->program);
		return EXIT_FAILURE;
	}
	storm->deadline = began + storm->options->duration;
	refused = wl_start(storm);
	if (refused < 0)
		failed = &storm->session;
	if (!refused)
		started = wl_run(storm, threads);
	for (size_t i = 0; i < started; i++)
		if (threads[i].failed)
			failed = &threads[i].session;
	if (!refused && started < count) {
		snprintf(storm->session.message, sizeof storm->session.message,
			 "cannot start thread %zu of %zu", started + 1, count);
		failed = &storm->session;
	}
	wl_report(storm, failed, wl_now() - began);
	free(threads);
	return failed || storm->child_failures ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int wl_choose_ways(struct wl_storm *storm)
{
	char name[32];
	const char *at = storm->options->ways;

	if (strcmp(at, "all") == 0) {
		while (storm->way_count < wl_most_ways &&
		       (storm->ways[storm->way_count] = wl_way_at(storm->way_count)))
			storm->way_count++;
		return 0;
	}
	while (storm->way_count < wl_most_ways) {
		size_t length = strcspn(at, ",");

		snprintf(name, sizeof name, "%.*s", (int)length, at);
		storm->ways[storm->way_count] = wl_way_find(name);
		if (!storm->ways[storm->way_count++]) {
			fprintf(stderr, "%s: unknown way \"%s\" (fill --list names them)\n",
				storm->program, name);
			return -1;
		}
		at += length;
		if (*at++ == '\0')
			return 0;
	}
	return 0;
}

static const char *wl_problem(const struct wl_storm_options *options)
{
	if (options->threads == 0 || options->threads > 256)
		return "--threads must be 1 to 256";
	if (options->largest == 0 || options->largest > UINT64_C(1) << 40)
		return "--largest must be one byte to 1024GiB";
	if (options->pause >= 1000000)
		return "--pause must be below 1000000";
	return NULL;
}

int main(int argc, char **argv)
{
	struct wl_storm_options options = {
		.common = WL_COMMON_DEFAULTS,
		.ways = "all",
		.threads = 64,
		.seed = 1,
		.largest = 256 << 20,
		.pause = 2000,
		.duration = 10,
		.fork_period = 0.1,
	};
	const struct wl_option table[] = {
		{"ways", WL_OPTION_TEXT, &options.ways,
		 "names of ways from fill --list, separated by commas (default all)"},
		{"threads", WL_OPTION_COUNT, &options.threads,
		 "threads (default 64)"},
		{"seed", WL_OPTION_COUNT, &options.seed,
		 "seed of all random choices (default 1)"},
		{"duration", WL_OPTION_NUMBER, &options.duration,
		 "seconds (default 10)"},
		{"largest", WL_OPTION_BYTES, &options.largest,
		 "largest piece (default 256MiB)"},
		{"pause", WL_OPTION_COUNT, &options.pause,
		 "longest pause of a thread between two steps, in microseconds "
		 "(default 2000)"},
		{"fork-period", WL_OPTION_NUMBER, &options.fork_period,
		 "mean seconds between children (default 0.1); 0: none"},
		WL_COMMON_OPTIONS(options.common),
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	struct wl_storm storm = {.options = &options, .program = argv[0]};
	const char *problem;

	wl_options_parse(argc, argv,
			 "Allocate and free device memory at random, by every "
			 "way at once; print a summary as one JSON line.\n"
			 "Exit status: 0 time over and no failure but refusals; "
			 "1 any other failure; 64 wrong usage.",
			 table);
	problem = wl_problem(&options);
	if (problem) {
		fprintf(stderr, "%s: %s\n", argv[0], problem);
		return WL_EXIT_USAGE;
	}
	if (wl_choose_ways(&storm))
		return WL_EXIT_USAGE;
	return wl_storm_main(&storm);
}
