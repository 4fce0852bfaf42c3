// SPDX-License-Identifier: Apache-2.0

// This header covers the devices and processes that the management library (NVML) shows to this
// program, as JSON.

#ifndef WORKLOAD_NVML_VIEW_H
#define WORKLOAD_NVML_VIEW_H

// wl_nvml_view writes a member "nvml" of the open JSON object. The member contains the devices with
// memory and processes, or the reason why NVML shows no device. wl_nvml_view never fails.
void wl_nvml_view(const char *library);

#endif
