// SPDX-License-Identifier: Apache-2.0

// This header covers the beginning of every workload. Every workload has a driver, a device,
// the device's primary context, and the kernel that spins for a given time.

#ifndef WORKLOAD_SESSION_H
#define WORKLOAD_SESSION_H

#include "driver.h"
#include "options.h"

struct wl_session {
	struct wl_driver driver;
	CUdevice device;
	CUcontext context;
	CUfunction spin;       // after wl_session_load_spin
	CUfunction exchange;   // set by wl_session_load_spin
	CUfunction trap;       // set by wl_session_load_spin
	char uuid[41];
	size_t total;          // bytes, from cuDeviceTotalMem
	CUresult result;       // of the driver call that failed
	const char *call;      // name of that driver call
	char message[256];     // set if the failure was not the failure of a driver call
};

// wl_common holds the options that all workloads share, and their default values.
struct wl_common {
	uint64_t device;
	const char *library;
	const char *lookup;
};

#define WL_COMMON_DEFAULTS {0, "libcuda.so.1", "getproc"}
#define WL_COMMON_OPTIONS(common)                                           \
	{"device", WL_OPTION_COUNT, &(common).device,                       \
	 "ordinal of the GPU to use (default 0)"},                          \
	{"library", WL_OPTION_TEXT, &(common).library,                      \
	 "the driver library (default libcuda.so.1)"},                      \
	{"lookup", WL_OPTION_TEXT, &(common).lookup,                        \
	 "getproc: cuGetProcAddress, like the CUDA runtime (default); "  \
	 "dlsym"}

// These functions return 0, or -1 with the failure in the session. wl_session_load opens the
// library. wl_session_device also initialises the library and finds the device. wl_session_open
// also makes the device's primary context current.
int wl_session_load(struct wl_session *session, const struct wl_common *common);
int wl_session_device(struct wl_session *session,
		      const struct wl_common *common);
int wl_session_open(struct wl_session *session, const struct wl_common *common);
int wl_session_load_spin(struct wl_session *session);

// wl_session_check records a failed driver call. wl_session_check returns 0 on success.
int wl_session_check(struct wl_session *session, const char *call,
		     CUresult result);

// wl_session_report writes the failure, if any, as members of the open JSON
// object: error, error_code, call, message.
void wl_session_report(const struct wl_session *session);

// wl_session_fail prints a JSON object with only the failure, and one line on standard error.
// wl_session_fail returns the exit status 1.
int wl_session_fail(const struct wl_session *session, const char *program);

double wl_now(void);              // monotonic seconds
void wl_sleep_until(double when); // on the clock of wl_now

#endif
