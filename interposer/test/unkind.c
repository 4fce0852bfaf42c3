// SPDX-License-Identifier: Apache-2.0

// unkind tests behaviour of drivers that a simple simulator does not have: the driver waits for the
// GPU, opens libraries, and keeps memory. The argument selects the test. unkind exits with 0 if all
// calls return their native results. unkind_test.sh runs this program.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "unkind.h"

// kernel_ns is the time of a kernel. A call takes less than half of that time if the call does not
// wait for the kernel.
static const uint64_t kernel_ns = 1500000000;

static uint64_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void *load(void)
{
	void *module;

	CHECK_EQUAL(CALL("cuModuleLoadData", (void **, const void *), &module, text), 0);
	return module;
}

static void start_kernel(void)
{
	uint64_t ns = kernel_ns;
	void *parameters[] = {&ns};
	void *function;

	CHECK_EQUAL(CALL("cuModuleGetFunction", (void **, void *, const char *), &function, load(), "spin"), 0);
	CHECK_EQUAL(CALL("cuLaunchKernel", LAUNCH, function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), 0);
}

// ---- loads for one GPU during loads for another GPU

static void *load_beside_kernel(void *library)
{
	void *loaded;

	use_gpu(0);
	start_kernel();
	if (library)
		CHECK_EQUAL(CALL("cuLibraryLoadData", (void **, const void *, void *, void *, unsigned, void *,
						       void *, unsigned),
				 &loaded, text, NULL, NULL, 0, NULL, NULL, 0), 0);
	else
		load();
	return NULL;
}

static void test_loads(void *library)
{
	const struct timespec moment = {.tv_nsec = 200000000};
	pthread_t other;
	uint64_t begin;

	use_gpu(1);
	load();
	CHECK(pthread_create(&other, NULL, load_beside_kernel, library) == 0);
	nanosleep(&moment, NULL);
	begin = now();
	load();
	if (now() - begin > kernel_ns / 2)
		fprintf(stderr, "a load for GPU 1 took %.3f s beside one for GPU 0\n",
			(double)(now() - begin) / 1e9);
	CHECK(now() - begin <= kernel_ns / 2);
	CHECK(pthread_join(other, NULL) == 0);
}

// ---- the first allocation during a kernel

static void test_first_allocation(void)
{
	uint64_t address;
	uint64_t begin;

	use_gpu(0);
	start_kernel();
	begin = now();
	CHECK_EQUAL(CALL("cuMemAlloc_v2", ALLOC, &address, MIB), 0);
	if (now() - begin > kernel_ns / 2)
		fprintf(stderr, "the first cuMemAlloc took %.3f s beside a kernel\n",
			(double)(now() - begin) / 1e9);
	CHECK(now() - begin <= kernel_ns / 2);
}

// ---- a library that the driver opens, whose constructor uses CUDA (constructor.c)

static void test_constructor(void)
{
	uint64_t address;

	use_gpu(0);
	CHECK(getenv("CONSTRUCTED"));
	CHECK_EQUAL(CALL("cuMemAlloc_v2", ALLOC, &address, MIB), 0);
}

// ---- the assumed sizes of images

struct fat_image {
	uint32_t magic;
	uint16_t version, head_bytes;
	uint64_t bytes;
	uint16_t kind, unknown;
	uint32_t part_head_bytes;
	uint64_t part_bytes;
	uint32_t compressed_bytes, options_offset;
	uint16_t minor, major;
	uint32_t architecture, name_offset, name_bytes;
	uint64_t flags, zero, uncompressed_bytes;
	unsigned char content[10 << 20];
};

static bool loads_lazily(void)
{
	enum { eager = 1 };
	int mode = 0;

	CHECK_EQUAL(CALL("cuModuleGetLoadingMode", (int *), &mode), 0);
	return mode != eager;
}

// An image of 10 MiB that states 40 MiB takes 40 MiB, and is charged 40 MiB, whatever its
// compression.
static void test_images(void)
{
	static struct fat_image image = {
		.magic = 0xba55ed50, .version = 1, .head_bytes = 16, .kind = 2, .part_head_bytes = 64,
		.part_bytes = 10 << 20, .bytes = 64 + (10 << 20), .uncompressed_bytes = 40 << 20,
	};
	static const uint64_t flags[] = {0x2000, 0x8000};
	const bool lazily = loads_lazily();

	use_gpu(0);
	for (int i = 0; i < 2; i++) {
		size_t before = left();
		uint64_t held_before = held();
		uint64_t charged, taken;
		void *module;

		image.flags = flags[i];
		CHECK_EQUAL(CALL("cuModuleLoadData", (void **, const void *), &module, &image), 0);
		charged = before - left();
		taken = held() - held_before;
		fprintf(stderr, "an image with flags 0x%llx: %llu MiB charged, %llu MiB held\n",
			(unsigned long long)flags[i], (unsigned long long)(charged >> 20),
			(unsigned long long)(taken >> 20));
		CHECK(lazily || taken >= 40 * MIB);
		CHECK(charged >= 40 * MIB && charged >= taken && charged <= 41 * MIB);
		CHECK_EQUAL(CALL("cuModuleUnload", (void *), module), 0);
	}
}

// ---- small allocations, which share granules that the driver keeps

static void test_small_pieces(void)
{
	enum { pieces = 2000 };
	static uint64_t addresses[pieces];
	uint64_t before;
	uint64_t kept;
	size_t most;

	use_gpu(0);
	before = held();
	most = left();
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < pieces; i++)
			CHECK_EQUAL(CALL("cuMemAlloc_v2", ALLOC, &addresses[i], (size_t)(1 + i % 7) << 14), 0);
		for (int i = 0; i < pieces; i++)
			CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), addresses[i]), 0);
	}
	kept = held() - before;
	CHECK(most - left() >= kept && most - left() <= 8 * MIB);
}

// ---- the management library

static void test_nvml(const char *unwanted)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uint64_t address;
	char line[512];

	use_gpu(0);
	load();
	CHECK_EQUAL(CALL("cuMemAlloc_v2", ALLOC, &address, 64 * MIB), 0);
	CHECK(CALL("cuMemAlloc_v2", ALLOC, &address, 64 * GIB) != 0);
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		if (strstr(line, unwanted))
			fprintf(stderr, "%s", line);
		CHECK(!strstr(line, unwanted));
	}
	fclose(maps);
}

// ---- allocations in memory that others have freed

enum { slack_pieces = 600, slack_piece = 3 << 19 };

// take fills the remaining memory with allocations of decreasing size.
static void take(int physical)
{
	for (size_t bytes = 64 * MIB; bytes >= (physical ? 2 * MIB : slack_piece / 3);) {
		uint64_t out;

		if (physical ? CALL("cuMemCreate", CREATE, &out, bytes, &shareable, 0) :
			       CALL("cuMemAlloc_v2", ALLOC, &out, bytes))
			bytes /= 2;
	}
}

// Every second allocation is freed, and the agent measures the result. Other allocations then take
// the freed memory. unkind_test.sh checks the physical memory.
static void test_slack(void)
{
	const struct timespec until_measured = {.tv_nsec = 300000000};
	static uint64_t pieces[slack_pieces];
	uint64_t other;

	use_gpu(0);
	for (int i = 0; i < slack_pieces; i++)
		CHECK_EQUAL(CALL("cuMemAlloc_v2", ALLOC, &pieces[i], slack_piece), 0);
	for (int i = 0; i < slack_pieces; i += 2)
		CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), pieces[i]), 0);
	for (int i = 0; i < 3; i++) {
		nanosleep(&until_measured, NULL);
		CHECK_EQUAL(CALL("cuMemCreate", CREATE, &other, 16 * MIB, &shareable, 0), 0);
		CHECK_EQUAL(CALL("cuMemRelease", (uint64_t), other), 0);
	}
	take(1);
	for (int i = 1; i < slack_pieces; i += 6)
		CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), pieces[i]), 0);
	take(1);
	take(0);
	printf("{\"pid\":%d}\n", (int)getpid());
}

// ---- memory of graphs inside graphs

// nested makes a graph with a node that allocates, at the nesting depth `depth`.
static void *nested(int depth, size_t bytes)
{
	CUDA_MEM_ALLOC_NODE_PARAMS memory = {
		.poolProps = {.allocType = 1, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}}, .bytesize = bytes,
	};
	void *graph;
	void *node;

	CHECK_EQUAL(CALL("cuGraphCreate", (void **, unsigned), &graph, 0), 0);
	CHECK_EQUAL(CALL("cuGraphAddMemAllocNode", (void **, void *, void **, size_t, void *), &node, graph, NULL, 0,
			 &memory), 0);
	for (int i = 0; i < depth; i++) {
		void *outer;

		CHECK_EQUAL(CALL("cuGraphCreate", (void **, unsigned), &outer, 0), 0);
		CHECK_EQUAL(CALL("cuGraphAddChildGraphNode", (void **, void *, void **, size_t, void *), &node, outer,
				 NULL, 0, graph), 0);
		graph = outer;
	}
	return graph;
}

static int launch_nested(int depth, size_t bytes)
{
	void *exec;

	CHECK_EQUAL(CALL("cuGraphInstantiateWithFlags", (void **, void *, unsigned long long), &exec,
			 nested(depth, bytes), 0), 0);
	return CALL("cuGraphLaunch", (void *, void *), exec, NULL);
}

// A graph's allocations count at any nesting depth. unkind_test.sh checks the memory.
static void test_deep_graphs(void)
{
	static const int depths[] = {0, 15, 18, 200};

	use_gpu(0);
	for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
		size_t before = left();

		fprintf(stderr, "%d graphs deep\n", depths[i]);
		CHECK_EQUAL(launch_nested(depths[i], 3 * GIB), CUDA_ERROR_OUT_OF_MEMORY);
		CHECK_EQUAL(launch_nested(depths[i], 128 * MIB), 0);
		CHECK(before - left() >= 128 * MIB);
	}
	printf("{\"pid\":%d}\n", (int)getpid());
}

// ---- a plugin that initialises CUDA while another thread initialises CUDA

static void *open_plugin(void *path)
{
	CHECK(dlopen(path, RTLD_NOW));
	return NULL;
}

static void test_plugin(char *path)
{
	const struct timespec nap = {.tv_nsec = 100000000};
	// The driver has not been opened yet, as in a program linked with the driver.
	void *symbol = dlsym(RTLD_DEFAULT, "cuInit");
	CUresult (*init)(unsigned);
	pthread_t opener;

	CHECK(symbol);
	memcpy(&init, &symbol, sizeof init);
	CHECK_EQUAL(pthread_create(&opener, NULL, open_plugin, path), 0);
	nanosleep(&nap, NULL);
	CHECK_EQUAL(init(0), 0);
	CHECK_EQUAL(pthread_join(opener, NULL), 0);
}

// ---- exit handlers, and a driver that shuts down before or after these handlers

static uint64_t exit_pieces[3];
static void *exit_function;

// exit_use uses the driver while the process exits, and prints the result of each call.
static void exit_use(const char *when, int piece)
{
	uint64_t address;

	if (!exit_function)
		return;
	printf("%s: free %d", when, CALL("cuMemFree_v2", (uint64_t), exit_pieces[piece]));
	printf(", allocate %d", CALL("cuMemAlloc_v2", ALLOC, &address, MIB));
	printf(", launch %d", launch(exit_function));
	printf(", synchronise %d\n", CALL("cuCtxSynchronize", (void)));
}

static void exit_handler_before(void)
{
	exit_use("registered before cuInit", 0);
}

static void exit_handler_after(void)
{
	exit_use("registered after cuInit", 1);
}

__attribute__((destructor)) static void exit_destructor(void)
{
	exit_use("destructor", 2);
}

static void test_exit(void)
{
	CHECK(atexit(exit_handler_before) == 0);
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	CHECK(atexit(exit_handler_after) == 0);
	use_gpu(0);
	CHECK_EQUAL(CALL("cuModuleGetFunction", (void **, void *, const char *), &exit_function, load(),
			 "spin"), 0);
	for (int i = 0; i < 3; i++)
		CHECK_EQUAL(CALL("cuMemAlloc_v2", ALLOC, &exit_pieces[i], 64 * MIB), 0);
}

int main(int argc, char **argv)
{
	const char *test = argc > 1 ? argv[1] : "";

	if (strcmp(test, "plugin") == 0 && argc > 2) { // initialises CUDA itself
		test_plugin(argv[2]);
		return 0;
	}
	if (strcmp(test, "exit") == 0) { // registers an exit handler first
		test_exit();
		return 0;
	}
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	if (strcmp(test, "module-loads") == 0)
		test_loads(NULL);
	else if (strcmp(test, "library-loads") == 0)
		test_loads(argv[1]);
	else if (strcmp(test, "first-allocation") == 0)
		test_first_allocation();
	else if (strcmp(test, "constructor") == 0)
		test_constructor();
	else if (strcmp(test, "slack") == 0)
		test_slack();
	else if (strcmp(test, "deep-graphs") == 0)
		test_deep_graphs();
	else if (strcmp(test, "images") == 0)
		test_images();
	else if (strcmp(test, "small-pieces") == 0)
		test_small_pieces();
	else if (strcmp(test, "nvml") == 0 && argc > 2)
		test_nvml(argv[2]);
	else
		return 64;
	return 0;
}
