// SPDX-License-Identifier: Apache-2.0

// This header covers phases: the throttle delays and admits the launches on a container's GPUs
// together. A kernel on one GPU may spin while it waits for its peer on another GPU. If the
// throttle delayed only the peer, the kernel would waste its GPU's allowance. At other times, the
// peer would spin while the kernel waits.
//
// A phase is open while all GPUs have allowance. When one GPU has no allowance left, the phase
// closes for all GPUs. Each GPU may still have as many launches as the GPU with the most launches,
// even if the GPU goes into debt. These launches are the peers of admitted launches. The phase
// opens when all GPUs have allowance again. GPUs that do not work in step need not wait for each
// other after they have saved some allowance.

#ifndef VG_MULTI_GPU_H
#define VG_MULTI_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "pages/pages_gen.h"

struct vg_phase {
	bool behind;   // a peer's launch was admitted, and this GPU's launch must follow
	uint64_t wait; // time until all GPUs may have allowance, in ns; 0: continue
};

// vg_multi_gpu_look returns the phase for one of the container's `count` GPUs. `ppm` has the
// container's part of each GPU's time.
struct vg_phase vg_multi_gpu_look(struct vg_usage_header *header, const uint32_t *ppm, uint32_t count,
				  uint32_t device, uint64_t now);

// vg_multi_gpu_lack returns the time until all limited GPUs have allowance for launches, in ns.
// vg_multi_gpu_lack sets `spent` to whether some GPU has no allowance left.
uint64_t vg_multi_gpu_lack(const struct vg_usage_header *header, const uint32_t *ppm, uint32_t count,
			   uint64_t now, bool *spent);

// vg_multi_gpu_launch counts an admitted launch. `gpus` is a bit mask of the container's GPUs that the
// launch uses.
void vg_multi_gpu_launch(struct vg_usage_header *header, uint32_t count, uint32_t gpus);

#endif
