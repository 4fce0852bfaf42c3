// SPDX-License-Identifier: Apache-2.0

// storm takes and gives back device memory at random, in many threads, by every
// way at once, and forks meanwhile. It may be killed at any moment. Being
// refused with out of memory is part of it; every other failure ends it.

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "json.h"
#include "ways.h"

enum {
	wl_most_ways = 64,
	wl_most_held = 16,          // pieces of one thread
	wl_most_children = 8,       // at a time
	wl_child_threads = 4,       // of a child that calls exec
	wl_child_patience_s = 20,   // after which a child has hung
	wl_phase_steps = 64,        // between changes of a thread's mood
};

struct wl_storm_options {
	struct wl_common common;
	const char *ways;
	uint64_t threads, seed, largest, pause;
	double duration, fork_period;
};

// wl_storm is what the threads share.
struct wl_storm {
	const struct wl_storm_options *options;
	const char *program;
	struct wl_session session; // copied by each thread
	const struct wl_way *ways[wl_most_ways];
	size_t way_count;
	double deadline;
	atomic_bool stop;
	atomic_size_t takes[wl_most_ways]; // granted, by way
	atomic_size_t refusals, gives;
	size_t start_refusals, forks, execs, child_failures;
	int child_status; // of the child that failed last
	size_t children;
};

struct wl_held {
	const struct wl_way *way;
	struct wl_filler *filler;
	struct wl_grant grant;
};

struct wl_thread {
	struct wl_storm *storm;
	pthread_t id;
	uint64_t random;
	bool failed;
	unsigned greed; // of 100 steps, those that take
	struct wl_session session;
	CUstream stream;
	struct wl_filler fillers[wl_most_ways];
	struct wl_held held[wl_most_held];
	size_t held_count;
};

// wl_random is xorshift64*: a storm is repeated by its seed as far as the
// kernel's scheduling of threads allows.
static uint64_t wl_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(2685821657736338717) >> 16;
}

static uint64_t wl_below(uint64_t *state, uint64_t bound)
{
	return wl_random(state) % bound;
}

static uint64_t wl_seeded(uint64_t seed, uint64_t stream)
{
	return (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^
	       (stream + 1) * UINT64_C(0xbf58476d1ce4e5b9);
}

// Sizes are even over the orders of magnitude, as programs' are.
static size_t wl_size(struct wl_thread *thread, size_t unit, size_t largest)
{
	unsigned bits = 0;
	uint64_t bytes;

	while (largest >> bits > 1)
		bits++;
	bytes = wl_below(&thread->random,
			 UINT64_C(1) << (1 + wl_below(&thread->random, bits + 1)));
	if (bytes > largest)
		bytes = largest;
	return bytes < unit ? unit : bytes / unit * unit;
}

static int wl_prepare_way(struct wl_thread *thread, size_t number)
{
	struct wl_filler *filler = &thread->fillers[number];
	const struct wl_way *way = thread->storm->ways[number];

	if (filler->session)
		return 0;
	*filler = (struct wl_filler){.session = &thread->session,
				     .stream = thread->stream,
				     .granularity = 1};
	if (!way->prepare || way->prepare(filler) == 0)
		return 0;
	filler->session = NULL;
	return -1;
}

static bool wl_refused(const struct wl_thread *thread)
{
	return thread->session.result == CUDA_ERROR_OUT_OF_MEMORY;
}

static int wl_take(struct wl_thread *thread)
{
	struct wl_storm *storm = thread->storm;
	struct wl_held *held = &thread->held[thread->held_count];
	size_t number = wl_below(&thread->random, storm->way_count);
	size_t largest = storm->options->largest;
	const struct wl_way *way = storm->ways[number];
	struct wl_filler *filler = &thread->fillers[number];

	if (way->largest && way->largest < largest)
		largest = way->largest;
	*held = (struct wl_held){.way = way, .filler = filler};
	if (wl_prepare_way(thread, number) ||
	    way->take(filler, wl_size(thread, filler->granularity, largest),
		      &held->grant)) {
		if (!wl_refused(thread))
			return -1;
		atomic_fetch_add(&storm->refusals, 1);
		return 1;
	}
	thread->held_count++;
	atomic_fetch_add(&storm->takes[number], 1);
	return 0;
}

static int wl_give(struct wl_thread *thread)
{
	size_t which = wl_below(&thread->random, thread->held_count);
	struct wl_held held = thread->held[which];

	thread->held[which] = thread->held[--thread->held_count];
	atomic_fetch_add(&thread->storm->gives, 1);
	if (held.way->give(held.filler, &held.grant))
		return -1;
	if (!held.way->settle || wl_below(&thread->random, 4) > 0)
		return 0;
	return held.way->settle(held.filler);
}

// wl_look asks for what a program may ask at any time, and retains the primary
// context once more for a moment.
static int wl_look(struct wl_thread *thread)
{
	const struct wl_driver *driver = &thread->session.driver;
	size_t available, total;
	CUcontext context;

	if (wl_session_check(&thread->session, "cuMemGetInfo",
			     WL_CALL(driver, mem_info, &available, &total)))
		return -1;
	if (available > total) {
		snprintf(thread->session.message, sizeof thread->session.message,
			 "%zu bytes are free of %zu", available, total);
		return -1;
	}
	if (wl_session_check(&thread->session, "cuDevicePrimaryCtxRetain",
			     WL_CALL(driver, primary_retain, &context,
				     thread->session.device)))
		return -1;
	return wl_session_check(&thread->session, "cuDevicePrimaryCtxRelease",
				WL_CALL(driver, primary_release,
					thread->session.device));
}

// A thread is greedy for some time, and generous for some: so the container is
// full often, and has room for a process that starts now and then.
static int wl_step(struct wl_thread *thread)
{
	bool room = thread->held_count < wl_most_held;
	bool take = wl_below(&thread->random, 100) < thread->greed;
	int failed;

	if (wl_below(&thread->random, wl_phase_steps) == 0)
		thread->greed = wl_below(&thread->random, 2) ? 80 : 15;
	if (wl_below(&thread->random, 16) == 0)
		return wl_look(thread);
	if (thread->held_count == 0 || (take && room)) {
		failed = wl_take(thread);
		if (failed <= 0 || thread->held_count == 0)
			return failed < 0 ? -1 : 0;
	}
	return wl_give(thread);
}

static int wl_begin_thread(struct wl_thread *thread)
{
	const struct wl_driver *driver = &thread->session.driver;

	if (wl_session_check(&thread->session, "cuCtxSetCurrent",
			     WL_CALL(driver, ctx_set_current,
				     thread->session.context)))
		return -1;
	return wl_session_check(&thread->session, "cuStreamCreate",
				WL_CALL(driver, stream_create, &thread->stream,
					CU_STREAM_NON_BLOCKING));
}

static void *wl_work(void *argument)
{
	struct wl_thread *thread = argument;
	struct wl_storm *storm = thread->storm;

	thread->failed = wl_begin_thread(thread) != 0;
	while (!thread->failed && !atomic_load(&storm->stop) &&
	       wl_now() < storm->deadline) {
		thread->failed = wl_step(thread) != 0;
		if (storm->options->pause)
			usleep((useconds_t)wl_below(&thread->random,
						    storm->options->pause));
	}
	if (thread->failed)
		atomic_store(&storm->stop, true);
	return NULL;
}

// ---- children

// wl_childhood is a child without exec. The driver is of no use to it, and it
// must not be able to take memory that nobody would account to it.
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
	usleep((useconds_t)wl_below(&random, 200000)); // perhaps past the parent's end
	_exit(0);
}

// wl_new_life is a child with exec: a small storm of its own, which outlives a
// parent that is killed.
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

// ---- all of it

// A process may find its container full: then it waits for its context.
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
		if (pthread_create(&thread->id, NULL, wl_work, thread))
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
	wl_json_bytes("gives", storm->gives);
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
		 "names of ways as fill lists them, with commas between (default all)"},
		{"threads", WL_OPTION_COUNT, &options.threads,
		 "threads (default 64)"},
		{"seed", WL_OPTION_COUNT, &options.seed,
		 "of all that is random (default 1)"},
		{"duration", WL_OPTION_NUMBER, &options.duration,
		 "seconds (default 10)"},
		{"largest", WL_OPTION_BYTES, &options.largest,
		 "largest piece (default 256MiB)"},
		{"pause", WL_OPTION_COUNT, &options.pause,
		 "microseconds that a thread pauses at most between two steps "
		 "(default 2000)"},
		{"fork-period", WL_OPTION_NUMBER, &options.fork_period,
		 "mean seconds between children (default 0.1); 0: none"},
		WL_COMMON_OPTIONS(options.common),
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	struct wl_storm storm = {.options = &options, .program = argv[0]};
	const char *problem;

	wl_options_parse(argc, argv,
			 "Take and give back device memory at random, by every "
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
