// SPDX-License-Identifier: Apache-2.0

#ifndef VG_THREAD_H
#define VG_THREAD_H

// vg_thread_keep disables cancellation of the calling thread and returns the former state, which
// vg_thread_let restores. A thread that is cancelled in a wait of the interposer would leave
// mutexes locked. In programs without pthread_setcancelstate, no thread can be cancelled.
int vg_thread_keep(void);
void vg_thread_let(int kept);

#endif
