// SPDX-License-Identifier: Apache-2.0

// This header covers the fast path, on which a repeat launch skips the throttle's checks. The
// checks take most of a launch's time.
//
// The throttle allows the fast path until it must query the bucket, record an event or delay work.
// The fast path ends before a changed limit has to take effect. Any other change of the meter ends
// the fast path. An idle stream also ends the fast path. While the fast path is valid, the throttle
// would admit the same work.

#ifndef VG_FASTPATH_H
#define VG_FASTPATH_H

#include "place.h"

enum { vg_fastpath_ns = 100000 }; // longest time for which the same work may skip the checks

// vg_fastpath_use enters the work without the throttle's checks, and reports whether the fast path
// is valid for the work.
bool vg_fastpath_use(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work);

#endif
