// SPDX-License-Identifier: Apache-2.0

// This header covers probes: events on a stream of our own, recorded every quarter of a millisecond
// while long work runs. The GPU takes an event's timestamp when the process has the GPU: if another
// process's slice runs, at the end of that slice. A late probe therefore shows which time belonged
// to other processes, without information from them. Short work needs no probes: some pieces always
// run within a slice.

#ifndef VG_PROBE_H
#define VG_PROBE_H

#include <stdbool.h>

#include "driver/driver.h"
#include "stretch.h"

enum {
	vg_probes = 32,         // probes that may be under way
	vg_probe_ns = 250000,   // between two probes
};

// How long one base event serves, for probes or segments: until then a float of milliseconds
// resolves 0.25 µs.
static const uint64_t vg_base_life_ns = 4000000000;

struct vg_probe {
	uint64_t context; // context of all fields below; 0: none
	CUstream stream;
	CUevent base;
	uint64_t base_sent; // vg_now when the base event was recorded
	CUevent events[vg_probes];
	uint64_t sent[vg_probes]; // as vg_now; 0: not known exactly
	uint32_t head, tail; // count probes
	struct vg_stretches seen;
};

// vg_probe_send sends a probe. If the recording fails, others' time stays unknown.
void vg_probe_send(struct vg_probe *probe, uint64_t context, uint64_t now);

// vg_probe_read processes the probes that have come back.
void vg_probe_read(struct vg_probe *probe);

// vg_probe_others returns how much of the `interval` ns before the event `end` belonged to other
// processes; -1: there were too few probes.
int64_t vg_probe_others(const struct vg_probe *probe, CUevent end, int64_t interval);

// vg_probe_seen returns how much of the interval certainly belonged to other processes, even if
// probes cover only a part. The thread that sends them may have had to wait for a processor.
int64_t vg_probe_seen(const struct vg_probe *probe, CUevent end, int64_t interval);

// vg_probe_passes reports whether a probe sent after `recorded` came back before the event `end`.
// `recorded` is the vg_now at which `end` was recorded. Only such a probe proves that probes do not
// queue behind the work in the same hardware queue.
bool vg_probe_passes(const struct vg_probe *probe, CUevent end, uint64_t recorded);

// vg_probe_drop drops all probes of a destroyed context.
void vg_probe_drop(struct vg_probe *probe);

#endif
