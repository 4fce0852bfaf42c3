// SPDX-License-Identifier: Apache-2.0

#ifndef VG_THREAD_H
#define VG_THREAD_H

// vg_thread_keep disables cancellation of the calling thread and returns the former state.
// vg_thread_let restores that state. A thread that was cancelled in the interposer would leave
// mutexes locked. In programs without pthread_setcancelstate, no thread can be cancelled.
int vg_thread_keep(void);
void vg_thread_let(int kept);

#endif
