// SPDX-License-Identifier: Apache-2.0
/* What the parts of the simulated driver share. */
#ifndef GPUSIM_SIM_H
#define GPUSIM_SIM_H

#include "cuda_abi.h"
#include "ptx.h"
#include "timeline.h"

#define CU_API __attribute__((visibility("default")))

/*
 * Defines the pair of functions of a call with a stream: the plain name, where
 * stream 0 is the legacy default stream, and the _ptsz or _ptds name, where it
 * is the calling thread's. In the expression, `ptds` says which one it is.
 */
#define CU_PAIR(name, suffix, params, expression) \
	CU_API CUresult name params; \
	CU_API CUresult name##suffix params; \
	CU_API CUresult name params \
	{ \
		const bool ptds = false; \
		(void)ptds; \
		return expression; \
	} \
	CU_API CUresult name##suffix params \
	{ \
		const bool ptds = true; \
		(void)ptds; \
		return expression; \
	}
#define CU_PTSZ(name, params, expression) CU_PAIR(name, _ptsz, params, expression)
#define CU_PTDS(name, params, expression) CU_PAIR(name, _ptds, params, expression)

/* ---- the process (init.c) ---- */

struct sim_device {
	uint32_t gpu; /* index in the state */
	struct sim_context *primary;
	struct sim_pool *default_pool;
	struct sim_pool *current_pool;
	uint64_t graph_reserved, graph_reserved_high, graph_used, graph_used_high;
};

struct sim {
	struct gs_handle handle;
	uint32_t *live; /* NULL before cuInit; points to 0 in a forked child */
	bool ended; /* the process exits, and calls are refused (profile key exit) */
	int device_count;
	struct sim_device devices[GS_MAX_GPUS];
	struct sim_context *contexts; /* all ever made: threads may hold dead ones */
	/* Lock order: queue, then mutex, then the machine's. */
	pthread_mutex_t queue; /* held while a call puts work into streams */
	pthread_mutex_t mutex; /* guards everything else of the process */
	uint64_t next_id;
};

extern struct sim sim;

void sim_lock(void);
void sim_unlock(void);

/* Whether the thread is in a function that a stream called (hostfn.c). */
extern __thread bool sim_in_host_call;

/* 0, or why no call can be served: not initialised, in a forked child or in a host call, or shut down. */
CUresult sim_ready(void);

/* The device with this ordinal, or CUDA_ERROR_INVALID_DEVICE. */
CUresult sim_device(CUdevice ordinal, struct sim_device **device);

static inline struct gs_gpu *sim_gpu(const struct sim_device *device)
{
	return &sim.handle.state->gpus[device->gpu];
}

static inline uint64_t round_up(uint64_t value, uint64_t multiple)
{
	return (value + multiple - 1) / multiple * multiple;
}

/* Charges physical memory of a device; CUDA_ERROR_OUT_OF_MEMORY if refused. */
CUresult sim_charge(struct sim_device *device, uint64_t bytes);
void sim_uncharge(struct sim_device *device, uint64_t bytes);

/* ---- the Multi-Process Service (mps.c) ---- */

/* Becomes a client, where a control daemon answers. Before any other of these. */
CUresult sim_mps_join(void);
/* Takes the limits on memory, once the devices are known. */
void sim_mps_limit(void);
/* Whether the process may see the GPU: the server serves it, or there is none. */
bool sim_mps_serves(uint32_t gpu);
bool sim_mps_client(void);
/* The SMs of a GPU that the process sees. */
uint32_t sim_mps_sms(const struct gs_gpu *gpu);
/* Work that would fill more of the GPU than the process's part takes longer. */
void sim_mps_squeeze(struct gs_work *work);
/* An error once the server has gone. */
CUresult sim_mps_alive(void);
/* Whether the process may have a context on the device. */
CUresult sim_mps_admit(const struct sim_device *device);

/* ---- contexts (context.c) ---- */

/* Threads that one multiprocessor can hold at a time. */
#define THREADS_PER_SM 2048

/*
 * A hardware queue, into which several streams' work goes in order. What stands
 * at its head blocks what is behind it: a kernel until it is issued, which is when
 * what it waits for is done, an event until it is reached.
 */
struct sim_connection {
	struct gs_ref issued; /* ends when all that was put in has been issued */
	struct gs_ref ended;  /* …when it has ended */
};

struct sim_context {
	struct sim_context *next;
	struct sim_device *device;
	bool alive;
	bool primary;
	unsigned references; /* of a primary context */
	unsigned flags;
	unsigned version;
	uint64_t id;
	uint64_t bytes;
	uint64_t limits[16];
	uint64_t raised[3]; /* bytes that raised limits took: stack, FIFO, heap */
	uint16_t peers; /* devices whose memory may be reached, a bit each */
	struct sim_stream *legacy;
	struct sim_stream *streams;
	size_t stream_count;
	struct sim_connection connections[GS_MAX_CONNECTIONS];
	uint32_t connection_count; /* 0: each stream has one of its own */
	uint32_t next_connection;  /* which the next stream gets */
	bool blocking;             /* launches of kernels wait for their end */
	struct sim_event *events;
	struct sim_module *modules;
	struct sim_texture *textures; /* and surfaces */
	struct sim_green *green;
	pthread_mutex_t loading; /* held while code is loaded into it (loading.c) */
};

/* The calling thread's context, alive, or an error. */
CUresult sim_current(struct sim_context **context);

/* A context by handle; NULL means the current one. */
CUresult sim_context_of(CUcontext handle, struct sim_context **context);

CUresult sim_context_new(struct sim_device *device, unsigned flags, struct sim_context **out);
/* Destroys all that lives in it. */
void sim_context_end(struct sim_context *context);
void sim_push(struct sim_context *context);
/* What its limits take, if it is taken now: a kernel is about to be launched. */
CUresult sim_limits_take(struct sim_context *context);
/* Gives back what raised limits took. */
void sim_limits_end(struct sim_context *context);

/* ---- device addresses and allocations (table.c) ---- */

enum alloc_kind {
	ALLOC_LINEAR,
	ALLOC_MANAGED,
	ALLOC_ARRAY,
	ALLOC_POOL,
	ALLOC_GRAPH,
	ALLOC_IMPORT, /* another's memory: costs nothing here, unless it outlives that one */
	ALLOC_RESERVED, /* address range of the virtual memory calls */
	ALLOC_HOST, /* page-locked host memory */
};

struct sim_alloc {
	CUdeviceptr address;
	uint64_t size;
	uint64_t charged;
	enum alloc_kind kind;
	bool backed; /* host memory lies behind the address */
	bool registered; /* ALLOC_HOST: the program's own memory */
	uint64_t id;
	struct sim_device *device;
	struct sim_context *context;
	struct sim_pool *pool;
	struct sim_block *block; /* of a pool that can be shared, see pool.h */
	uint64_t content; /* bytes from the start that may hold content */
	uint64_t shared; /* id of memory that was exported or imported, see share.h */
	uint32_t chunk; /* one more than its chunk's index, 0: none (chunk.c) */
	unsigned flags;
};

/*
 * Takes an address range and files it; NULL if none is left. The pointer holds
 * only until the next call of this kind.
 */
struct sim_alloc *sim_alloc_new(enum alloc_kind kind, uint64_t size, uint64_t alignment);
/* As above, below 4 GiB, without memory behind it: for the first API. */
struct sim_alloc *sim_alloc_new_low(uint64_t size);
/* As the first, within these bounds; `low` is for the first API. */
struct sim_alloc *sim_alloc_within(enum alloc_kind kind, uint64_t from, uint64_t to, uint64_t size,
				   bool low);
/* Where chunks may lie. */
bool sim_chunk_bounds(bool low, uint64_t *from, uint64_t *to);
/* Files a range that the caller found. */
struct sim_alloc *sim_alloc_at(enum alloc_kind kind, CUdeviceptr address, uint64_t size);
/* The allocation that begins here, or that this address lies in. */
struct sim_alloc *sim_alloc_exact(CUdeviceptr address);
struct sim_alloc *sim_alloc_find(CUdeviceptr address);
void sim_alloc_drop(struct sim_alloc *alloc);
/* Frees whatever a context owns. */
void sim_alloc_drop_context(struct sim_context *context);
/* Frees the allocations from a device's pools and graphs. With the lock. */
void sim_alloc_drop_pools(const struct sim_device *device);
/* Frees one allocation of any kind: charge and address. */
void sim_alloc_free(struct sim_alloc *alloc);
/* Graph memory goes back to its device's reserve; false if it was free. */
bool sim_graph_memory_free(struct sim_alloc *alloc);
/* Host memory of a device address, if content is kept there; NULL if not. */
void *sim_content(CUdeviceptr address, uint64_t size);

/* ---- sub-allocation (chunk.c) ---- */

/*
 * Takes and charges linear memory as a driver with chunks does. With the lock; NULL with
 * *err set.
 */
struct sim_alloc *sim_chunk_alloc(struct sim_context *context, enum alloc_kind kind, uint64_t size,
				  bool low, CUresult *err);
/* A piece leaves its chunk. With the lock. */
void sim_chunk_leave(const struct sim_alloc *alloc);
/* The empty chunks of a context that ends. With the lock. */
void sim_chunks_end(const struct sim_context *context);

/* ---- loading of code (loading.c) ---- */

/* Encloses the loading of code into a context: takes its lock, waits for its work. */
void sim_load_begin(struct sim_context *context);
void sim_load_end(struct sim_context *context);
/* The machine code that an image states to hold when decompressed, 0: none. */
uint64_t sim_image_stated(const void *image);
/* Opens the library that the profile names, once. */
void sim_open_constructor(void);

/* ---- streams (stream.c) and the queue (queue.c) ---- */

struct sim_stream {
	struct sim_stream *next;
	struct sim_context *context;
	uint32_t magic;
	unsigned flags;
	int priority;
	uint64_t id;
	uint64_t thread; /* of a per-thread default stream */
	struct gs_ref last;
	struct sim_connection *connection; /* NULL: one of its own */
	struct sim_capture *capture;
	struct sim_node **tips; /* capture: nodes that the next one depends on */
	size_t tip_count;
};

struct sim_event {
	struct sim_event *next;
	struct sim_context *context;
	uint32_t magic;
	unsigned flags;
	bool recorded;
	bool destroyed;
	unsigned in_flight; /* records whose items are not collected yet */
	struct gs_ref last;
	uint64_t end_ns;
	struct sim_capture *capture; /* last record was a captured one */
	uint64_t capture_id;
	struct sim_node **tips;
	size_t tip_count;
};

/* The stream that a handle names in the current context. */
CUresult sim_stream_of(CUstream handle, bool ptds, struct sim_stream **stream);
CUresult sim_stream_new(struct sim_context *context, unsigned flags, int priority,
			struct sim_stream **out);
void sim_stream_free(struct sim_stream *stream);
void sim_event_free(struct sim_event *event);

/*
 * Queues work in a stream, after what precedes it there; blocks while the
 * process's queue is full. The caller holds neither lock.
 */
CUresult sim_submit(struct sim_stream *stream, struct gs_work *work, struct gs_ref *ref);

/* The same for a part of a graph: after these items only, stream untouched. */
CUresult sim_submit_after(struct sim_device *device, struct gs_work *work,
			  const struct gs_ref *deps, size_t count, struct gs_ref *ref);
/* Lets one caller queue a row of things undivided. */
void sim_queue_lock(void);
void sim_queue_unlock(void);
bool sim_ref_pending(struct gs_ref ref);
/* Sleeps for as long as a real driver takes for something. */
void sim_pass(uint64_t ns);
void sim_wait(struct gs_ref ref);
void sim_wait_stream(struct sim_stream *stream);
void sim_wait_context(struct sim_context *context);
bool sim_stream_busy(struct sim_stream *stream);
/* Takes the ends of finished events off the timeline. Needs both locks. */
void sim_collect(void);
/* Queues a call of the function in the stream. */
CUresult sim_host_call(struct sim_stream *stream, CUhostFn fn, void *data);
CUresult sim_host_call_after(struct sim_device *device, CUhostFn fn, void *data,
			     const struct gs_ref *deps, size_t count, struct gs_ref *ref);

/* ---- modules and kernels (ptx.h, module.c, launch.c) ---- */

struct sim_function {
	uint32_t magic;
	struct sim_module *module;
	const struct ptx_entry *entry;
	unsigned block[3];          /* of the first API's launches */
	unsigned shared;
	unsigned char params[4096];
	unsigned max_dynamic_shared;
};

/* A launch, reduced to what the timeline needs. */
struct sim_launch {
	uint64_t duration_ns;
	uint32_t demand_ppm;
	uint64_t mine, theirs, turn; /* of a kernel that meets another */
};

CUresult sim_function_of(CUfunction handle, struct sim_function **function);
CUresult sim_measure(const struct sim_device *device, const struct sim_function *function,
		     const unsigned grid[3], const unsigned block[3], void **params, void **extra,
		     struct sim_launch *launch);
void sim_module_free(struct sim_module *module);

/* Drops a context's texture and surface objects (texture.c). */
void sim_textures_end(struct sim_context *context);

/* ---- pools (pool.c) ---- */

CUresult sim_pool_alloc(struct sim_pool *pool, uint64_t size, CUdeviceptr *address);
/* A piece leaves its pool. With the lock. */
void sim_pool_give_back(const struct sim_alloc *alloc);
/* Returns what pools hold beyond their thresholds: at synchronisation. */
void sim_pools_trim(struct sim_device *device, bool all);
void sim_pools_synced(void);
/* Frees all that a device's pools and graphs hold: its primary context ends. */
void sim_pools_reset(struct sim_device *device);

/* ---- capture (capture.c) and graphs ---- */

/* Whether the stream is being captured; error if its capture is broken. */
bool sim_capturing(const struct sim_stream *stream);
/* Calls that a capture elsewhere forbids: 0, or the error, breaking it. */
CUresult sim_capture_guard(void);
CUresult sim_capture_sync_guard(struct sim_stream *stream);
/* The same for calls that encompass all streams of a context, whatever the thread's mode. */
CUresult sim_capture_context_guard(struct sim_context *context);
/* Before work goes into a stream: the legacy stream is unusable beside the capture of a
 * blocking stream, and using it breaks that. */
CUresult sim_capture_enqueue_guard(struct sim_stream *stream);
/* Whether the stream is the legacy one, with a blocking stream of its context captured. */
bool sim_capture_implicit(struct sim_stream *stream);
/* A captured event is asked for its status: that breaks its capture. */
CUresult sim_capture_asked(const struct sim_event *event);
CUresult sim_capture_kernel(struct sim_stream *stream, const CUDA_KERNEL_NODE_PARAMS *params);
CUresult sim_capture_memset(struct sim_stream *stream, const CUDA_MEMSET_NODE_PARAMS *params);
CUresult sim_capture_copy(struct sim_stream *stream, const CUDA_MEMCPY3D *params);
CUresult sim_capture_host(struct sim_stream *stream, CUhostFn fn, void *data);
CUresult sim_capture_alloc(struct sim_stream *stream, uint64_t size, CUdeviceptr *address);
CUresult sim_capture_free(struct sim_stream *stream, CUdeviceptr address);
CUresult sim_capture_event(struct sim_stream *stream, struct sim_event *event);
CUresult sim_capture_wait(struct sim_stream *stream, struct sim_event *event);
CUresult sim_capture_child(struct sim_stream *stream, struct sim_graph *graph);
void sim_capture_abandon(struct sim_stream *stream);

#endif
