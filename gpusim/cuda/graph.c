// SPDX-License-Identifier: Apache-2.0
/* This file implements graphs, their nodes and edges. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define GRAPH_MAGIC 0x47524150U
#define NODE_MAGIC 0x4e4f4445U

CUresult sim_graph_of(CUgraph handle, struct sim_graph **graph)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!handle || handle->magic != GRAPH_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	*graph = handle;
	return CUDA_SUCCESS;
}

CUresult sim_node_of(CUgraphNode handle, struct sim_node **node)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!handle || handle->magic != NODE_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	*node = handle;
	return CUDA_SUCCESS;
}

struct sim_graph *sim_graph_new(void)
{
	struct sim_graph *graph = calloc(1, sizeof(*graph));

	if (!graph)
		return NULL;
	graph->magic = GRAPH_MAGIC;
	graph->tail = &graph->nodes;
	return graph;
}

void sim_node_free(struct sim_node *node)
{
	if (node->type == CU_GRAPH_NODE_TYPE_KERNEL) {
		free(node->kernel.values);
		free(node->kernel.pointers);
	}
	if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && node->child)
		sim_graph_free(node->child);
	node->magic = 0;
	free(node->deps);
	free(node);
}

void sim_graph_free(struct sim_graph *graph)
{
	while (graph->nodes) {
		struct sim_node *node = graph->nodes;

		graph->nodes = node->next;
		sim_node_free(node);
	}
	graph->magic = 0;
	free(graph);
}

static bool has_dep(const struct sim_node *node, const struct sim_node *dep)
{
	for (size_t i = 0; i < node->dep_count; i++)
		if (node->deps[i] == dep)
			return true;
	return false;
}

CUresult sim_node_add_deps(struct sim_node *node, struct sim_node *const *deps, size_t count)
{
	struct sim_node **grown;

	if (count == 0)
		return CUDA_SUCCESS;
	if (!deps)
		return CUDA_ERROR_INVALID_VALUE;
	grown = realloc(node->deps, (node->dep_count + count) * sizeof(*grown));
	if (!grown)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->deps = grown;
	for (size_t i = 0; i < count; i++) {
		if (!deps[i] || deps[i]->magic != NODE_MAGIC || deps[i]->graph != node->graph)
			return CUDA_ERROR_INVALID_VALUE;
		if (!has_dep(node, deps[i]))
			node->deps[node->dep_count++] = deps[i];
	}
	return CUDA_SUCCESS;
}

CUresult sim_node_new(struct sim_graph *graph, int type, struct sim_node *const *deps,
		      size_t dep_count, struct sim_node **out)
{
	struct sim_node *node = calloc(1, sizeof(*node));
	CUresult err;

	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->magic = NODE_MAGIC;
	node->type = type;
	node->graph = graph;
	err = sim_node_add_deps(node, deps, dep_count);
	if (err) {
		sim_node_free(node);
		return err;
	}
	*graph->tail = node;
	graph->tail = &node->next;
	graph->count++;
	*out = node;
	return CUDA_SUCCESS;
}

static CUresult copy_node(struct sim_graph *copy, struct sim_node *from, struct sim_node **clones)
{
	struct sim_node *node;
	CUresult err = sim_node_new(copy, from->type, NULL, 0, &node);

	if (err)
		return err;
	node->disabled = from->disabled;
	clones[from->mark] = node;
	if (from->dep_count) {
		node->deps = calloc(from->dep_count, sizeof(*node->deps));
		if (!node->deps)
			return CUDA_ERROR_OUT_OF_MEMORY;
		node->dep_count = from->dep_count;
		for (size_t i = 0; i < from->dep_count; i++)
			node->deps[i] = clones[from->deps[i]->mark];
	}
	if (from->type == CU_GRAPH_NODE_TYPE_KERNEL) {
		err = sim_node_set_kernel(node, &from->kernel.params);
		node->kernel.device = from->kernel.device;
		return err;
	}
	if (from->type == CU_GRAPH_NODE_TYPE_GRAPH) {
		node->child = sim_graph_copy(from->child);
		return node->child ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	memcpy(&node->alloc, &from->alloc, sizeof(*node) - offsetof(struct sim_node, alloc));
	return CUDA_SUCCESS;
}

struct sim_graph *sim_graph_copy(const struct sim_graph *graph)
{
	struct sim_graph *copy = sim_graph_new();
	struct sim_node **clones = calloc(graph->count + 1, sizeof(*clones));
	CUresult err = copy && clones ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	size_t index = 0;

	for (struct sim_node *node = graph->nodes; node; node = node->next)
		node->mark = index++;
	for (struct sim_node *node = graph->nodes; node && !err; node = node->next)
		err = copy_node(copy, node, clones);
	free(clones);
	if (err && copy) {
		sim_graph_free(copy);
		copy = NULL;
	}
	return copy;
}

CU_API CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*out = sim_graph_new();
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CU_API CUresult cuGraphDestroy(CUgraph handle)
{
	struct sim_graph *graph;
	CUresult err = sim_graph_of(handle, &graph);

	if (!err && graph->owned)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		sim_graph_free(graph);
	return err;
}

CU_API CUresult cuGraphClone(CUgraph *out, CUgraph handle)
{
	struct sim_graph *graph;
	CUresult err = sim_graph_of(handle, &graph);

	if (err)
		return err;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = sim_graph_copy(graph);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void drop_dep(struct sim_node *node, const struct sim_node *dep)
{
	for (size_t i = 0; i < node->dep_count; i++)
		if (node->deps[i] == dep)
			node->deps[i--] = node->deps[--node->dep_count];
}

CU_API CUresult cuGraphDestroyNode(CUgraphNode handle)
{
	struct sim_node *node, **link;
	struct sim_graph *graph;
	CUresult err = sim_node_of(handle, &node);

	if (err)
		return err;
	graph = node->graph;
	for (link = &graph->nodes; *link != node; link = &(*link)->next)
		;
	*link = node->next;
	if (!node->next)
		graph->tail = link;
	graph->count--;
	for (struct sim_node *n = graph->nodes; n; n = n->next)
		drop_dep(n, node);
	sim_node_free(node);
	return CUDA_SUCCESS;
}

/* ---- queries about a graph ---- */

/* list_nodes fills an array of *count places, or counts the nodes. */
static CUresult list_nodes(const struct sim_graph *graph, CUgraphNode *out, size_t *count, bool roots)
{
	size_t n = 0;

	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	for (struct sim_node *node = graph->nodes; node; node = node->next) {
		if (roots && node->dep_count)
			continue;
		if (out && n < *count)
			out[n] = node;
		n++;
	}
	for (size_t i = n; out && i < *count; i++)
		out[i] = NULL;
	if (!out || n < *count)
		*count = n;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *out, size_t *count)
{
	struct sim_graph *graph;
	CUresult err = sim_graph_of(handle, &graph);

	return err ? err : list_nodes(graph, out, count, false);
}

CU_API CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode *out, size_t *count)
{
	struct sim_graph *graph;
	CUresult err = sim_graph_of(handle, &graph);

	return err ? err : list_nodes(graph, out, count, true);
}

CU_API CUresult cuGraphNodeGetType(CUgraphNode handle, int *type)
{
	struct sim_node *node;
	CUresult err = sim_node_of(handle, &node);

	if (!err && !type)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*type = node->type;
	return err;
}

static CUresult dependencies(CUgraphNode handle, CUgraphNode *out, size_t *count)
{
	struct sim_node *node;
	CUresult err = sim_node_of(handle, &node);

	if (err)
		return err;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; out && i < *count; i++)
		out[i] = i < node->dep_count ? node->deps[i] : NULL;
	if (!out || node->dep_count < *count)
		*count = node->dep_count;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *out, size_t *count)
{
	return dependencies(node, out, count);
}

CU_API CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *out,
					      CUgraphEdgeData *data, size_t *count)
{
	CUresult err = dependencies(node, out, count);

	if (!err && data && out)
		memset(data, 0, *count * sizeof(*data));
	return err;
}

static CUresult edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	struct sim_graph *graph;
	size_t n = 0;
	CUresult err = sim_graph_of(handle, &graph);

	if (err)
		return err;
	if (!count || !from != !to)
		return CUDA_ERROR_INVALID_VALUE;
	for (struct sim_node *node = graph->nodes; node; node = node->next) {
		for (size_t i = 0; i < node->dep_count; i++, n++) {
			if (!from || n >= *count)
				continue;
			from[n] = node->deps[i];
			to[n] = node;
		}
	}
	if (!from || n < *count)
		*count = n;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	return edges(graph, from, to, count);
}

CU_API CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
				   CUgraphEdgeData *data, size_t *count)
{
	CUresult err = edges(graph, from, to, count);

	if (!err && data && from)
		memset(data, 0, *count * sizeof(*data));
	return err;
}

static CUresult add_edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
	struct sim_graph *graph;
	CUresult err = sim_graph_of(handle, &graph);

	if (!err && count && (!from || !to))
		err = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count && !err; i++) {
		struct sim_node *node;

		err = sim_node_of(to[i], &node);
		if (!err)
			err = sim_node_add_deps(node, &from[i], 1);
	}
	return err;
}

CU_API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
				       size_t count)
{
	return add_edges(graph, from, to, count);
}

CU_API CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from,
					  const CUgraphNode *to, const CUgraphEdgeData *data,
					  size_t count)
{
	(void)data;
	return add_edges(graph, from, to, count);
}
