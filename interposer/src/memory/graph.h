// SPDX-License-Identifier: Apache-2.0

// This header covers the memory and code that a graph needs before it can become executable.

#ifndef VG_GRAPH_H
#define VG_GRAPH_H

#include "use.h"

// vg_graph_needs is the memory, by device, that the nodes of a graph and of its child graphs
// allocate together. vg_graph_needs also contains the functions that the graphs' kernels use for
// the first time. `gpus` is a bit mask of the GPUs that the nodes use, if the container has several
// GPUs. If the driver does not report the GPU of a node, the mask has every GPU on which the process
// has a context.
struct vg_graph_needs {
	uint64_t bytes[VG_MAX_DEVICES];
	bool foreign; // some of the memory lies on a GPU that the container does not have
	uint32_t gpus;
	struct vg_use use;
};

// vg_kernel_params is the used part of CUDA_KERNEL_NODE_PARAMS. The first version of that struct
// ends before `kernel`.
struct vg_kernel_params {
	CUfunction function; // if NULL, `kernel` is set
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

// vg_graph_look determines the memory that a graph needs, and claims the room for the graph's code.
// If vg_graph_look returns an error, the graph must not become executable.
CUresult vg_graph_look(CUgraph graph, struct vg_graph_needs *needs);

#endif
