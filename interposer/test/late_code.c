// SPDX-License-Identifier: Apache-2.0

// late_code uses code that the driver loads at the first use. late_code calls each function that
// can be the first use, with and without room for the code. unkind_test.sh runs this program.

#define _GNU_SOURCE
#include "unkind.h"

enum { late_bytes = 64 << 20 };

// late_image is an image that states late_bytes of code, and has the function of `text`.
struct late_image {
	uint32_t magic;
	uint16_t version, head_bytes;
	uint64_t bytes;
	struct late_part {
		uint16_t kind, unknown;
		uint32_t head_bytes;
		uint64_t bytes;
		uint32_t compressed_bytes, options_offset;
		uint16_t minor, major;
		uint32_t architecture, name_offset, name_bytes;
		uint64_t flags, zero, uncompressed_bytes;
	} code;
	unsigned char content[64];
	struct late_part source;
	char source_content[(sizeof text + 7) / 8 * 8];
};

static void late_image_fill(struct late_image *image)
{
	enum { of_source = 1, of_code = 2, lz4 = 0x2000 };

	*image = (struct late_image){
		.magic = 0xba55ed50, .version = 1, .head_bytes = 16, .bytes = sizeof *image - 16,
		.code = {.kind = of_code, .head_bytes = sizeof image->code, .bytes = sizeof image->content,
			 .flags = lz4, .uncompressed_bytes = late_bytes},
		.source = {.kind = of_source, .head_bytes = sizeof image->source,
			   .bytes = sizeof image->source_content},
	};
	memcpy(image->source_content, text, sizeof text);
}

// instantiate instantiates a graph of the function, nested in `depth` graphs.
static int instantiate(void *function, int depth)
{
	struct {
		void *function;
		unsigned grid[3], block[3], shared;
		void **parameters, **extra;
		void *kernel, *context;
	} node = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
	uint64_t ns = 1000;
	void *parameters[] = {&ns};
	void *graph, *added, *exec;

	node.function = function;
	node.parameters = parameters;
	CHECK_EQUAL(CALL("cuGraphCreate", (void **, unsigned), &graph, 0), 0);
	CHECK_EQUAL(CALL("cuGraphAddKernelNode_v2", (void **, void *, void **, size_t, void *), &added, graph,
			 NULL, 0, &node), 0);
	for (int i = 0; i < depth; i++) {
		void *inner = graph;

		CHECK_EQUAL(CALL("cuGraphCreate", (void **, unsigned), &graph, 0), 0);
		CHECK_EQUAL(CALL("cuGraphAddChildGraphNode", (void **, void *, void **, size_t, void *), &added, graph,
				 NULL, 0, inner), 0);
	}
	return CALL("cuGraphInstantiateWithFlags", (void **, void *, unsigned long long), &exec, graph, 0);
}

// late_entry is a way to use a function of an image for the first time.
struct late_entry {
	const char *name;
	bool of_library;
};

static const struct late_entry late_entries[] = {
	{"launch", true}, {"graph", true}, {"deep graph", true}, {"cuKernelGetFunction", true},
	{"cuModuleGetFunction", false}, {"cuFuncLoad", false}, {"cuFuncGetAttribute", false},
};

enum { late_images = sizeof late_entries / sizeof *late_entries };

static void *late_load(const struct late_entry *entry, const struct late_image *image)
{
	void *handle;

	if (entry->of_library)
		CHECK_EQUAL(CALL("cuLibraryLoadData",
				 (void **, const void *, int *, void **, unsigned, int *, void **, unsigned),
				 &handle, image, NULL, NULL, 0, NULL, NULL, 0), 0);
	else
		CHECK_EQUAL(CALL("cuModuleLoadData", (void **, const void *), &handle, image), 0);
	return handle;
}

static int late_use(const struct late_entry *entry, void *handle)
{
	void *function;
	int value;

	if (strcmp(entry->name, "cuModuleGetFunction") == 0)
		return CALL("cuModuleGetFunction", (void **, void *, const char *), &function, handle, "spin");
	if (entry->of_library)
		CHECK_EQUAL(CALL("cuLibraryGetKernel", (void **, void *, const char *), &function, handle,
				 "spin"), 0);
	else
		CHECK_EQUAL(CALL("cuModuleEnumerateFunctions", (void **, unsigned, void *), &function, 1,
				 handle), 0);
	if (strcmp(entry->name, "launch") == 0)
		return launch(function);
	if (strcmp(entry->name, "graph") == 0)
		return instantiate(function, 0);
	if (strcmp(entry->name, "deep graph") == 0)
		return instantiate(function, 18);
	if (strcmp(entry->name, "cuKernelGetFunction") == 0)
		return CALL("cuKernelGetFunction", (void **, void *), &function, function);
	if (strcmp(entry->name, "cuFuncLoad") == 0)
		return CALL("cuFuncLoad", (void *), function);
	return CALL("cuFuncGetAttribute", (int *, int, void *), &value, 0, function);
}

static size_t fill(uint64_t *addresses, size_t most)
{
	size_t count = 0;

	while (count < most && CALL("cuMemAlloc_v2", ALLOC, &addresses[count], 2 * MIB) == 0)
		count++;
	return count;
}

// Code that is not loaded takes no room. The first use fails without room, and succeeds with room.
int main(void)
{
	static struct late_image image;
	static uint64_t addresses[2048];
	void *handles[late_images];
	size_t count;

	late_image_fill(&image);
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_gpu(0);
	for (int i = 0; i < late_images; i++)
		handles[i] = late_load(&late_entries[i], &image);
	count = fill(addresses, 2048);
	CHECK(count * 2 * MIB >= GIB);
	for (int i = 0; i < late_images; i++) {
		fprintf(stderr, "%s without room\n", late_entries[i].name);
		CHECK_EQUAL(late_use(&late_entries[i], handles[i]), CUDA_ERROR_OUT_OF_MEMORY);
	}
	for (int i = 0; i < late_images; i++) {
		fprintf(stderr, "%s\n", late_entries[i].name);
		for (size_t freed = 0; freed < late_bytes + 4 * MIB; freed += 2 * MIB)
			CHECK_EQUAL(CALL("cuMemFree_v2", (uint64_t), addresses[--count]), 0);
		CHECK_EQUAL(late_use(&late_entries[i], handles[i]), 0);
		CHECK_EQUAL(late_use(&late_entries[i], handles[i]), 0);
		count += fill(addresses + count, 2048 - count);
	}
	printf("{\"pid\":%d,\"granted_bytes\":%zu}\n", (int)getpid(),
	       count * 2 * MIB + (size_t)late_images * late_bytes);
	return 0;
}
