// SPDX-License-Identifier: Apache-2.0

// This header covers the removal of streams, contexts and kinds of work that end from the meter.

#ifndef VG_FORGET_H
#define VG_FORGET_H

#include "meter.h"

// vg_forget drops the records of a stream before its destruction, or of a context before and after
// its destruction. vg_forget also drops the records of a key that other work may reuse. If another
// thread holds the meter, and may be blocked in the driver, the meter's next holder drops the
// records.
void vg_forget(struct vg_meter *meter, enum vg_forgotten_kind kind, uint64_t key);

#endif
