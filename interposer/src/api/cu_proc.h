// SPDX-License-Identifier: Apache-2.0

#ifndef VG_CU_PROC_H
#define VG_CU_PROC_H

// vg_cu_proc_check logs once if this driver's cuGetProcAddress and dlsym disagree. vg_cu_proc_check
// may be called before cuInit, as programs call cuGetProcAddress.
void vg_cu_proc_check(void);

#endif
