// SPDX-License-Identifier: Apache-2.0

// The fast path lets a repeat launch skip the throttle's checks, which are most of what a launch
// costs.
//
// The throttle allows the fast path for as much work as it can foresee: until it must query the
// bucket, record an event or hold work back. The fast path ends before a changed limit has to take
// effect. Any other change of the meter ends the fast path, and so does a stream that becomes idle.
// As long as the fast path lasts, the throttle would let the same work through.

#ifndef VG_FASTPATH_H
#define VG_FASTPATH_H

#include "place.h"

// vg_fastpath_use enters the work without the throttle's checks, and reports whether it could.
bool vg_fastpath_use(struct vg_state *state, struct vg_ticket *ticket, const struct vg_work *work);

#endif
