// SPDX-License-Identifier: Apache-2.0

// This header covers the ways of acquiring device memory. A way is a pair of functions that take
// and free memory.

#ifndef WORKLOAD_WAYS_H
#define WORKLOAD_WAYS_H

#include "session.h"

// wl_grant is one piece of granted memory.
struct wl_grant {
	uint64_t handle; // pointer, array, graph, context …, depending on the way
	uint64_t extra;
	size_t bytes;    // device memory that the grant takes, as the driver reports
};

// wl_filler is one thread's use of a way.
struct wl_filler {
	struct wl_session *session; // the thread's own copy, which records failures
	CUstream stream;
	CUmemoryPool pool;
	size_t granularity; // requests are multiples of this size
};

struct wl_way {
	const char *name;
	const char *help;
	size_t largest; // a single request's limit in bytes; 0: none
	bool whole;     // pieces have a fixed size: requests have none
	bool elastic;   // a driver may grant more than the device has
	// prepare may be NULL. prepare and take return 0, or -1 with the failure in the session. take
	// grants `bytes`, or more if the way rounds up.
	int (*prepare)(struct wl_filler *filler);
	int (*take)(struct wl_filler *filler, size_t bytes,
		    struct wl_grant *grant);
	int (*give)(struct wl_filler *filler, const struct wl_grant *grant);
	// settle, if set, runs after all memory was freed.
	int (*settle)(struct wl_filler *filler);
};

const struct wl_way *wl_way_find(const char *name);

// wl_way_at returns the way with this number, or NULL after the last way.
const struct wl_way *wl_way_at(size_t number);

// wl_way_list prints every way with its help to standard output.
void wl_way_list(void);

// These lists hold the ways of each family. Each list ends with a NULL name.
extern const struct wl_way wl_linear_ways[];
extern const struct wl_way wl_array_ways[];
extern const struct wl_way wl_ordered_ways[];
extern const struct wl_way wl_graph_ways[];
extern const struct wl_way wl_context_ways[];

// WL_TRY calls a driver function and records its failure under its exported name.
#define WL_TRY(filler, member, name, ...)                                \
	wl_session_check((filler)->session, name,                        \
			 WL_CALL(&(filler)->session->driver, member,     \
				 __VA_ARGS__))

#endif
