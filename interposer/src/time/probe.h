// SPDX-License-Identifier: Apache-2.0

// This header covers probes. A probe is an event on a stream of the interposer, which records a
// probe every quarter of a millisecond while long work runs. The GPU takes an event's timestamp
// only while the process has the GPU. If another process's slice runs, the GPU takes the timestamp
// at the end of that slice. A late probe therefore shows the time of other processes, without
// information from these processes. Short work needs no probes, because some pieces always run
// within a slice.

#ifndef VG_PROBE_H
#define VG_PROBE_H

#include <stdbool.h>

#include "driver/driver.h"
#include "stretch.h"

enum { vg_probes = 32 }; // limit of outstanding probes

// vg_base_life_ns is the longest use of a base event, for probes or segments. Up to this time, a
// float of milliseconds resolves 0.25 µs.
static const uint64_t vg_base_life_ns = 4000000000;

struct vg_probe {
	uint64_t context; // context of all fields below; 0: none
	CUstream stream;
	CUevent base;
	uint64_t base_sent; // vg_now at which the base event was recorded
	CUevent events[vg_probes];
	uint64_t sent[vg_probes]; // as vg_now; 0: not known exactly
	uint32_t head, tail; // count probes
	struct vg_stretches seen;
};

// vg_probe_send records a probe. If the recording fails, other containers' time stays unknown.
void vg_probe_send(struct vg_probe *probe, uint64_t context, uint64_t now);

// vg_probe_read processes the probes that have come back.
void vg_probe_read(struct vg_probe *probe);

// vg_probe_others returns the part of the `interval` ns before the event `end` that certainly
// belonged to other processes. vg_probe_others sets `whole` to whether probes cover the interval.
// Probes may be missing because the sending thread waited for a processor.
int64_t vg_probe_others(const struct vg_probe *probe, CUevent end, int64_t interval, bool *whole);

// vg_probe_own returns the part of the `interval` ns before the event `end` for which this process had
// the GPU (vg_stretch_own).
int64_t vg_probe_own(const struct vg_probe *probe, CUevent end, int64_t interval);

// vg_probe_pass returns whether probes passed the work before the event `end` (vg_stretch_pass).
// `recorded` is the vg_now at which `end` was recorded.
enum vg_pass vg_probe_pass(const struct vg_probe *probe, CUevent end, uint64_t recorded);

// vg_probe_drop drops all probes of a destroyed context.
void vg_probe_drop(struct vg_probe *probe);

#endif
