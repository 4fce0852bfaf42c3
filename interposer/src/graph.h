// SPDX-License-Identifier: Apache-2.0

// What a graph needs before it can be made executable.

#ifndef VG_GRAPH_H
#define VG_GRAPH_H

#include "use.h"

// vg_graph_needs is what the memory nodes of a graph and of its child graphs ask for
// together, by device, and which functions their kernels use for the first time.
struct vg_graph_needs {
	uint64_t bytes[VG_MAX_DEVICES];
	bool foreign; // some of it on a GPU that is not the container's
	struct vg_use use;
};

// vg_kernel_params is the part of CUDA_KERNEL_NODE_PARAMS that matters; the first version
// ends before `kernel`.
struct vg_kernel_params {
	CUfunction function; // or
	unsigned shape[7];
	void **parameters, **extra;
	CUkernel kernel;
	CUcontext context;
};

static inline const void *vg_kernel_function(const struct vg_kernel_params *parameters)
{
	const void *kernel = parameters->kernel;

	return parameters->function ? parameters->function : kernel;
}

// vg_graph_look finds out what a graph needs, and claims the room for its code. It returns
// an error where it cannot find that out: such a graph must not become executable.
CUresult vg_graph_look(CUgraph graph, struct vg_graph_needs *needs);

#endif
