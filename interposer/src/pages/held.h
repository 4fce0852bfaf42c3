// SPDX-License-Identifier: Apache-2.0

// This header covers queries to the agent for the memory that this process physically holds. The
// agent measures the memory on the host after the query has arrived. The kernel identifies the
// querying process to the agent.

#ifndef VG_HELD_H
#define VG_HELD_H

#include <stdint.h>

#include "pages_gen.h"

// vg_held is the memory that a process holds, by GPU. A GPU is missing if the agent does not know
// the memory on the GPU.
struct vg_held {
	uint32_t count;
	struct {
		uint8_t uuid[16];
		uint64_t bytes;
	} gpus[VG_MAX_DEVICES];
};

enum vg_held_result {
	VG_HELD_ANSWERED,
	VG_HELD_NOBODY, // no agent is running
	VG_HELD_SILENT, // the agent did not answer in time, or not in a known format
};

// vg_held_ask queries the agent over its socket. vg_held_ask returns within 20 ms, whatever the
// agent does, and leaves no open descriptor.
enum vg_held_result vg_held_ask(const char *path, uint32_t slot, struct vg_held *held);

#endif
