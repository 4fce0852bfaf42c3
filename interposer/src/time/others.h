// SPDX-License-Identifier: Apache-2.0

// This header covers the time that may be deducted for others on a GPU. Others are other
// containers, and other processes of this container.
//
// The time between two events also contains other containers' slices. Probes measure the other
// containers' part of the time, but a card or a driver may distort the measurement. For example,
// clocks drift apart, and streams share queues. Therefore the meter deducts at most the time that
// the other containers were charged. The agent counts other containers' charges on the limits page.
// Therefore the charges of all processes of a GPU add up to the busy time of the GPU, whatever the
// probes report.

#ifndef VG_OTHERS_H
#define VG_OTHERS_H

#include "pages/pages.h"

// vg_others_late_ns is the longest time for which a deduction waits for other containers' charges,
// or a charge for deductions. The throttle charges work before or after the work runs. The agent
// counts the charge some milliseconds later.
enum { vg_others_late_ns = 100000000 };

// vg_others_charged returns the time that all others on a GPU were charged up to `now`, in ns since
// an arbitrary start. While the agent is absent, the time grows at the highest rate at which other
// containers may be charged.
uint64_t vg_others_charged(const struct vg_pages *pages, uint32_t device, uint64_t now);

// vg_others_none reports whether no other process uses the GPU, according to the agent and the
// usage page.
bool vg_others_none(const struct vg_pages *pages, uint32_t device);

// vg_others_deduct returns the part of `want` ns that may be deducted. vg_others_deduct advances
// `deducted`, the sum of all deductions, which counts from the same start as `charged`.
int64_t vg_others_deduct(uint64_t *deducted, uint64_t charged, int64_t want);

#endif
