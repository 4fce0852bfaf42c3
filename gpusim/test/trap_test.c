// SPDX-License-Identifier: Apache-2.0
/*
 * This test covers kernels that end with an exception. All later calls return the exception's error
 * until the program destroys or resets the context. Other processes are not affected.
 */
#include "harness.h"

#include <stdbool.h>
#include <unistd.h>

enum { ILLEGAL_ADDRESS = 700, XID_MMU_FAULT = 31 };

#define CONTEXT (512 * MIB)
#define BUFFER (64 * MIB)
#define LONG_NS (2000 * MS)

/* objects are the objects of a context with a trapped kernel. */
struct objects {
	CUfunction spin;
	CUstream stream;
	CUevent event;
	CUdeviceptr buffer;
};

static struct objects make_objects(void)
{
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuEventCreate, CUevent *, unsigned);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	struct objects objects = {.spin = kernel("spin")};

	OK(cuStreamCreate(&objects.stream, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&objects.event, 0));
	OK(cuMemAlloc_v2(&objects.buffer, BUFFER));
	OK(cuEventRecord(objects.event, objects.stream));
	return objects;
}

/* trapped runs a kernel that traps beside a long kernel, and with long kernels behind both kernels. */
static struct objects trapped(void)
{
	DRIVER(cuStreamSynchronize, CUstream);
	struct objects objects = make_objects();
	uint64_t begin;

	OK(launch_for(objects.spin, objects.stream, LONG_NS, 1));
	OK(launch_for(objects.spin, objects.stream, LONG_NS, 1));
	OK(launch_for(kernel("trap"), NULL, 5 * MS, 1));
	begin = gs_now();
	CHECK(cuStreamSynchronize(objects.stream) == ILLEGAL_ADDRESS);
	BETWEEN(gs_now() - begin, 0, LONG_NS / 2);
	return objects;
}

/* all_fail checks that the calls of a context with a trapped kernel return the exception's error. */
static void all_fail(const struct objects *o)
{
	DRIVER(cuStreamSynchronize, CUstream);
	DRIVER(cuStreamQuery, CUstream);
	DRIVER(cuStreamDestroy_v2, CUstream);
	DRIVER(cuEventQuery, CUevent);
	DRIVER(cuEventSynchronize, CUevent);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	DRIVER(cuCtxSynchronize, void);
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	DRIVER(cuMemGetInfo_v2, size_t *, size_t *);
	DRIVER(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t);
	DRIVER(cuMemsetD8Async, CUdeviceptr, unsigned char, size_t, CUstream);
	DRIVER(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice);
	CUdeviceptr address;
	CUcontext context;
	size_t bytes;
	char byte;
	float ms;

	CHECK(launch_for(o->spin, o->stream, MS, 1) == ILLEGAL_ADDRESS);
	CHECK(cuStreamQuery(o->stream) == ILLEGAL_ADDRESS);
	CHECK(cuStreamSynchronize(NULL) == ILLEGAL_ADDRESS);
	CHECK(cuStreamDestroy_v2(o->stream) == ILLEGAL_ADDRESS);
	CHECK(cuEventQuery(o->event) == ILLEGAL_ADDRESS);
	CHECK(cuEventSynchronize(o->event) == ILLEGAL_ADDRESS);
	CHECK(cuEventRecord(o->event, o->stream) == ILLEGAL_ADDRESS);
	CHECK(cuEventElapsedTime(&ms, o->event, o->event) == ILLEGAL_ADDRESS);
	CHECK(cuCtxSynchronize() == ILLEGAL_ADDRESS);
	CHECK(cuMemAlloc_v2(&address, MIB) == ILLEGAL_ADDRESS);
	CHECK(cuMemFree_v2(o->buffer) == ILLEGAL_ADDRESS);
	CHECK(cuMemGetInfo_v2(&bytes, &bytes) == ILLEGAL_ADDRESS);
	CHECK(cuMemcpyDtoH_v2(&byte, o->buffer, 1) == ILLEGAL_ADDRESS);
	CHECK(cuMemsetD8Async(o->buffer, 0, 1, o->stream) == ILLEGAL_ADDRESS);
	CHECK(cuCtxCreate_v2(&context, 0, 0) == ILLEGAL_ADDRESS);
}

static void the_error_stays(void *unused)
{
	struct objects objects;
	uint64_t time;

	(void)unused;
	begin();
	objects = trapped();
	time = gpu_time(getpid(), 0);
	all_fail(&objects);
	CHECK(physical(getpid(), 0) >= CONTEXT + BUFFER);
	sleep_ns(20 * MS);
	CHECK(gpu_time(getpid(), 0) == time); /* the queued kernels do not run */
	CHECK(observer()->state->xids[observer()->state->xid_seq % GS_XID_RING].xid == XID_MMU_FAULT);
}

static void a_reset_frees_the_memory(void *unused)
{
	DRIVER(cuDevicePrimaryCtxReset_v2, CUdevice);
	DRIVER(cuStreamSynchronize, CUstream);
	DRIVER(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	CUdeviceptr address;
	CUcontext context;

	(void)unused;
	begin();
	trapped();
	OK(cuDevicePrimaryCtxReset_v2(0));
	CHECK(physical(getpid(), 0) == 0);
	OK(cuDevicePrimaryCtxRetain(&context, 0));
	OK(cuMemAlloc_v2(&address, MIB));
	OK(cuStreamSynchronize(NULL));
}

/* The error stays until the last context of the GPU is destroyed. */
static void a_destroyed_context_frees_its_memory(void *unused)
{
	DRIVER(cuInit, unsigned);
	DRIVER(cuCtxCreate_v2, CUcontext *, unsigned, CUdevice);
	DRIVER(cuCtxDestroy_v2, CUcontext);
	DRIVER(cuStreamSynchronize, CUstream);
	CUcontext first, second;

	(void)unused;
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&first, 0, 0));
	OK(cuCtxCreate_v2(&second, 0, 0));
	trapped();
	OK(cuCtxDestroy_v2(second));
	CHECK(cuStreamSynchronize(NULL) == ILLEGAL_ADDRESS);
	OK(cuCtxDestroy_v2(first));
	CHECK(physical(getpid(), 0) == 0);
	OK(cuCtxCreate_v2(&first, 0, 0));
	OK(cuStreamSynchronize(NULL));
}

static void a_node_of_a_graph_traps(void *unused)
{
	DRIVER(cuGraphCreate, CUgraph *, unsigned);
	DRIVER(cuGraphAddKernelNode_v2, CUgraphNode *, CUgraph, const CUgraphNode *, size_t,
	       const CUDA_KERNEL_NODE_PARAMS *);
	DRIVER(cuGraphInstantiateWithFlags, CUgraphExec *, CUgraph, unsigned long long);
	DRIVER(cuGraphLaunch, CUgraphExec, CUstream);
	DRIVER(cuGraphExecDestroy, CUgraphExec);
	DRIVER(cuGraphDestroy, CUgraph);
	DRIVER(cuStreamSynchronize, CUstream);
	uint64_t ns = MS;
	void *params[] = {&ns};
	CUDA_KERNEL_NODE_PARAMS p = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
				     .blockDimY = 1, .blockDimZ = 1, .kernelParams = params};
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node;

	(void)unused;
	begin();
	p.func = kernel("trap");
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddKernelNode_v2(&node, graph, NULL, 0, &p));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphLaunch(exec, NULL));
	CHECK(cuStreamSynchronize(NULL) == ILLEGAL_ADDRESS);
	OK(cuGraphExecDestroy(exec));
	OK(cuGraphDestroy(graph));
}

static void note(void *called)
{
	*(bool *)called = true;
}

/* A function of the host behind a trapped kernel is not called. */
static void functions_are_not_called(void *unused)
{
	DRIVER(cuLaunchHostFunc, CUstream, CUhostFn, void *);
	DRIVER(cuStreamSynchronize, CUstream);
	static bool called;

	(void)unused;
	begin();
	OK(launch_for(kernel("trap"), NULL, 5 * MS, 1));
	OK(cuLaunchHostFunc(NULL, note, &called));
	CHECK(cuStreamSynchronize(NULL) == ILLEGAL_ADDRESS);
	CHECK(!called);
}

static void run_and_trap(void *unused)
{
	(void)unused;
	begin();
	trapped();
}

/* Processes that share a GPU by time continue. */
static void others_continue(void)
{
	DRIVER(cuStreamSynchronize, CUstream);
	pid_t other = start(run_and_trap, NULL);

	begin();
	spin(NULL, 400 * MS, 1);
	finish(other);
	OK(cuStreamSynchronize(NULL));
	BETWEEN(gpu_time(getpid(), 0), 400 * MS, 401 * MS);
}

int main(void)
{
	finish(start(the_error_stays, NULL));
	finish(start(a_reset_frees_the_memory, NULL));
	finish(start(a_destroyed_context_frees_its_memory, NULL));
	finish(start(a_node_of_a_graph_traps, NULL));
	finish(start(functions_are_not_called, NULL));
	CHECK(used(0) == 0);
	others_continue();
	return 0;
}
