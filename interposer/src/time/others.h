// SPDX-License-Identifier: Apache-2.0

// This header covers the time that may be deducted for others on a GPU: other containers, and other
// processes of this one.
//
// The time between two events contains others' slices, too. Probes measure the others' part of the
// time, but a card or a driver may distort the measurement: clocks drift apart, and queues are
// shared. Therefore at most the time that the others were charged is deducted. The agent counts
// other containers' charges on the limits page. Whatever the probes report, the charges of all
// processes of a GPU then add up to the time that it was busy.

#ifndef VG_OTHERS_H
#define VG_OTHERS_H

#include "pages/pages.h"

// How long deductions and others' charges wait for one another: work is charged before or after it
// runs, and counted some milliseconds later.
enum { vg_others_late_ns = 100000000 };

// vg_others_charged returns the time that all others on a GPU were charged up to now, in ns since
// an arbitrary start. While the agent is away, the time grows at the highest rate that other
// containers may be charged.
uint64_t vg_others_charged(const struct vg_pages *pages, uint32_t device, uint64_t now);

// vg_others_none reports whether no other process has the GPU, according to the agent and the usage
// page.
bool vg_others_none(const struct vg_pages *pages, uint32_t device);

// vg_others_deduct returns how much of `want` ns may be deducted. vg_others_deduct advances
// `deducted`, the sum of earlier deductions, which counts from the same start as `charged`.
int64_t vg_others_deduct(uint64_t *deducted, uint64_t charged, int64_t want);

#endif
