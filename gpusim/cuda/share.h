// SPDX-License-Identifier: Apache-2.0
/*
 * This header covers memory and pools shared between processes. The simulator charges the memory
 * only to the exporter, and frees the memory when the exporter frees the memory. If the profile
 * sets imports_keep, the memory stays allocated as long as a process imports the memory. While the
 * exporter lives, an open file descriptor of the memory also keeps the memory (shared.h).
 */
#ifndef GPUSIM_SHARE_H
#define GPUSIM_SHARE_H

#include "sim.h"

#include "shared.h"

#define SHARE_MAGIC UINT32_C(0x53494d48)

struct sim_share {
	uint32_t magic;
	uint32_t gpu; /* index in the state */
	uint64_t exec_id; /* of the exporter, as in its identity */
	uint32_t slot;
	int32_t location_type;
	uint64_t address, size;
	uint64_t offset; /* of a piece of a pool: the pool, see poolshare.c */
	uint64_t id; /* in the machine's list of shared memory, 0: not in the list */
};

/* sim_share_file adds memory that this process is charged with to the machine's list of shared
 * memory. sim_share_file returns the id, or 0 if the profile does not let imports keep memory. */
uint64_t sim_share_file(const struct sim_device *device, uint64_t charged);

/* sim_share_take makes this process a holder of the memory. sim_share_take fails if the memory is
 * gone. */
CUresult sim_share_take(const struct sim_share *share);
void sim_share_drop(uint64_t id);

/* sim_memories_look frees memory whose only holders were file descriptors that are now closed
 * (vmm.c). */
void sim_memories_look(void);

/* sim_share_release drops the hold of the process that allocated the memory. */
void sim_share_release(uint64_t id);

/* sim_share_watch returns a watch, or -1 on failure. sim_share_is_open uses the watch to report
 * whether the given descriptor, or a copy of the descriptor, is open in any process. */
int sim_share_watch(int fd);
bool sim_share_is_open(int watch);

/* sim_share_make describes memory of this process. */
struct sim_share sim_share_make(const struct sim_device *device, uint64_t address, uint64_t size);

/* sim_share_open returns the memory's device, if this process sees the device and the exporter
 * lives. */
CUresult sim_share_open(const struct sim_share *share, struct sim_device **device);

/*
 * sim_share_to_fd writes a share to a file descriptor that can be sent to another process, and
 * sim_share_from_fd reads a share. The magic identifies the kind of object.
 */
CUresult sim_share_to_fd(const struct sim_share *share, int *fd);
CUresult sim_share_from_fd(int fd, uint32_t magic, struct sim_share *share);

#endif
