// SPDX-License-Identifier: Apache-2.0

#include "multi_gpu.h"

#include "base/number.h"
#include "pages/bucket.h"

enum {
	vg_phase_saved_ns = 6000000,    // balance with which a GPU that is out of step continues
	vg_phase_debt_ns = 10000000,    // limit of the debt of a GPU that is behind
	vg_phase_carried = 64,          // launches that a GPU may carry over after a phase's end
};

// The container's processes may forge all values below. The forgery harms only these processes: a
// wait for a phase ends after a while (throttle.c), and the bucket still limits the container.

static bool vg_phase_limited(uint32_t ppm)
{
	return ppm < VG_PPM;
}

// vg_phase_had returns the number of launches of a GPU in this phase, less the launches that the
// GPU owed from the phase before.
static int64_t vg_phase_had(const struct vg_container_device *device)
{
	return (int64_t)(vg_load(&device->launches) - vg_load(&device->phase_goal));
}

static int64_t vg_phase_most(const struct vg_usage_header *header, const uint32_t *ppm, uint32_t count)
{
	int64_t most = 0;

	for (uint32_t i = 0; i < count; i++)
		if (vg_phase_limited(ppm[i]))
			most = vg_most(most, vg_phase_had(&header->devices[i]));
	return most;
}

// vg_phase_in_step reports whether all GPUs had about as many launches since the phase began.
static bool vg_phase_in_step(const struct vg_usage_header *header, const uint32_t *ppm, uint32_t count)
{
	uint64_t least = UINT64_MAX;
	uint64_t most = 0;

	for (uint32_t i = 0; i < count; i++) {
		const struct vg_container_device *device = &header->devices[i];
		uint64_t had = vg_load(&device->launches) - vg_load(&device->phase_launches);

		if (!vg_phase_limited(ppm[i]))
			continue;
		most = vg_max(most, had);
		least = vg_min(least, had);
	}
	return most > 0 && least >= most - most / 4;
}

static void vg_phase_close(struct vg_usage_header *header, const uint32_t *ppm, uint32_t count)
{
	vg_store(&header->phase_reach, (uint64_t)vg_phase_most(header, ppm, count));
	vg_store(&header->phase_open, 0);
}

// vg_phase_begin opens a phase. A GPU with fewer launches than the others in the last phase may
// still catch up. A peer of the GPU's work may be waiting. The missing launches are counted from
// the goals, because launches continue meanwhile.
static void vg_phase_begin(struct vg_usage_header *header, const uint32_t *ppm, uint32_t count)
{
	int64_t most = vg_phase_most(header, ppm, count);
	bool in_step = vg_phase_in_step(header, ppm, count);

	if (__atomic_exchange_n(&header->phase_open, 1, __ATOMIC_SEQ_CST) == 1)
		return; // another thread was faster
	vg_store(&header->phase_in_step, in_step);
	for (uint32_t i = 0; i < count; i++) {
		struct vg_container_device *device = &header->devices[i];
		uint64_t launches = vg_load(&device->launches);
		uint64_t goal = vg_load(&device->phase_goal) + (uint64_t)most;

		if ((int64_t)(goal - launches) > vg_phase_carried)
			goal = launches + vg_phase_carried;
		vg_store(&device->phase_launches, launches);
		vg_store(&device->phase_goal, goal);
	}
}

uint64_t vg_multi_gpu_lack(const struct vg_usage_header *header, const uint32_t *ppm, uint32_t count,
			   uint64_t now, bool *spent)
{
	uint64_t longest = 0;

	*spent = false;
	for (uint32_t i = 0; i < count; i++) {
		int64_t balance;
		uint64_t delay;

		if (!vg_phase_limited(ppm[i]))
			continue;
		balance = vg_bucket_peek(&header->devices[i], now, ppm[i]);
		delay = vg_bucket_delay(balance, vg_bucket_target(ppm[i]), ppm[i]);
		longest = vg_max(longest, delay);
		*spent |= balance < 1;
	}
	return longest;
}

void vg_multi_gpu_launch(struct vg_usage_header *header, uint32_t count, uint32_t gpus)
{
	for (uint32_t i = 0; i < count && count > 1; i++)
		if (gpus >> i & 1)
			vg_add(&header->devices[i].launches, 1);
}

struct vg_phase vg_multi_gpu_look(struct vg_usage_header *header, const uint32_t *ppm, uint32_t count,
				  uint32_t device, uint64_t now)
{
	struct vg_container_device *mine = &header->devices[device];
	struct vg_phase phase = {false, 0};
	bool spent;
	uint64_t lack = vg_multi_gpu_lack(header, ppm, count, now, &spent);
	int64_t balance = vg_bucket_peek(mine, now, ppm[device]);

	if (vg_load(&header->phase_open) == 1 && spent)
		vg_phase_close(header, ppm, count);
	else if (vg_load(&header->phase_open) != 1 && lack == 0)
		vg_phase_begin(header, ppm, count);
	if (vg_load(&header->phase_open) == 1)
		return phase;
	phase.behind = vg_phase_had(mine) < (int64_t)vg_load(&header->phase_reach) &&
		       balance > -(int64_t)vg_phase_debt_ns;
	if (!phase.behind && (balance < vg_phase_saved_ns || vg_load(&header->phase_in_step) == 1))
		phase.wait = lack;
	return phase;
}
