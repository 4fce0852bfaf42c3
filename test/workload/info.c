// SPDX-License-Identifier: Apache-2.0

// info prints the GPUs that a program sees through CUDA and through NVML. A missing device,
// driver or permission is also a result.

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "json.h"
#include "nvml_view.h"
#include "session.h"

struct wl_info_options {
	struct wl_common common;
	const char *nvml;
	bool context, no_cuda, no_nvml;
};

static void wl_memory_view(const struct wl_driver *driver, CUdevice device)
{
	size_t available = 0;
	size_t total = 0;
	CUcontext context;
	CUresult result = WL_CALL(driver, primary_retain, &context, device);

	if (result == CUDA_SUCCESS)
		result = WL_CALL(driver, ctx_set_current, context);
	if (result == CUDA_SUCCESS)
		result = WL_CALL(driver, mem_info, &available, &total);
	wl_json_open("mem_info");
	wl_json_integer("error_code", result);
	wl_json_string("error", wl_error_name(driver, result));
	wl_json_bytes("free", available);
	wl_json_bytes("total", total);
	wl_json_close();
	WL_CALL(driver, primary_release, device);
}

static void wl_device_view(const struct wl_driver *driver, int ordinal,
			   bool context)
{
	CUdevice device;
	CUuuid uuid = {{0}};
	char text[41];
	char name[96] = "";
	size_t total = 0;
	CUresult result = WL_CALL(driver, device_get, &device, ordinal);

	wl_json_open(NULL);
	wl_json_integer("ordinal", ordinal);
	wl_json_integer("error_code", result);
	if (result == CUDA_SUCCESS) {
		WL_CALL(driver, device_uuid, &uuid, device);
		WL_CALL(driver, device_name, name, sizeof name, device);
		wl_uuid_text(&uuid, text);
		wl_json_string("uuid", text);
		wl_json_string("name", name);
		result = WL_CALL(driver, device_total, &total, device);
		wl_json_integer("total_mem_error_code", result);
		wl_json_bytes("total_mem", total);
		if (context)
			wl_memory_view(driver, device);
	}
	wl_json_close();
}

static void wl_devices_view(const struct wl_driver *driver, bool context)
{
	int count = 0;
	int version = 0;
	CUresult result = WL_CALL(driver, device_count, &count);

	WL_CALL(driver, driver_version, &version);
	wl_json_integer("driver_version", version);
	wl_json_integer("count_error_code", result);
	wl_json_integer("device_count", count);
	wl_json_array("devices");
	for (int i = 0; i < count; i++)
		wl_device_view(driver, i, context);
	wl_json_array_end();
}

static void wl_cuda_view(const struct wl_info_options *options)
{
	struct wl_session session;

	wl_json_open("cuda");
	if (wl_session_load(&session, &options->common)) {
		wl_json_string("message", session.message);
	} else {
		CUresult result = WL_CALL(&session.driver, init, 0);

		wl_json_integer("init_error_code", result);
		wl_json_string("init_error",
			       wl_error_name(&session.driver, result));
		if (result == CUDA_SUCCESS)
			wl_devices_view(&session.driver, options->context);
	}
	wl_json_close();
}

int main(int argc, char **argv)
{
	struct wl_info_options options = {
		.common = WL_COMMON_DEFAULTS,
		.nvml = "libnvidia-ml.so.1",
	};
	const struct wl_option table[] = {
		{"context", WL_OPTION_FLAG, &options.context,
		 "make a context on each device and call cuMemGetInfo"},
		{"no-cuda", WL_OPTION_FLAG, &options.no_cuda,
		 "skip CUDA"},
		{"no-nvml", WL_OPTION_FLAG, &options.no_nvml,
		 "skip NVML"},
		{"nvml-library", WL_OPTION_TEXT, &options.nvml,
		 "the management library (default libnvidia-ml.so.1)"},
		{"library", WL_OPTION_TEXT, &options.common.library,
		 "the driver library (default libcuda.so.1)"},
		{"lookup", WL_OPTION_TEXT, &options.common.lookup,
		 "getproc: cuGetProcAddress, like the CUDA runtime "
		 "(default); dlsym"},
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};

	wl_options_parse(argc, argv,
			 "Print this program's view of the GPUs as one JSON "
			 "line.\nExit status 0, even without a GPU.",
			 table);
	wl_json_open(NULL);
	wl_json_integer("pid", getpid());
	if (!options.no_cuda)
		wl_cuda_view(&options);
	if (!options.no_nvml)
		wl_nvml_view(options.nvml);
	wl_json_close();
	return EXIT_SUCCESS;
}
