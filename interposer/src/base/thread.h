// SPDX-License-Identifier: Apache-2.0

#ifndef VG_THREAD_H
#define VG_THREAD_H

#include <stdint.h>

// vg_thread_key returns a key of the calling thread. A later thread may get the same key.
static inline uint64_t vg_thread_key(void)
{
	return (uint64_t)(uintptr_t)__builtin_thread_pointer();
}

// vg_thread_keep disables cancellation of the calling thread and returns the former state.
// vg_thread_let restores that state. A thread that was cancelled in the interposer would leave
// mutexes locked and files open. In programs without pthread_setcancelstate, no thread can be
// cancelled.
int vg_thread_keep(void);
void vg_thread_let(int kept);

#endif
