// SPDX-License-Identifier: Apache-2.0

// What may be taken for the time of others on a GPU: of other containers, and of other
// processes of this one.
//
// The time between two events holds others' slices, too. How much of it was theirs is told by
// measurements that a card or a driver may spoil: clocks that drift apart, queues that are
// shared. So no more of it is deducted than the others were charged, which the agent counts
// on the limits page for other containers. Whatever probes tell, what all processes of a GPU
// are charged then comes to the time that it was busy.

#ifndef VG_OTHERS_H
#define VG_OTHERS_H

#include "pages.h"

// Deductions and others' charges wait so long for one another: work is charged before or after
// it runs, and counted some milliseconds later.
enum { vg_others_late_ns = 100000000 };

// vg_others_charged is what all others that use a GPU were charged up to now, in ns since any
// time. While the agent is away, it goes on as fast as other containers may be charged.
uint64_t vg_others_charged(const struct vg_pages *pages, uint32_t device, uint64_t now);

// vg_others_none reports whether no other process has the GPU, as far as the agent and the
// usage page tell.
bool vg_others_none(const struct vg_pages *pages, uint32_t device);

// vg_others_deduct returns how much of `want` ns may be deducted, which moves `deducted` on: what
// was deducted so far, counted as `charged` is.
int64_t vg_others_deduct(uint64_t *deducted, uint64_t charged, int64_t want);

#endif
