// SPDX-License-Identifier: Apache-2.0

// This header covers the patterns in which kernels can be launched.

#ifndef WORKLOAD_LAUNCH_H
#define WORKLOAD_LAUNCH_H

#include "session.h"

enum { WL_MAX_STREAMS = 64 };

// wl_launcher launches kernels of a given length in one pattern.
struct wl_launcher {
	struct wl_session *session;
	const struct wl_pattern *pattern;
	uint64_t kernel_ns;
	uint64_t other_ns;    // of every other run of kernels; 0: all runs are equal
	uint64_t run;         // kernels in a run
	uint64_t other_run;   // kernels in every other run
	uint64_t next_kernel;
	uint64_t burst;       // launches before each wait; 0 means 1
	uint64_t blocks;      // of one thread each; 0 means 1
	uint64_t shapes;      // grids, one after another, each larger by one block; 0 means 1
	uint64_t next_shape;
	size_t graph_nodes;   // kernels in one graph
	size_t stream_count;  // for patterns with several streams
	CUstream streams[WL_MAX_STREAMS]; // all patterns use the first
	CUevent joins[WL_MAX_STREAMS];
	CUdeviceptr word;     // the downloaded word
	CUgraphExec graph;
	size_t next_stream;
};

struct wl_pattern {
	const char *name;
	const char *help;
	bool waits;           // after each burst, waits for the burst's end
	bool per_thread;      // uses the per-thread default stream
	int (*prepare)(struct wl_launcher *launcher);
	// wait waits for all launched work without cuStreamSynchronize.
	int (*wait)(struct wl_launcher *launcher);
	// launch starts one kernel, or the kernels of one graph.
	int (*launch)(struct wl_launcher *launcher);
	// join makes the first stream wait for the other streams.
	int (*join)(struct wl_launcher *launcher);
};

const struct wl_pattern *wl_pattern_find(const char *name);
void wl_pattern_list(void);

// wl_launcher_prepare and the functions below return 0, or -1 with the failure in the session.
int wl_launcher_prepare(struct wl_launcher *launcher);
int wl_launcher_launch(struct wl_launcher *launcher);
int wl_launcher_record(struct wl_launcher *launcher, CUevent event);
int wl_launcher_wait(struct wl_launcher *launcher);

// wl_launcher_kernels returns the number of kernels of one launch.
size_t wl_launcher_kernels(const struct wl_launcher *launcher);

#endif
