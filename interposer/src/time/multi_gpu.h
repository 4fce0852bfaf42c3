// SPDX-License-Identifier: Apache-2.0

// This header covers phases: the GPUs of one container are held back together and released
// together. A kernel on one GPU may spin while it waits for its peer on another. If only the peer
// were held back, the kernel would waste its GPU's allowance. Later the roles would be reversed.
//
// A phase is open while all GPUs have allowance. When one GPU has no allowance left, the phase
// closes for all. Each GPU may still have as many launches as the GPU with the most launches, in
// debt if need be: these launches are the peers of launches that went through. The phase opens when
// all GPUs have allowance again. GPUs that do not work in step need not wait for each other once
// they have saved some allowance.

#ifndef VG_MULTI_GPU_H
#define VG_MULTI_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "pages/pages_gen.h"

struct vg_phase {
	bool behind;   // a peer's work was let through, so this GPU's must follow
	uint64_t wait; // until all GPUs may have allowance, in ns; 0: continue
};

// vg_multi_gpu_look returns the phase for one of the container's `count` GPUs. `ppm` has their
// parts of the GPUs' time.
struct vg_phase vg_multi_gpu_look(struct vg_usage_header *header, const uint32_t *ppm, uint32_t count,
				  uint32_t device, uint64_t now);

// vg_multi_gpu_launch counts a launch that was let through to one of the GPUs.
void vg_multi_gpu_launch(struct vg_usage_header *header, uint32_t count, uint32_t device);

#endif
