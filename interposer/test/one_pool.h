// SPDX-License-Identifier: Apache-2.0

// This header makes a test a process with memory in one pool. The simulated driver grows the pool
// like the real driver, and runs other threads' steps during a query.

#ifndef VG_TEST_ONE_POOL_H
#define VG_TEST_ONE_POOL_H

#include "check.h"
#include "memory/claim.h"
#include "memory/pool.h"
#include "memory/pool_claim.h"
#include "memory/pool_lifetime.h"
#include "memory/state.h"

// one_pool is the driver's pool, which is also the graph memory.
struct one_pool {
	uint64_t used;
	uint64_t held;
	bool silent;             // the driver answers no query
	bool destroyed;          // the pool's handle is invalid
	bool strict;             // capture modes cannot be changed
	int trims;
	int mode;                // of this thread's captures
	void (*meanwhile)(void); // runs once, when the driver has its answer
};

// one_pool_events are the driver's events. Streams reach the events in the order of creation.
struct one_pool_events {
	uintptr_t created;
	uintptr_t reached;
	int left;          // events that are not destroyed
	int per_thread;    // events of threads' own default streams
	CUresult creation;
	CUresult recording;
};

static const uint64_t mib = UINT64_C(1) << 20;
static CUmemoryPool const handle = (CUmemoryPool)(uintptr_t)0x1000;
static CUmemoryPool const other = (CUmemoryPool)(uintptr_t)0x2000; // the GPU's default pool

extern const CUmemPoolProps on_device;
extern struct one_pool driver;
extern struct one_pool_events events;
extern struct vg_state *process;
extern struct vg_pool *pool;
extern struct vg_claim first;

// one_pool_driver replaces the driver's functions.
void one_pool_driver(void);

// begin creates a process with this limit. The process's pool holds some memory and uses a part of
// that memory. On request, the pool is the device's graph memory.
void begin(uint64_t limit, uint64_t held, uint64_t used, CUmemoryPool which);

// destroy destroys the pool.
void destroy(void);

// driver_alloc allocates from the pool, and driver_trim returns its unused memory.
void driver_alloc(uint64_t bytes);
void driver_trim(void);

// claim claims memory of the pool.
CUresult claim(struct vg_claim *to, uint64_t bytes);

// on_page returns the process's charge on the usage page.
uint64_t on_page(void);

#endif
