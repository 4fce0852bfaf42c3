// SPDX-License-Identifier: Apache-2.0

#include "one_claim.h"

#include <stdlib.h>
#include <string.h>

#include "process.h"

struct one_claim_agent agent;
struct vg_state *state;
struct vg_claim claim;

enum vg_held_result vg_held_ask(const char *path, uint32_t slot, struct vg_held *held)
{
	CHECK(path == state->agent);
	CHECK_EQUAL(slot, state->pages.slot);
	agent.questions++;
	held->count = 1;
	memcpy(held->gpus[0].uuid, state->pages.uuids[0], sizeof held->gpus[0].uuid);
	held->gpus[0].bytes = agent.bytes;
	return agent.answer;
}

static bool any(const struct vg_entry *entry, const void *unused)
{
	return entry != unused;
}

void end(void)
{
	struct vg_entry *entry = state ? vg_table_sweep(&state->table, any, NULL) : NULL;

	while (entry) {
		struct vg_entry *next = entry->next;

		free(entry);
		entry = next;
	}
}

void begin(void)
{
	struct vg_limits_device device = test_device(1, 100 * mib);

	end();
	memset(vg_state_new(), 0, sizeof *state); // the state of a forked child
	state = test_process(&device, 1);
	memset(&agent, 0, sizeof agent);
	agent.answer = VG_HELD_NOBODY;
}

struct vg_slot_device *own(void)
{
	return vg_slot_device(&state->pages, (uint32_t)state->pages.slot, 0);
}

uint32_t under_way(void)
{
	return (uint32_t)state->calls;
}

void charge(enum vg_kind kind, uint32_t way, uint64_t key, uint64_t owner, uint64_t bytes)
{
	CHECK_EQUAL(vg_claim_on(&claim, 0, way, bytes), CUDA_SUCCESS);
	vg_claim_settle(&claim, kind, key, owner);
}
