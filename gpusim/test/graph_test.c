// SPDX-License-Identifier: Apache-2.0
/* This test covers graphs and stream capture. */
#include "harness.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define CONTEXT (512 * MIB)

static uint64_t mine(void)
{
	return physical(getpid(), 0);
}

static CUgraphNode add_spin(CUgraph graph, const CUgraphNode *deps, size_t count, uint64_t ns)
{
	DRIVER(cuGraphAddKernelNode_v2, CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
	       const CUDA_KERNEL_NODE_PARAMS *);
	void *values[] = {&ns};
	CUDA_KERNEL_NODE_PARAMS params = {
		.func = kernel("spin"), .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
		.blockDimX = 32, .blockDimY = 1, .blockDimZ = 1, .kernelParams = values,
	};
	CUgraphNode node;

	OK(cuGraphAddKernelNode_v2(&node, graph, deps, count, &params));
	return node;
}

static double run_ms(CUgraphExec exec)
{
	DRIVER(cuGraphLaunch, CUgraphExec, CUstream);
	DRIVER(cuStreamSynchronize, CUstream);
	uint64_t before = gpu_time(getpid(), 0);

	OK(cuGraphLaunch(exec, NULL));
	OK(cuStreamSynchronize(NULL));
	return (double)(gpu_time(getpid(), 0) - before) / 1e6;
}

static void a_diamond(void)
{
	DRIVER(cuGraphCreate, CUgraph *, unsigned);
	DRIVER(cuGraphAddChildGraphNode, CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraph);
	DRIVER(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long);
	DRIVER(cuGraphExecKernelNodeSetParams_v2, CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS *);
	DRIVER(cuGraphKernelNodeGetParams_v2, CUgraphNode, CUDA_KERNEL_NODE_PARAMS *);
	DRIVER(cuGraphGetNodes, CUgraph, CUgraphNode *, size_t *);
	DRIVER(cuGraphExecDestroy, CUgraphExec);
	DRIVER(cuGraphDestroy, CUgraph);
	CUDA_KERNEL_NODE_PARAMS params;
	CUgraph graph, outer;
	CUgraphNode root, sides[2], last, child;
	CUgraphExec exec;
	uint64_t longer = 7 * MS;
	void *values[] = {&longer};
	size_t count;

	OK(cuGraphCreate(&graph, 0));
	root = add_spin(graph, NULL, 0, 2 * MS);
	sides[0] = add_spin(graph, &root, 1, 3 * MS);
	sides[1] = add_spin(graph, &root, 1, 4 * MS);
	last = add_spin(graph, sides, 2, 1 * MS);
	OK(cuGraphGetNodes(graph, NULL, &count));
	CHECK(count == 4);
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	BETWEEN(run_ms(exec), 6.999, 7.001); /* 2, then 3 beside 4, then 1 */
	OK(cuGraphKernelNodeGetParams_v2(last, &params));
	params.kernelParams = values;
	OK(cuGraphExecKernelNodeSetParams_v2(exec, last, &params));
	BETWEEN(run_ms(exec), 12.999, 13.001);
	OK(cuGraphExecDestroy(exec));

	OK(cuGraphCreate(&outer, 0));
	OK(cuGraphAddChildGraphNode(&child, outer, NULL, 0, graph));
	add_spin(outer, &child, 1, 1 * MS);
	OK(cuGraphDestroy(graph));
	OK(cuGraphInstantiateWithFlags(&exec, outer, 0));
	BETWEEN(run_ms(exec), 7.999, 8.001);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(outer));
}

static void graph_memory(void)
{
	DRIVER(cuGraphCreate, CUgraph *, unsigned);
	DRIVER(cuGraphAddMemAllocNode, CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
	       CUDA_MEM_ALLOC_NODE_PARAMS *);
	DRIVER(cuGraphAddMemFreeNode, CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);
	DRIVER(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long);
	DRIVER(cuGraphLaunch, CUgraphExec, CUstream);
	DRIVER(cuGraphUpload, CUgraphExec, CUstream);
	DRIVER(cuMemFreeAsync, CUdeviceptr, CUstream);
	DRIVER(cuDeviceGetGraphMemAttribute, CUdevice, int, void *);
	DRIVER(cuDeviceGraphMemTrim, CUdevice);
	DRIVER(cuGraphExecDestroy, CUgraphExec);
	DRIVER(cuGraphDestroy, CUgraph);
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
		.bytesize = 10 * MIB,
	};
	CUgraph graph;
	CUgraphNode alloc, node;
	CUgraphExec keeps, frees, huge;
	uint64_t base = mine(), value;

	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
	CHECK(params.dptr != 0 && mine() == base);
	OK(cuGraphInstantiateWithFlags(&keeps, graph, 0));
	OK(cuGraphAddMemFreeNode(&node, graph, &alloc, 1, params.dptr));
	OK(cuGraphInstantiateWithFlags(&frees, graph, 0));
	CHECK(mine() == base);
	OK(cuGraphUpload(frees, NULL));
	CHECK(mine() == base + 10 * MIB);
	OK(cuGraphLaunch(frees, NULL));
	OK(cuGraphLaunch(frees, NULL));
	CHECK(mine() == base + 10 * MIB); /* reserved until trimmed */
	OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &value));
	CHECK(value == 0);
	OK(cuDeviceGraphMemTrim(0));
	CHECK(mine() == base);
	OK(cuGraphLaunch(keeps, NULL));
	CHECK(cuGraphLaunch(keeps, NULL) == CUDA_ERROR_INVALID_VALUE); /* not freed yet */
	OK(cuDeviceGraphMemTrim(0));
	CHECK(mine() == base + 10 * MIB);
	OK(cuMemFreeAsync(params.dptr, NULL));
	OK(cuDeviceGraphMemTrim(0));
	CHECK(mine() == base);
	OK(cuGraphExecDestroy(keeps));
	OK(cuGraphExecDestroy(frees));
	OK(cuGraphDestroy(graph));
	params.bytesize = 5000 * MIB;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
	OK(cuGraphInstantiateWithFlags(&huge, graph, 0));
	CHECK(cuGraphLaunch(huge, NULL) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(mine() == base);
	OK(cuGraphExecDestroy(huge));
	OK(cuGraphDestroy(graph));
}

static void *query_event(void *event)
{
	DRIVER(cuEventQuery, CUevent);
	static CUresult result;

	result = cuEventQuery(event);
	return &result;
}

static CUresult query_in_another_thread(CUevent event)
{
	pthread_t thread;
	void *result;

	CHECK(pthread_create(&thread, NULL, query_event, event) == 0);
	CHECK(pthread_join(thread, &result) == 0);
	return *(CUresult *)result;
}

static void capture(void)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuStreamBeginCapture_v2, CUstream, int);
	DRIVER(cuStreamEndCapture, CUstream, CUgraph *);
	DRIVER(cuStreamIsCapturing, CUstream, int *);
	DRIVER(cuStreamWaitEvent, CUstream, CUevent, unsigned);
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream);
	DRIVER(cuMemFreeAsync, CUdeviceptr, CUstream);
	DRIVER(cuGraphGetNodes, CUgraph, CUgraphNode *, size_t *);
	DRIVER(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long);
	DRIVER(cuGraphExecDestroy, CUgraphExec);
	DRIVER(cuGraphDestroy, CUgraph);
	CUstream a, b;
	CUevent fork_event, join_event;
	CUdeviceptr address;
	CUgraphExec exec;
	CUgraph graph;
	uint64_t base = mine(), time_before = gpu_time(getpid(), 0);
	size_t count;
	int status;

	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&fork_event, 0));
	OK(cuEventCreate(&join_event, 0));
	OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemAllocAsync(&address, 8 * MIB, a));
	spin(a, 2 * MS, 1);
	OK(cuEventRecord(fork_event, a));
	OK(cuStreamWaitEvent(b, fork_event, 0));
	spin(b, 4 * MS, 1);
	OK(cuStreamIsCapturing(b, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	OK(cuEventRecord(join_event, b));
	spin(a, 3 * MS, 1);
	OK(cuStreamWaitEvent(a, join_event, 0));
	OK(cuMemFreeAsync(address, a));
	OK(cuStreamEndCapture(a, &graph));
	CHECK(gpu_time(getpid(), 0) == time_before && mine() == base);
	OK(cuGraphGetNodes(graph, NULL, &count));
	CHECK(count == 5);
	OK(cuStreamIsCapturing(b, &status));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	BETWEEN(run_ms(exec), 5.999, 6.001);
	CHECK(mine() == base + 8 * MIB);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

static void captures_that_break(void)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuStreamBeginCapture_v2, CUstream, int);
	DRIVER(cuStreamEndCapture, CUstream, CUgraph *);
	DRIVER(cuStreamSynchronize, CUstream);
	DRIVER(cuStreamWaitEvent, CUstream, CUevent, unsigned);
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuGraphDestroy, CUgraph);
	CUstream a, b;
	CUevent fork_event, plain;
	CUgraph graph;

	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&fork_event, 0));
	OK(cuEventCreate(&plain, 0));
	/* Another thread's event query invalidates a global capture. */
	OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(query_in_another_thread(plain) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK(cuStreamEndCapture(a, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	/* Another thread's event query does not invalidate a thread-local capture. */
	OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	CHECK(query_in_another_thread(plain) == CUDA_SUCCESS);
	OK(cuStreamEndCapture(a, &graph));
	OK(cuGraphDestroy(graph));
	/* A capture with unjoined work is invalid. */
	OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuEventRecord(fork_event, a));
	OK(cuStreamWaitEvent(b, fork_event, 0));
	spin(b, MS, 1);
	CHECK(cuStreamEndCapture(a, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	/* A wait for a capturing stream is also invalid. */
	OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(cuStreamSynchronize(a) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CHECK(cuStreamEndCapture(a, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static void all(void *unused)
{
	(void)unused;
	begin();
	kernel("spin");
	a_diamond();
	graph_memory();
	capture();
	captures_that_break();
}

int main(void)
{
	finish(start(all, NULL));
	CHECK(used(0) == 0);
	return 0;
}
