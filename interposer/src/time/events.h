// SPDX-License-Identifier: Apache-2.0

// This header covers the results of events, which correct estimates and charges.
//
// The time between two events is at least the time for which the work between the events occupied
// the GPU. A charge above that time is therefore refunded. A measurement above the charge may
// contain other containers' slices. Long work is charged the excess, less the other containers'
// time that probes measured and other containers were charged (others.h). Short work is charged a
// small excess. Short work of unknown length is charged the whole excess. A large excess of known
// short work only corrects the estimate (estimate.h).

#ifndef VG_EVENTS_H
#define VG_EVENTS_H

#include "meter.h"

// vg_events_read processes all segments that are done.
void vg_events_read(struct vg_meter *meter, uint64_t now);

// vg_events_want_probes reports whether probes are needed to separate other containers' slices from
// long work.
bool vg_events_want_probes(const struct vg_meter *meter);

// vg_events_probe sends a probe from a thread whose current context is `context`.
void vg_events_probe(struct vg_meter *meter, uint64_t context, uint64_t now);

#endif
