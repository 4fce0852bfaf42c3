// SPDX-License-Identifier: Apache-2.0

// This header covers the results of events, which correct estimates and charges.
//
// The time between two events is at least the time for which the work between the events occupied
// the GPU. A charge above that time is therefore refunded. A measurement above the charge may
// contain other containers' slices. Long work is charged the excess, less the other containers'
// time that probes measured and other containers were charged (others.h). Short work is charged a
// small excess. Short work of unknown length is charged the whole excess. A large excess of known
// short work only corrects the estimate (estimate.h), unless probes show that the work took longer.
// Then the work counts as long work.

#ifndef VG_EVENTS_H
#define VG_EVENTS_H

#include "meter.h"

// vg_events_read processes all segments that are done.
void vg_events_read(struct vg_meter *meter, uint64_t now);

// vg_events_probe_due returns the vg_now from which a waiting thread should send probes, or UINT64_MAX.
// Probes separate other containers' slices from long work. Probes also show whether overdue work runs,
// or other containers' slices.
uint64_t vg_events_probe_due(const struct vg_meter *meter, uint64_t now);

// vg_events_probe sends a probe from a thread whose current context is `context`.
void vg_events_probe(struct vg_meter *meter, uint64_t context, uint64_t now);

#endif
