// SPDX-License-Identifier: Apache-2.0
/* The parts of the simulated driver share these declarations. */
#ifndef GPUSIM_SIM_H
#define GPUSIM_SIM_H

#include "abi.h"
#include "ptx.h"
#include "timeline.h"

#define CU_API __attribute__((visibility("default")))

/*
 * CU_PAIR defines the two functions of a call with a stream. In the function with the plain name,
 * stream 0 is the legacy default stream. In the function with the suffix _ptsz or _ptds, stream 0
 * is the calling thread's default stream. In the expression, `ptds` selects the default stream.
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

/* ---- the process (core.c) ---- */

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
	struct sim_context *contexts; /* all contexts: threads may hold ended ones */
	/* The lock order is queue, mutex, the machine's lock. */
	pthread_mutex_t queue; /* held while a call queues work in streams */
	pthread_mutex_t mutex; /* guards everything else of the process */
	uint64_t next_id;
};

extern struct sim sim;

void sim_lock(void);
void sim_unlock(void);

/* sim_in_host_call reports whether the thread is in a function that a stream called (hostfn.c). */
extern __thread bool sim_in_host_call;

/* sim_ready returns an error if the driver is not initialised or has shut down. sim_ready also
 * returns an error if the caller is a forked child or a host function. */
CUresult sim_ready(void);

/* sim_device returns the device with this ordinal, or CUDA_ERROR_INVALID_DEVICE. */
CUresult sim_device(CUdevice ordinal, struct sim_device **device);

static inline struct gs_gpu *sim_gpu(const struct sim_device *device)
{
	return &sim.handle.state->gpus[device->gpu];
}

/* sim_lost reports whether the device's card has fallen off the bus. */
static inline bool sim_lost(const struct sim_device *device)
{
	return __atomic_load_n(&gs_card(sim.handle.state, device->gpu)->faults.lost,
			       __ATOMIC_RELAXED);
}

/* sim_broken returns the error of all calls on a device: the card is lost, or a kernel of this
 * process has trapped. */
static inline CUresult sim_broken(const struct sim_device *device)
{
	const struct gs_proc *me = &sim.handle.state->procs[sim.handle.id];

	if (sim_lost(device))
		return CUDA_ERROR_UNKNOWN;
	return (CUresult)__atomic_load_n(&me->gpu[device->gpu].trapped, __ATOMIC_RELAXED);
}

static inline uint64_t round_up(uint64_t value, uint64_t multiple)
{
	return (value + multiple - 1) / multiple * multiple;
}

/* sim_charge charges physical memory of a device. sim_charge returns CUDA_ERROR_OUT_OF_MEMORY if
 * refused. */
CUresult sim_charge(struct sim_device *device, uint64_t bytes);
void sim_uncharge(struct sim_device *device, uint64_t bytes);

/* ---- the Multi-Process Service (mps.c) ---- */

/* sim_mps_join makes the process a client if a control daemon answers. Call this function before
 * the other functions. */
CUresult sim_mps_join(void);
/* sim_mps_limit applies the memory limits. Call this function when the devices are known. */
void sim_mps_limit(void);
/* sim_mps_serves reports whether the process may see the GPU: the server serves the GPU, or no
 * server runs. */
bool sim_mps_serves(uint32_t gpu);
bool sim_mps_client(void);
/* sim_mps_sms returns the SMs of a GPU that the process sees. */
uint32_t sim_mps_sms(const struct gs_gpu *gpu);
/* sim_mps_squeeze lengthens work that would occupy more of the GPU than the process's part. */
void sim_mps_squeeze(struct gs_work *work);
/* sim_mps_alive returns an error if the server is gone. */
CUresult sim_mps_alive(void);
/* sim_mps_admit checks whether the process may have a context on the device. */
CUresult sim_mps_admit(const struct sim_device *device);

/* ---- contexts (context.c, current.c) ---- */

/* THREADS_PER_SM is the number of threads that a multiprocessor can hold at a time. */
#define THREADS_PER_SM 2048

/*
 * sim_connection is a hardware queue, which takes the work of several streams in order. The first
 * item blocks the work behind the item. A kernel blocks until the kernel is issued, and an event
 * blocks until the event is reached. A kernel is issued when its dependencies are done.
 */
struct sim_connection {
	struct gs_ref issued; /* ends when all queued work has been issued */
	struct gs_ref ended;  /* ends when all queued work has ended */
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
	uint64_t raised[3]; /* bytes that raised limits have taken: stack, FIFO, heap */
	uint16_t peers; /* devices whose memory is accessible, a bit each */
	struct sim_stream *legacy;
	struct sim_stream *streams;
	size_t stream_count;
	struct sim_connection connections[GS_MAX_CONNECTIONS];
	uint32_t connection_count; /* 0: each stream has a separate queue */
	uint32_t next_connection;  /* index for the next stream */
	bool blocking;             /* launches of kernels wait for their end */
	struct sim_event *events;
	struct sim_module *modules;
	struct sim_texture *textures; /* also of surfaces */
	struct sim_green *green;
	pthread_mutex_t loading; /* held while code is loaded into the context (loading.c) */
};

/* sim_current returns the calling thread's context if the context is alive, or an error. */
CUresult sim_current(struct sim_context **context);

/* sim_context_of returns the context of a handle. NULL names the current context. */
CUresult sim_context_of(CUcontext handle, struct sim_context **context);

CUresult sim_context_new(struct sim_device *device, unsigned flags, struct sim_context **out);
/* sim_context_end destroys all objects of the context. */
void sim_context_end(struct sim_context *context);
void sim_push(struct sim_context *context);
/* sim_pop removes the context from the thread's stack if the context is on top. */
void sim_pop(const struct sim_context *context);
bool sim_is_alive(const struct sim_context *context);
/* sim_limits_take charges raised limits whose memory is taken at a kernel's launch. */
CUresult sim_limits_take(struct sim_context *context);
/* sim_limits_end frees the memory that raised limits took. */
void sim_limits_end(struct sim_context *context);

/* ---- device addresses and allocations (table.c) ---- */

enum alloc_kind {
	ALLOC_LINEAR,
	ALLOC_MANAGED,
	ALLOC_ARRAY,
	ALLOC_POOL,
	ALLOC_GRAPH,
	ALLOC_IMPORT, /* another process's memory, charged here only if the memory outlives the exporter */
	ALLOC_RESERVED, /* address range of the virtual memory calls */
	ALLOC_HOST, /* page-locked host memory */
};

struct sim_alloc {
	CUdeviceptr address;
	uint64_t size;
	uint64_t charged;
	enum alloc_kind kind;
	bool backed; /* the address has host memory */
	bool registered; /* ALLOC_HOST: the program's own memory */
	uint64_t id;
	struct sim_device *device;
	struct sim_context *context;
	struct sim_pool *pool;
	struct sim_block *block; /* of a pool that can be shared, see pool.h */
	uint64_t content; /* bytes from the start that may hold content */
	uint64_t shared; /* id of memory that was exported or imported, see share.h */
	struct memory *memory; /* memory that a descriptor may hold, or NULL, see vmm.c */
	uint32_t chunk; /* one more than its chunk's index, 0: none (chunk.c) */
	unsigned flags;
};

/*
 * sim_alloc_new takes an address range and adds the range to the table, or returns NULL if no range
 * is left. The pointer is valid only until the next call that adds or drops a range.
 */
struct sim_alloc *sim_alloc_new(enum alloc_kind kind, uint64_t size, uint64_t alignment);
/* sim_alloc_new_low is sim_alloc_new for addresses below 4 GiB, without host memory, for the first
 * API. */
struct sim_alloc *sim_alloc_new_low(uint64_t size);
/* sim_alloc_within is sim_alloc_new within these bounds. `low` is for the first API. */
struct sim_alloc *sim_alloc_within(enum alloc_kind kind, uint64_t from, uint64_t to, uint64_t size,
				   bool low);
/* sim_chunk_bounds returns the bounds of the chunks. */
bool sim_chunk_bounds(bool low, uint64_t *from, uint64_t *to);
/* sim_alloc_at adds a range that the caller found. */
struct sim_alloc *sim_alloc_at(enum alloc_kind kind, CUdeviceptr address, uint64_t size);
/* sim_alloc_exact returns the allocation that begins at this address, and sim_alloc_find returns
 * the allocation that contains this address. */
struct sim_alloc *sim_alloc_exact(CUdeviceptr address);
struct sim_alloc *sim_alloc_find(CUdeviceptr address);
/* These functions iterate over all allocations, by address. */
size_t sim_alloc_count(void);
struct sim_alloc *sim_alloc_entry(size_t index);
void sim_alloc_drop(struct sim_alloc *alloc);

/* ---- freeing allocations (free.c) ---- */

/* sim_alloc_drop_context frees all allocations of a context. */
void sim_alloc_drop_context(struct sim_context *context);
/* sim_alloc_drop_pools frees the allocations from a device's pools and graphs. The caller holds the
 * lock. */
void sim_alloc_drop_pools(const struct sim_device *device);
/* sim_alloc_free frees the address and the charge of one allocation of any kind. */
void sim_alloc_free(struct sim_alloc *alloc);
/* sim_graph_memory_free returns graph memory to the device's reserve. The result is false if the
 * memory was already free. */
bool sim_graph_memory_free(struct sim_alloc *alloc);
/* sim_content returns the host memory behind a device address, or NULL if the address stores no
 * content. */
void *sim_content(CUdeviceptr address, uint64_t size);

/* ---- sub-allocation (chunk.c) ---- */

/*
 * sim_chunk_alloc takes and charges linear memory as a driver with chunks does. sim_chunk_alloc
 * returns NULL and sets *err on failure. The caller holds the lock.
 */
struct sim_alloc *sim_chunk_alloc(struct sim_context *context, enum alloc_kind kind, uint64_t size,
				  bool low, CUresult *err);
/* sim_chunk_leave removes an allocation from its chunk. The caller holds the lock. */
void sim_chunk_leave(const struct sim_alloc *alloc);
/* sim_chunks_end frees the empty chunks of a context that ends. The caller holds the lock. */
void sim_chunks_end(const struct sim_context *context);

/* ---- loading of code (loading.c) ---- */

/* sim_load_begin and sim_load_end enclose the loading of code into a context. sim_load_begin takes
 * the context's lock and waits for the context's work. */
void sim_load_begin(struct sim_context *context);
void sim_load_end(struct sim_context *context);
/* sim_image_stated returns the size of the decompressed machine code that an image states, or 0 if
 * the image states no size. */
uint64_t sim_image_stated(const void *image);
/* sim_open_constructor opens the library that the profile names, once. */
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
	struct sim_connection *connection; /* NULL: a separate queue */
	struct sim_capture *capture;
	struct sim_node **tips; /* capture: nodes that the next node depends on */
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
	struct sim_capture *capture; /* set if the last record was captured */
	uint64_t capture_id;
	struct sim_node **tips;
	size_t tip_count;
};

/* sim_stream_of returns the stream of a handle in the current context. */
CUresult sim_stream_of(CUstream handle, bool ptds, struct sim_stream **stream);
CUresult sim_stream_new(struct sim_context *context, unsigned flags, int priority,
			struct sim_stream **out);
void sim_stream_free(struct sim_stream *stream);
void sim_event_free(struct sim_event *event);

/*
 * sim_submit queues work in a stream behind the stream's earlier work. sim_submit blocks while the
 * process's queue is full. The caller holds neither lock.
 */
CUresult sim_submit(struct sim_stream *stream, struct gs_work *work, struct gs_ref *ref);

/* sim_submit_after queues a part of a graph behind only these items, without a stream. */
CUresult sim_submit_after(struct sim_device *device, struct gs_work *work,
			  const struct gs_ref *deps, size_t count, struct gs_ref *ref);
/* sim_queue_lock lets one caller queue several items without interruption. */
void sim_queue_lock(void);
void sim_queue_unlock(void);
bool sim_ref_pending(struct gs_ref ref);
/* sim_pass sleeps for the time that a real driver takes. */
void sim_pass(uint64_t ns);
void sim_wait(struct gs_ref ref);
void sim_wait_stream(struct sim_stream *stream);
void sim_wait_context(struct sim_context *context);
bool sim_stream_busy(struct sim_stream *stream);
/* sim_collect collects the ends of finished events from the timeline. The caller holds both
 * locks. */
void sim_collect(void);
/* sim_host_call queues a call of the function in the stream. */
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

/* sim_launch holds the properties of a launch that the timeline needs. */
struct sim_launch {
	uint64_t duration_ns;
	uint32_t demand_ppm;
	uint64_t mine, theirs, turn; /* of a kernel that meets another kernel */
	bool traps; /* ends with an exception */
};

CUresult sim_function_of(CUfunction handle, struct sim_function **function);
CUresult sim_measure(const struct sim_device *device, const struct sim_function *function,
		     const unsigned grid[3], const unsigned block[3], void **params, void **extra,
		     struct sim_launch *launch);
void sim_module_free(struct sim_module *module);

/* sim_textures_end drops a context's texture and surface objects (texture.c). */
void sim_textures_end(struct sim_context *context);

/* ---- pools (pool.c) ---- */

CUresult sim_pool_alloc(struct sim_pool *pool, uint64_t size, CUdeviceptr *address);
/* sim_pool_give_back removes an allocation from its pool. The caller holds the lock. */
void sim_pool_give_back(const struct sim_alloc *alloc);
/* sim_pools_trim returns memory of pools beyond their thresholds, at a synchronisation. */
void sim_pools_trim(struct sim_device *device, bool all);
void sim_pools_synced(void);
/* sim_pools_reset frees all memory of a device's pools and graphs, because the device's primary
 * context ends. */
void sim_pools_reset(struct sim_device *device);

/* ---- capture (guard.c, capture.c) and graphs ---- */

/* sim_capturing reports whether the stream is being captured. An invalid capture also counts. */
bool sim_capturing(const struct sim_stream *stream);
/* sim_capture_guard returns the error of a call that a capture elsewhere forbids, and invalidates
 * the capture. */
CUresult sim_capture_guard(void);
CUresult sim_capture_sync_guard(struct sim_stream *stream);
/* sim_capture_context_guard is sim_capture_guard for calls about all streams of a context. The
 * thread's mode has no effect. */
CUresult sim_capture_context_guard(struct sim_context *context);
/*
 * sim_capture_enqueue_guard checks a stream before a call queues work in the stream. During the
 * capture of a blocking stream, use of the legacy stream fails and invalidates the capture.
 */
CUresult sim_capture_enqueue_guard(struct sim_stream *stream);
/* sim_capture_implicit reports whether the stream is the legacy stream and a blocking stream of the
 * context is captured. */
bool sim_capture_implicit(struct sim_stream *stream);
/* sim_capture_asked invalidates the capture of a captured event whose status is queried. */
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
