// SPDX-License-Identifier: Apache-2.0

// fill takes device memory by one named way, in ever smaller pieces, until the driver refuses the
// smallest piece. fill reports the granted amount.

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"
#include "ways.h"

struct wl_fill_options {
	struct wl_common common;
	const char *way;
	uint64_t chunk, granularity, max, threads, rounds, pieces;
	double delay, hold, fraction;
	bool list, follow;
};

enum wl_outcome { WL_REFUSED, WL_REACHED_MAX, WL_REACHED_PIECES, WL_FAILED };

static const char *const wl_outcomes[] = {"refused", "max", "pieces", "error"};

// wl_fill is the data that the threads share.
struct wl_fill {
	const struct wl_fill_options *options;
	const struct wl_way *way;
	size_t max;            // bytes at which to stop
	atomic_size_t taken;   // bytes granted or requested, bounded by max
	atomic_size_t granted; // bytes
	atomic_size_t pieces;
};

// wl_worker is one thread's share of a fill.
struct wl_worker {
	struct wl_fill *fill;
	struct wl_session session;
	struct wl_filler filler;
	struct wl_grant *grants;
	size_t grant_count, grant_room;
	size_t refusals;
	size_t smallest_refused; // bytes
	enum wl_outcome outcome;
};

static int wl_keep(struct wl_worker *worker, const struct wl_grant *grant)
{
	if (worker->grant_count == worker->grant_room) {
		size_t room = worker->grant_room ? 2 * worker->grant_room : 64;
		void *grown = realloc(worker->grants,
				      room * sizeof *worker->grants);

		if (!grown) {
			snprintf(worker->session.message,
				 sizeof worker->session.message,
				 "out of host memory");
			return -1;
		}
		worker->grants = grown;
		worker->grant_room = room;
	}
	worker->grants[worker->grant_count++] = *grant;
	return 0;
}

// wl_allowance bounds the next request by --max, and reserves the request's size.
static size_t wl_allowance(struct wl_fill *fill, size_t size, size_t unit)
{
	size_t taken = atomic_load(&fill->taken);
	size_t allowed;

	do {
		size_t left = fill->max > taken ? fill->max - taken : 0;

		allowed = size < left ? size : left / unit * unit;
	} while (!atomic_compare_exchange_weak(&fill->taken, &taken,
					       taken + allowed));
	return allowed;
}

// wl_under_way reports whether other threads wait for answers. A refusal returns a thread's
// reservation of --max.
static bool wl_under_way(struct wl_fill *fill)
{
	return atomic_load(&fill->taken) > atomic_load(&fill->granted);
}

// wl_take_one requests one piece of `size` bytes. wl_take_one returns 1 if the driver granted the
// piece, 0 if the driver refused the piece, and -1 after another failure.
static int wl_take_one(struct wl_worker *worker, size_t size)
{
	struct wl_fill *fill = worker->fill;
	struct wl_grant grant = {0};

	if (fill->way->take(&worker->filler, size, &grant)) {
		atomic_fetch_sub(&fill->taken, size);
		if (worker->session.result != CUDA_ERROR_OUT_OF_MEMORY)
			return -1;
		worker->refusals++;
		worker->smallest_refused = size;
		return 0;
	}
	atomic_fetch_add(&fill->taken, grant.bytes - size);
	atomic_fetch_add(&fill->granted, grant.bytes);
	atomic_fetch_add(&fill->pieces, 1);
	return wl_keep(worker, &grant) ? -1 : 1;
}

static enum wl_outcome wl_take_all(struct wl_worker *worker)
{
	struct wl_fill *fill = worker->fill;
	size_t unit = worker->filler.granularity;
	size_t size = fill->options->chunk / unit * unit;

	if (fill->way->largest && size > fill->way->largest)
		size = fill->way->largest / unit * unit;
	while (size >= unit) {
		size_t ask = wl_allowance(fill, size, unit);
		int got;

		if (ask == 0 && wl_under_way(fill)) {
			sched_yield();
			continue;
		}
		if (ask == 0)
			return WL_REACHED_MAX;
		if (atomic_load(&fill->pieces) >= fill->options->pieces)
			return WL_REACHED_PIECES;
		got = wl_take_one(worker, ask);
		if (got < 0)
			return WL_FAILED;
		if (got == 0)
			size = ask == unit ? 0 : ask / 2 / unit * unit;
	}
	return WL_REFUSED;
}

// wl_take_whole requests pieces with a fixed size until the driver refuses a piece.
static enum wl_outcome wl_take_whole(struct wl_worker *worker)
{
	struct wl_fill *fill = worker->fill;

	for (;;) {
		int got;

		if (atomic_load(&fill->granted) >= fill->max)
			return WL_REACHED_MAX;
		if (atomic_load(&fill->pieces) >= fill->options->pieces)
			return WL_REACHED_PIECES;
		got = wl_take_one(worker, 0);
		if (got < 0)
			return WL_FAILED;
		if (got == 0)
			return WL_REFUSED;
	}
}

static int wl_prepare(struct wl_worker *worker)
{
	struct wl_session *session = &worker->session;
	struct wl_filler *filler = &worker->filler;
	const struct wl_way *way = worker->fill->way;

	filler->session = session;
	filler->granularity = 1;
	if (WL_TRY(filler, stream_create, "cuStreamCreate", &filler->stream,
		   CU_STREAM_NON_BLOCKING))
		return -1;
	if (way->prepare && way->prepare(filler))
		return -1;
	if (worker->fill->options->granularity > filler->granularity)
		filler->granularity = worker->fill->options->granularity;
	return 0;
}

static void *wl_work(void *argument)
{
	struct wl_worker *worker = argument;
	struct wl_session *session = &worker->session;

	// Every round starts new threads, and a context is current to a thread.
	if (wl_session_check(session, "cuCtxSetCurrent",
			     WL_CALL(&session->driver, ctx_set_current, session->context)))
		worker->outcome = WL_FAILED;
	else if (!worker->filler.session && wl_prepare(worker))
		worker->outcome = WL_FAILED;
	else if (worker->fill->way->whole)
		worker->outcome = wl_take_whole(worker);
	else
		worker->outcome = wl_take_all(worker);
	return NULL;
}

// wl_run makes every worker fill at once. The calling thread runs the first worker.
static int wl_run(struct wl_worker *workers, size_t count)
{
	pthread_t threads[count];
	size_t started = 1;

	while (started < count &&
	       pthread_create(&threads[started], NULL, wl_work,
			      &workers[started]) == 0)
		started++;
	wl_work(&workers[0]);
	for (size_t i = 1; i < started; i++)
		pthread_join(threads[i], NULL);
	if (started == count)
		return 0;
	snprintf(workers[0].session.message, sizeof workers[0].session.message,
		 "cannot start thread %zu of %zu", started + 1, count);
	workers[0].outcome = WL_FAILED;
	return -1;
}

// wl_give_back frees all pieces, from the first thread.
static int wl_give_back(struct wl_worker *workers, size_t count)
{
	const struct wl_way *way = workers[0].fill->way;

	for (size_t i = 0; i < count; i++) {
		struct wl_worker *worker = &workers[i];

		while (worker->grant_count > 0)
			if (way->give(&worker->filler,
				      &worker->grants[--worker->grant_count]))
				return -1;
		if (way->settle && way->settle(&worker->filler))
			return -1;
	}
	atomic_store(&workers[0].fill->taken, 0);
	atomic_store(&workers[0].fill->granted, 0);
	atomic_store(&workers[0].fill->pieces, 0);
	return 0;
}

// wl_worst returns the worker whose outcome counts for all workers.
static struct wl_worker *wl_worst(struct wl_worker *workers, size_t count)
{
	struct wl_worker *worst = &workers[0];

	for (size_t i = 1; i < count; i++)
		if (workers[i].outcome > worst->outcome)
			worst = &workers[i];
	return worst;
}

static void wl_report_sizes(struct wl_worker *workers, size_t count)
{
	size_t refusals = 0;
	size_t smallest = 0;

	for (size_t i = 0; i < count; i++) {
		refusals += workers[i].refusals;
		if (workers[i].refusals &&
		    (!smallest || workers[i].smallest_refused < smallest))
			smallest = workers[i].smallest_refused;
	}
	wl_json_bytes("granted_bytes", workers[0].fill->granted);
	wl_json_bytes("pieces", workers[0].fill->pieces);
	wl_json_bytes("refusals", refusals);
	wl_json_bytes("smallest_refused_bytes", smallest);
	wl_json_bytes("refused_at_bytes",
		      refusals ? workers[0].fill->granted + smallest : 0);
}

static void wl_report(struct wl_worker *workers, size_t count,
		      size_t free_before, const uint64_t *rounds, double wall)
{
	const struct wl_fill *fill = workers[0].fill;
	struct wl_session *session = &workers[0].session;
	struct wl_worker *worst = wl_worst(workers, count);
	size_t free_after = 0;
	size_t total = 0;

	WL_CALL(&session->driver, mem_info, &free_after, &total);
	wl_json_open(NULL);
	wl_json_string("way", fill->way->name);
	wl_json_integer("pid", getpid());
	wl_json_bytes("device", fill->options->common.device);
	wl_json_string("uuid", session->uuid);
	wl_json_bytes("total_mem_seen", session->total);
	wl_json_bytes("mem_info_total_seen", total);
	wl_json_bytes("free_seen_before", free_before);
	wl_json_bytes("free_seen_after", free_after);
	wl_report_sizes(workers, count);
	wl_json_array("round_bytes");
	for (size_t i = 0; i < fill->options->rounds; i++)
		wl_json_bytes(NULL, rounds[i]);
	wl_json_array_end();
	wl_json_number("wall_s", wall);
	wl_json_string("outcome", wl_outcomes[worst->outcome]);
	wl_session_report(&worst->session);
	wl_json_close();
}

static int wl_fill_rounds(struct wl_worker *workers, size_t count,
			  uint64_t *rounds)
{
	size_t last = workers[0].fill->options->rounds - 1;

	for (size_t round = 0;; round++) {
		if (wl_run(workers, count))
			return -1;
		rounds[round] = workers[0].fill->granted;
		if (wl_worst(workers, count)->outcome == WL_FAILED)
			return -1;
		if (round == last)
			return 0;
		if (wl_give_back(workers, count)) {
			workers[0].outcome = WL_FAILED;
			return -1;
		}
	}
}

// wl_hold_on holds the memory. With --follow, wl_hold_on also takes the memory that becomes
// available.
static int wl_hold_on(struct wl_worker *workers, size_t count)
{
	static const double pause = 0.001; // s, between two attempts
	const struct wl_fill_options *options = workers[0].fill->options;
	double end = wl_now() + options->hold;

	while (options->follow && wl_now() < end) {
		wl_sleep_until(wl_now() + pause);
		if (wl_run(workers, count) || wl_worst(workers, count)->outcome == WL_FAILED)
			return -1;
	}
	wl_sleep_until(end);
	return 0;
}

static int wl_fill_main(struct wl_fill *fill, const char *program)
{
	const struct wl_fill_options *options = fill->options;
	size_t count = options->threads;
	struct wl_worker *workers = calloc(count, sizeof *workers);
	uint64_t *rounds = calloc(options->rounds, sizeof *rounds);
	size_t free_before = 0;
	size_t total = 0;
	double began;
	int failed;

	if (!workers || !rounds) {
		fprintf(stderr, "%s: out of host memory\n", program);
		free(workers);
		free(rounds);
		return EXIT_FAILURE;
	}
	if (wl_session_open(&workers[0].session, &options->common)) {
		failed = wl_session_fail(&workers[0].session, program);
		goto out;
	}
	for (size_t i = 0; i < count; i++) {
		workers[i].session = workers[0].session;
		workers[i].fill = fill;
	}
	if (options->fraction > 0)
		fill->max = (size_t)(options->fraction * (double)workers[0].session.total);
	if (fill->way->elastic && fill->max > workers[0].session.total)
		fill->max = workers[0].session.total;
	WL_CALL(&workers[0].session.driver, mem_info, &free_before, &total);
	if (options->delay > 0)
		wl_sleep_until(wl_now() + options->delay);
	began = wl_now();
	failed = wl_fill_rounds(workers, count, rounds);
	wl_report(workers, count, free_before, rounds, wl_now() - began);
	if (!failed && options->hold > 0 && wl_hold_on(workers, count))
		failed = wl_session_fail(&wl_worst(workers, count)->session, program);
out:
	for (size_t i = 0; i < count; i++)
		free(workers[i].grants);
	free(workers);
	free(rounds);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int wl_check_options(const struct wl_fill_options *options,
			    const char *program)
{
	const char *problem = NULL;

	if (options->chunk == 0)
		problem = "--chunk must be at least one byte";
	else if (options->fraction < 0 || options->fraction > 1)
		problem = "--fraction must be 0 to 1";
	else if (options->threads == 0 || options->threads > 256)
		problem = "--threads must be 1 to 256";
	else if (options->rounds == 0 || options->rounds > 10000000)
		problem = "--rounds must be 1 to 10000000";
	if (problem)
		fprintf(stderr, "%s: %s\n", program, problem);
	return problem ? -1 : 0;
}

int main(int argc, char **argv)
{
	struct wl_fill_options options = {
		.common = WL_COMMON_DEFAULTS,
		.way = "alloc",
		.chunk = 64 << 20,
		.max = SIZE_MAX,
		.threads = 1,
		.rounds = 1,
		.pieces = 1 << 20,
	};
	const struct wl_option table[] = {
		{"way", WL_OPTION_TEXT, &options.way,
		 "way of allocating (default alloc; see --list)"},
		{"list", WL_OPTION_FLAG, &options.list, "list the ways"},
		{"chunk", WL_OPTION_BYTES, &options.chunk,
		 "size of the first pieces (default 64MiB)"},
		{"granularity", WL_OPTION_BYTES, &options.granularity,
		 "request only multiples of this size (default 1, or the way's size)"},
		{"max", WL_OPTION_BYTES, &options.max,
		 "stop at this many bytes (default none; for managed, all "
		 "that the device has)"},
		{"fraction", WL_OPTION_NUMBER, &options.fraction,
		 "stop at this part of the device's reported memory, as "
		 "TensorFlow does (default 0: --max)"},
		{"pieces", WL_OPTION_COUNT, &options.pieces,
		 "stop after this many pieces (default 1048576)"},
		{"threads", WL_OPTION_COUNT, &options.threads,
		 "threads that fill at the same time (default 1)"},
		{"rounds", WL_OPTION_COUNT, &options.rounds,
		 "repeat: fill, free all (default 1)"},
		{"delay", WL_OPTION_NUMBER, &options.delay,
		 "seconds between the creation of the context and filling "
		 "(default 0)"},
		{"hold", WL_OPTION_NUMBER, &options.hold,
		 "seconds to keep the memory after printing (default 0)"},
		{"follow", WL_OPTION_FLAG, &options.follow,
		 "while keeping the memory, allocate more each millisecond"},
		WL_COMMON_OPTIONS(options.common),
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	struct wl_fill fill = {.options = &options};

	wl_options_parse(argc, argv,
			 "Allocate device memory in one way until the driver refuses; "
			 "print the granted amount as one JSON line.\n"
			 "Exit status: 0 refused with out of memory, or --max "
			 "reached; 1 any other failure; 64 wrong usage.",
			 table);
	if (options.list) {
		wl_way_list();
		return EXIT_SUCCESS;
	}
	if (wl_check_options(&options, argv[0]))
		return WL_EXIT_USAGE;
	fill.max = options.max;
	fill.way = wl_way_find(options.way);
	if (!fill.way) {
		fprintf(stderr, "%s: unknown way \"%s\" (--list names them)\n",
			argv[0], options.way);
		return WL_EXIT_USAGE;
	}
	return wl_fill_main(&fill, argv[0]);
}
