// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_GRAPH_H
#define GPUSIM_GRAPH_H

#include "sim.h"

/* kernel_node is a kernel node's launch, with its own copy of the parameters' values. */
struct kernel_node {
	struct sim_device *device; /* the GPU that runs the kernel */
	CUDA_KERNEL_NODE_PARAMS params;
	unsigned char *values;
	void **pointers;
};

struct sim_node {
	struct sim_node *next;
	uint32_t magic;
	int type;
	struct sim_graph *graph;
	struct sim_node **deps;
	size_t dep_count;
	bool disabled; /* of an executable graph's copy */
	size_t mark;   /* scratch value of graph traversals */
	union {
		struct kernel_node kernel;
		CUDA_MEMSET_NODE_PARAMS memset;
		CUDA_MEMCPY3D copy;
		CUDA_HOST_NODE_PARAMS host;
		struct sim_graph *child;
		struct sim_event *event;
		CUDA_MEM_ALLOC_NODE_PARAMS alloc;
		CUdeviceptr free;
	};
};

struct sim_graph {
	uint32_t magic;
	bool owned; /* a child's copy, freed with its node */
	struct sim_node *nodes; /* in order of creation, which is a valid order */
	struct sim_node **tail;
	size_t count;
};

struct sim_capture {
	struct sim_capture *next;
	struct sim_graph *graph;
	bool own_graph;
	uint64_t id;
	int mode;
	uint64_t thread;
	int status; /* atomic: other threads' calls may break the capture */
	struct sim_stream *origin;
};

CUresult cuGraphDestroyNode(CUgraphNode node);

CUresult sim_graph_of(CUgraph handle, struct sim_graph **graph);
CUresult sim_node_of(CUgraphNode handle, struct sim_node **node);
struct sim_graph *sim_graph_new(void);
void sim_graph_free(struct sim_graph *graph);
struct sim_graph *sim_graph_copy(const struct sim_graph *graph);
CUresult sim_node_new(struct sim_graph *graph, int type, struct sim_node *const *deps,
		      size_t dep_count, struct sim_node **out);
void sim_node_free(struct sim_node *node);
CUresult sim_node_add_deps(struct sim_node *node, struct sim_node *const *deps, size_t count);

/*
 * These functions fill in a node and copy the data behind the pointers. A kernel runs on the GPU of
 * its function. A kernel of a library runs on the GPU of the context in the parameters, or of the
 * current context. The GPU of a node never changes.
 */
CUresult sim_node_set_kernel(struct sim_node *node, const CUDA_KERNEL_NODE_PARAMS *params);
CUresult sim_node_set_alloc(struct sim_node *node, uint64_t size, CUdevice ordinal,
			    CUdeviceptr *address);

/*
 * sim_memset_work returns the duration of a memset or copy on this device, and whether it occupies
 * the GPU.
 */
struct gs_work sim_memset_work(const struct sim_device *device, const CUDA_MEMSET_NODE_PARAMS *p);
struct gs_work sim_copy_work(const struct sim_device *device, const CUDA_MEMCPY3D *p);
/* sim_memset_content moves or sets content that is stored. */
void sim_memset_content(const CUDA_MEMSET_NODE_PARAMS *p);
void sim_copy_content(const CUDA_MEMCPY3D *p);

#endif
