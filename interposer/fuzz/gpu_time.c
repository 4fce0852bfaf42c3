// SPDX-License-Identifier: Apache-2.0

// This file fuzzes the words of the usage page that hold a container's GPU time. Each process of
// the container can write these words. The fuzzed processes charge, refill and read the phase of
// the container's GPUs. Meanwhile time passes, and the fuzzer writes arbitrary values to these
// words.
//
// The fuzzer checks three guarantees. No value causes an overflow. No wait is longer than the time
// to pay off the deepest debt. With unforged words, the time spent and the balance together never
// exceed the earned time.

#include "base/number.h"
#include "fuzz.h"
#include "pages/bucket.h"
#include "pages/limits.h"
#include "time/multi_gpu.h"

enum { devices = 2 };

static const uint64_t longest_ns = UINT64_C(1000000000000); // of one step
static const uint64_t deepest_debt_ns = UINT64_C(1) << 50;

struct world {
	struct vg_usage_header header;
	struct vg_lease lease;
	uint32_t ppm[devices];
	uint64_t now;
	uint64_t earned[devices]; // at most, in ns
	bool written;
};

static uint32_t device_of(struct fuzz_input *input)
{
	return (uint32_t)fuzz_bits(input, 1) % devices;
}

static uint32_t part_of(struct fuzz_input *input)
{
	return 1 + (uint32_t)(fuzz_number(input, VG_PPM) % VG_PPM);
}

static void pass(struct world *world, struct fuzz_input *input)
{
	uint64_t ns = fuzz_number(input, 1000000000) % longest_ns;

	world->now += ns;
	for (uint32_t i = 0; i < devices; i++)
		world->earned[i] += ns * vg_max(world->ppm[i], world->lease.ppm) / VG_PPM + 1;
}

static void poke(struct world *world, struct fuzz_input *input)
{
	struct vg_usage_header *header = &world->header;
	struct vg_container_device *device = &header->devices[device_of(input)];
	uint64_t *words[] = {&device->bucket_ns, &device->bucket_filled_ns, &device->spent_ns,
			     &device->launches, &device->phase_launches, &device->phase_goal,
			     &header->phase_open, &header->phase_reach, &header->phase_in_step};
	uint64_t *word = words[fuzz_bits(input, 1) % (sizeof words / sizeof *words)];

	*word = fuzz_number(input, world->now);
	world->written = true;
}

static void check(const struct world *world, uint32_t device)
{
	const struct vg_container_device *bucket = &world->header.devices[device];

	FUZZ_CHECK(world->written || (int64_t)(bucket->bucket_ns + bucket->spent_ns) <=
					     (int64_t)world->earned[device]);
}

static void fill(struct world *world, struct fuzz_input *input)
{
	uint32_t device = device_of(input);
	uint64_t how = fuzz_bits(input, 1);
	int64_t cap = how % 2 ? vg_bucket_busy_cap : vg_bucket_idle_cap;
	struct vg_lease none = {0, 0};
	int64_t balance = vg_bucket_fill(&world->header.devices[device], world->now,
					 world->ppm[device], cap, how % 4 < 2 ? none : world->lease);

	FUZZ_CHECK(world->written || balance <= vg_bucket_busy_cap);
	FUZZ_CHECK(vg_bucket_peek(&world->header.devices[device], world->now, world->ppm[device]) <=
		   vg_bucket_busy_cap);
	FUZZ_CHECK(vg_bucket_delay(balance, vg_bucket_idle_cap, world->ppm[device]) <=
		   (deepest_debt_ns + vg_bucket_busy_cap) * 1000);
}

static void charge(struct world *world, struct fuzz_input *input)
{
	uint32_t device = device_of(input);
	uint64_t ns = fuzz_number(input, vg_bucket_busy_cap) % longest_ns;

	vg_bucket_charge(&world->header.devices[device], (int64_t)ns);
	if (fuzz_bits(input, 1) % 4 == 0) // the work took less than estimated
		vg_bucket_charge(&world->header.devices[device], -(int64_t)(ns / 2));
	vg_multi_gpu_launch(&world->header, devices, device);
}

static void look(struct world *world, struct fuzz_input *input)
{
	uint32_t device = device_of(input);
	struct vg_phase phase = vg_multi_gpu_look(&world->header, world->ppm, devices, device, world->now);

	FUZZ_CHECK(phase.wait <= (deepest_debt_ns + vg_bucket_busy_cap) * 1000);
}

static void run(struct fuzz_input *input)
{
	static void (*const steps[])(struct world *, struct fuzz_input *) = {
		pass, pass, fill, fill, charge, look,
	};
	struct world world = {.now = 1 + fuzz_number(input, 0) % longest_ns,
			      .lease = {part_of(input), fuzz_number(input, longest_ns)}};
	bool pokes = fuzz_bits(input, 1) % 2;

	for (uint32_t i = 0; i < devices; i++) {
		world.ppm[i] = part_of(input);
		// A process refills the bucket before the container's first charge.
		world.earned[i] = vg_bucket_idle_cap;
		(void)vg_bucket_fill(&world.header.devices[i], world.now, world.ppm[i], vg_bucket_idle_cap,
				     (struct vg_lease){0});
	}
	for (int i = 0; input->size > 0 && i < 200; i++) {
		uint64_t what = fuzz_bits(input, 1) % 8;

		if (what < sizeof steps / sizeof *steps)
			steps[what](&world, input);
		else if (pokes)
			poke(&world, input);
		for (uint32_t device = 0; device < devices; device++)
			check(&world, device);
	}
}

const struct fuzz_target fuzz_gpu_time = {"gpu_time", run};
