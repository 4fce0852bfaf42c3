// SPDX-License-Identifier: Apache-2.0
/*
 * gpusim cdi prints the Container Device Interface specification with which a container runtime
 * passes simulated GPUs to containers. `nvidia-ctk cdi generate` prints a specification for real
 * GPUs.
 */
#include "tool.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__aarch64__)
#define LIBRARY_DIR "/usr/lib/aarch64-linux-gnu"
#else
#define LIBRARY_DIR "/usr/lib/x86_64-linux-gnu"
#endif

struct cdi_options {
	const char *driver_dir;  /* of the two libraries, on the host */
	const char *device_dir;  /* of the state and device files, on the host */
	const char *library_dir; /* of the libraries, in the container */
};

/* print_path prints a path as a JSON string, which is a valid YAML string. */
static void print_path(const char *dir, const char *file)
{
	char path[1024];

	(void)snprintf(path, sizeof(path), "%s/%s", dir, file);
	tool_json_string(path);
}

static void print_mount(const char *indent, const char *from_dir, const char *to_dir,
			const char *file, const char *mode)
{
	printf("%s- hostPath: ", indent);
	print_path(from_dir, file);
	printf("\n%s  containerPath: ", indent);
	print_path(to_dir, file);
	printf("\n%s  options: [%s, nosuid, nodev, bind]\n", indent, mode);
}

/* CONTAINER_DEVICE_DIR is the directory of the device files in a container, as in
 * GS_DEFAULT_PATH. */
#define CONTAINER_DEVICE_DIR "/dev/gpusim"

static void print_device_file(const struct cdi_options *options, const char *kind, uint32_t minor)
{
	char file[16];

	(void)snprintf(file, sizeof(file), "%s%u", kind, minor);
	print_mount("        ", options->device_dir, CONTAINER_DEVICE_DIR, file, "rw");
}

/* print_caps prints the capabilities of a MIG device. */
static void print_caps(const struct cdi_options *options, const struct gs_gpu *gpu)
{
	uint32_t cap = gs_mig_cap(gpu->minor, gpu->mig.gpu_instance);

	if (gpu->mig.role != GS_MIG_DEVICE)
		return;
	print_device_file(options, "cap", cap);
	print_device_file(options, "cap", cap + 1);
}

static void print_device(const struct cdi_options *options, const struct gs_gpu *gpu,
			 const char *name)
{
	printf("  - name: \"%s\"\n    containerEdits:\n      mounts:\n", name);
	print_device_file(options, "gpu", gpu->minor);
	print_caps(options, gpu);
}

/* print_names prints a device by its index and by its UUID. The index of a MIG device is the index
 * of its GPU, a colon and its own index. */
static void print_names(const struct cdi_options *options, const struct gs_gpu *gpu, int card, int mig)
{
	char name[GS_UUID_SIZE];

	if (gpu->mig.role == GS_MIG_DEVICE)
		(void)snprintf(name, sizeof(name), "%d:%d", card, mig);
	else
		(void)snprintf(name, sizeof(name), "%d", card);
	print_device(options, gpu, name);
	gs_uuid_text(gpu, name);
	print_device(options, gpu, name);
}

static void print_all(const struct cdi_options *options, const struct gs_state *state)
{
	printf("  - name: \"all\"\n    containerEdits:\n      mounts:\n");
	for (uint32_t g = 0; g < state->gpu_count; g++) {
		if (state->gpus[g].mig.role < GS_MIG_DEVICE)
			print_device_file(options, "gpu", state->gpus[g].minor);
		print_caps(options, &state->gpus[g]);
	}
}

/* print_devices prints the GPUs and MIG devices that containers can use. A GPU in MIG mode is none.
 * The MIG devices of a GPU are behind it in the table, but MIG devices of a running machine are last. */
static void print_devices(const struct cdi_options *options, const struct gs_state *state)
{
	int cards = 0;

	printf("devices:\n");
	for (uint32_t c = 0; c < state->gpu_count; c++) {
		int migs = 0;

		if (state->gpus[c].mig.role >= GS_MIG_DEVICE)
			continue;
		if (state->gpus[c].mig.role == GS_MIG_OFF)
			print_names(options, &state->gpus[c], cards, 0);
		for (uint32_t g = c; g < state->gpu_count; g++)
			if (state->gpus[g].mig.role == GS_MIG_DEVICE && state->gpus[g].mig.parent == c)
				print_names(options, &state->gpus[g], cards, migs++);
		cards++;
	}
	print_all(options, state);
}

static void print_spec(const struct cdi_options *options, const struct gs_state *state)
{
	printf("cdiVersion: \"0.5.0\"\nkind: \"nvidia.com/gpu\"\n");
	print_devices(options, state);
	printf("containerEdits:\n"
	       "  env:\n"
	       "    - \"NVIDIA_VISIBLE_DEVICES=void\"\n" /* a runtime hook must not add more */
	       "  mounts:\n");
	print_mount("    ", options->driver_dir, options->library_dir, "libcuda.so.1", "ro");
	print_mount("    ", options->driver_dir, options->library_dir, "libnvidia-ml.so.1", "ro");
	print_mount("    ", options->device_dir, CONTAINER_DEVICE_DIR, "state", "rw");
}

static bool parse_options(struct cdi_options *options, int argc, char **argv)
{
	static const struct option known[] = {
		{"driver-dir", required_argument, NULL, 'd'},
		{"device-dir", required_argument, NULL, 'v'},
		{"library-dir", required_argument, NULL, 'l'},
		{NULL, 0, NULL, 0},
	};
	int option;

	options->library_dir = LIBRARY_DIR;
	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (option == 'd')
			options->driver_dir = optarg;
		else if (option == 'v')
			options->device_dir = optarg;
		else if (option == 'l')
			options->library_dir = optarg;
		else
			return false;
	}
	return optind == argc && options->driver_dir && options->device_dir;
}

static bool is_absolute(const char *dir)
{
	if (dir[0] == '/')
		return true;
	fprintf(stderr, "gpusim: %s is not an absolute path, as runtimes need it\n", dir);
	return false;
}

int tool_cdi(int argc, char **argv)
{
	struct cdi_options options = {0};
	struct gs_handle handle;

	if (!parse_options(&options, argc, argv)) {
		fprintf(stderr,
			"usage: gpusim cdi --driver-dir DIR --device-dir DIR [--library-dir DIR]\n"
			"  --driver-dir   holds libcuda.so.1 and libnvidia-ml.so.1 on the host\n"
			"  --device-dir   holds state and gpu* on the host\n"
			"  --library-dir  of the libraries in containers, default " LIBRARY_DIR "\n");
		return 2;
	}
	if (!is_absolute(options.driver_dir) || !is_absolute(options.device_dir) ||
	    !is_absolute(options.library_dir))
		return 2;
	if (tool_open(&handle, options.device_dir))
		return 1;
	print_spec(&options, handle.state);
	gs_close(&handle);
	return 0;
}
