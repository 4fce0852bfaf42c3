// SPDX-License-Identifier: Apache-2.0

// This header covers the removal of streams, contexts and kinds of work that end from the meter.

#ifndef VG_FORGET_H
#define VG_FORGET_H

#include "meter.h"

// vg_forget drops the records of an object that ends. If another thread holds the meter, and may be
// blocked in the driver, the meter's next holder drops all records.
void vg_forget(struct vg_meter *meter, enum vg_end kind, uint64_t key);

#endif
