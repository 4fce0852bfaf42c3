// SPDX-License-Identifier: Apache-2.0
/*
 * What passes between processes that share memory. The memory stays the
 * exporter's: it counts for that process alone, and goes when it frees it.
 */
#ifndef GPUSIM_SHARE_H
#define GPUSIM_SHARE_H

#include "sim.h"

#define SHARE_MAGIC UINT32_C(0x53494d48)

struct sim_share {
	uint32_t magic;
	uint32_t gpu; /* index in the state */
	uint64_t exec_id; /* of the exporter, as in its identity */
	uint32_t slot;
	int32_t location_type;
	uint64_t address, offset, size;
};

/* Describes memory of this process. */
struct sim_share sim_share_make(const struct sim_device *device, uint64_t address, uint64_t size);

/* The device it is on, if this process sees it and the exporter lives. */
CUresult sim_share_open(const struct sim_share *share, struct sim_device **device);

/* As a file descriptor that another process can be sent. */
CUresult sim_share_to_fd(const struct sim_share *share, int *fd);
CUresult sim_share_from_fd(int fd, struct sim_share *share);

#endif
