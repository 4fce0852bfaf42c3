// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_EXEC_H
#define GPUSIM_EXEC_H

#include "graph.h"

/* step is one step of an executable graph. Child graphs are flattened. */
struct step {
	struct sim_node *source; /* handle that a program uses for the step */
	struct sim_node *node;   /* node of the executable graph's copy */
	size_t *deps;            /* indices of earlier steps */
	size_t dep_count;
	bool leaf; /* no other step depends on this step */
};

struct sim_exec {
	uint32_t magic;
	struct sim_device *device;
	struct sim_graph *graph; /* own copy */
	struct step *steps;
	size_t count, room;
	struct gs_ref last; /* end of the last launch: launches run one after another */
	uint64_t peak_bytes; /* highest sum of the graph's memory nodes at a time */
	uint64_t flags;
};

#define EXEC_AUTO_FREE 1u
#define EXEC_UPLOAD 2u

CUresult sim_exec_of(CUgraphExec handle, struct sim_exec **exec);
struct step *sim_exec_step(struct sim_exec *exec, CUgraphNode node);

/* These functions handle graph memory (graphmem.c). The caller holds the process lock. */
uint64_t sim_exec_peak(const struct sim_exec *exec);
CUresult sim_graph_memory_reserve(struct sim_device *device, uint64_t peak);
/*
 * sim_exec_take_memory marks the allocations that the graph leaves. sim_exec_take_memory fails if
 * allocations of an earlier launch are still allocated.
 */
CUresult sim_exec_take_memory(struct sim_exec *exec);
void sim_exec_free_memory(struct sim_exec *exec);

#endif
