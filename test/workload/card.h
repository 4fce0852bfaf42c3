// SPDX-License-Identifier: Apache-2.0

// This header covers the measurements of card.

#ifndef WORKLOAD_CARD_H
#define WORKLOAD_CARD_H

#include "session.h"

// wl_card_slice measures and reports how long the GPU stays with this process and with other
// processes. Meanwhile, another process saturates the GPU. wl_card_slice returns 0, or -1 with the
// failure in the session.
int wl_card_slice(struct wl_session *session, uint64_t kernels);

#endif
