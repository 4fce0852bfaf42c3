// SPDX-License-Identifier: Apache-2.0

// exchange runs kernels on two GPUs. Each kernel spins until its peer on the other GPU has reached
// the same turn, as in collectives. A limit that throttles only one GPU makes the other GPU spin
// all the time.

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "json.h"
#include "session.h"

enum {
	WL_GPUS = 2,
	WL_HOST_PORTABLE = 1,
	WL_HOST_MAPPED = 2,
	WL_FLAG_STRIDE = 16, // words: each flag in a separate cache line
};

struct wl_exchange_options {
	struct wl_common common;
	double kernel_us, duration;
	uint64_t peer, depth;
	bool one_thread, swapped;
};

// wl_rank is one GPU's part.
struct wl_rank {
	struct wl_exchange *exchange;
	struct wl_session session;
	CUstream stream;
	uint64_t index;
	int failed;
};

struct wl_exchange {
	const struct wl_exchange_options *options;
	struct wl_rank ranks[WL_GPUS];
	uint64_t *flags;       // by rank: the turn that the rank has completed
	_Atomic uint64_t last; // last turn of both ranks
	double deadline, took;
	uint64_t turns;
};

static int wl_rank_open(struct wl_rank *rank, uint64_t device)
{
	struct wl_common common = rank->exchange->options->common;

	common.device = device;
	if (wl_session_open(&rank->session, &common) ||
	    wl_session_load_spin(&rank->session))
		return -1;
	return wl_session_check(&rank->session, "cuStreamCreate",
				WL_CALL(&rank->session.driver, stream_create,
					&rank->stream, CU_STREAM_NON_BLOCKING));
}

static int wl_rank_enter(struct wl_rank *rank)
{
	return wl_session_check(&rank->session, "cuCtxSetCurrent",
				WL_CALL(&rank->session.driver, ctx_set_current,
					rank->session.context));
}

static int wl_rank_launch(struct wl_rank *rank, uint64_t turn)
{
	struct wl_exchange *exchange = rank->exchange;
	uint64_t ns = (uint64_t)(exchange->options->kernel_us * 1e3);
	uint64_t *mine = &exchange->flags[rank->index * WL_FLAG_STRIDE];
	uint64_t *theirs = &exchange->flags[(1 - rank->index) * WL_FLAG_STRIDE];
	void *params[] = {&ns, &mine, &theirs, &turn};

	return wl_session_check(&rank->session, "cuLaunchKernel",
				WL_CALL(&rank->session.driver, launch,
					rank->session.exchange, 1, 1, 1, 1, 1,
					1, 0, rank->stream, params, NULL));
}

static int wl_rank_wait(struct wl_rank *rank)
{
	return wl_session_check(&rank->session, "cuStreamSynchronize",
				WL_CALL(&rank->session.driver,
					stream_synchronize, rank->stream));
}

// wl_rank_step launches one turn, and sometimes waits for the turn.
static int wl_rank_step(struct wl_rank *rank, uint64_t turn)
{
	if (wl_rank_launch(rank, turn))
		return -1;
	if (turn % rank->exchange->options->depth == 0)
		return wl_rank_wait(rank);
	return 0;
}

// wl_exchange_ends reports whether a turn is behind the last turn. The first rank chooses the last
// turn when the time is over. The other rank is at most a depth ahead.
static bool wl_exchange_ends(struct wl_exchange *exchange, uint64_t rank,
			     uint64_t turn)
{
	if (rank == 0 && wl_now() >= exchange->deadline &&
	    atomic_load(&exchange->last) == UINT64_MAX)
		atomic_store(&exchange->last,
			     turn + 2 * exchange->options->depth);
	return turn > atomic_load(&exchange->last);
}

static void *wl_rank_run(void *argument)
{
	struct wl_rank *rank = argument;
	uint64_t turn = 1;

	rank->failed = wl_rank_enter(rank);
	for (; !rank->failed && !wl_exchange_ends(rank->exchange, rank->index, turn); turn++)
		rank->failed = wl_rank_step(rank, turn);
	if (!rank->failed)
		rank->failed = wl_rank_wait(rank);
	if (rank->index == 0)
		rank->exchange->turns = turn - 1;
	if (rank->failed) // otherwise the other rank would wait without end
		exit(wl_session_fail(&rank->session, "exchange"));
	return NULL;
}

// wl_exchange_alone launches on both GPUs from one thread, like a framework that drives several
// GPUs.
static int wl_exchange_alone(struct wl_exchange *exchange)
{
	uint64_t first = exchange->options->swapped ? 1 : 0;
	uint64_t turn = 1;

	for (; !wl_exchange_ends(exchange, 0, turn); turn++) {
		for (uint64_t i = 0; i < WL_GPUS; i++) {
			struct wl_rank *rank = &exchange->ranks[first ^ i];

			if (wl_rank_enter(rank) || wl_rank_launch(rank, turn))
				return wl_session_fail(&rank->session, "exchange");
		}
		for (uint64_t i = 0; i < WL_GPUS && turn % exchange->options->depth == 0; i++)
			if (wl_rank_wait(&exchange->ranks[i]))
				return wl_session_fail(&exchange->ranks[i].session, "exchange");
	}
	exchange->turns = turn - 1;
	return EXIT_SUCCESS;
}

static int wl_exchange_threads(struct wl_exchange *exchange)
{
	pthread_t threads[WL_GPUS];

	for (size_t i = 0; i < WL_GPUS; i++)
		if (pthread_create(&threads[i], NULL, wl_rank_run, &exchange->ranks[i])) {
			fprintf(stderr, "exchange: cannot start a thread\n");
			return EXIT_FAILURE;
		}
	for (size_t i = 0; i < WL_GPUS; i++)
		pthread_join(threads[i], NULL);
	return EXIT_SUCCESS;
}

static int wl_exchange_run(struct wl_exchange *exchange)
{
	const struct wl_exchange_options *options = exchange->options;
	const uint64_t devices[WL_GPUS] = {options->common.device, options->peer};
	void *flags = NULL;
	double began;
	int status;

	for (size_t i = 0; i < WL_GPUS; i++) {
		struct wl_rank *rank = &exchange->ranks[i];

		rank->exchange = exchange;
		rank->index = i;
		if (wl_rank_open(rank, devices[i]))
			return wl_session_fail(&rank->session, "exchange");
	}
	if (wl_session_check(&exchange->ranks[0].session, "cuMemHostAlloc",
			     WL_CALL(&exchange->ranks[0].session.driver, host_alloc, &flags,
				     sizeof(uint64_t) * WL_GPUS * WL_FLAG_STRIDE,
				     WL_HOST_PORTABLE | WL_HOST_MAPPED)))
		return wl_session_fail(&exchange->ranks[0].session, "exchange");
	exchange->flags = flags;
	for (size_t i = 0; i < WL_GPUS; i++)
		exchange->flags[i * WL_FLAG_STRIDE] = 0;
	began = wl_now();
	exchange->deadline = began + options->duration;
	atomic_store(&exchange->last, UINT64_MAX);
	status = options->one_thread ? wl_exchange_alone(exchange) : wl_exchange_threads(exchange);
	exchange->took = wl_now() - began;
	return status;
}

int main(int argc, char **argv)
{
	struct wl_exchange_options options = {
		.common = WL_COMMON_DEFAULTS,
		.kernel_us = 1000,
		.duration = 10,
		.peer = 1,
		.depth = 4,
	};
	const struct wl_option table[] = {
		{"kernel-us", WL_OPTION_NUMBER, &options.kernel_us,
		 "time of each kernel before the kernel waits, in µs (default 1000)"},
		{"duration", WL_OPTION_NUMBER, &options.duration,
		 "seconds of launching (default 10)"},
		{"peer-device", WL_OPTION_COUNT, &options.peer,
		 "ordinal of the second GPU (default 1)"},
		{"depth", WL_OPTION_COUNT, &options.depth,
		 "turns between two waits of the program (default 4)"},
		{"one-thread", WL_OPTION_FLAG, &options.one_thread,
		 "launch on both GPUs from one thread, not from two"},
		{"swapped", WL_OPTION_FLAG, &options.swapped,
		 "with --one-thread: on the second GPU first"},
		WL_COMMON_OPTIONS(options.common),
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	static struct wl_exchange exchange;
	int status;

	wl_options_parse(argc, argv,
			 "Run kernels on two GPUs that wait for each other; "
			 "print the number of turns as one JSON line.", table);
	if (options.depth == 0 || options.depth > 1000) {
		fprintf(stderr, "%s: --depth must be 1 to 1000\n", argv[0]);
		return WL_EXIT_USAGE;
	}
	exchange.options = &options;
	status = wl_exchange_run(&exchange);
	if (status)
		return status;
	wl_json_open(NULL);
	wl_json_integer("pid", getpid());
	wl_json_number("kernel_us", options.kernel_us);
	wl_json_bytes("turns", exchange.turns);
	wl_json_number("turns_per_s", (double)exchange.turns / exchange.took);
	wl_json_close();
	return EXIT_SUCCESS;
}
