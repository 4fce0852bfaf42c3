// SPDX-License-Identifier: Apache-2.0

// This test covers the device memory of a module, according to its image.

#define _GNU_SOURCE
#include <elf.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "memory/image.h"
#include "memory/ptx.h"

static void test_ptx(void)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} cases[] = {
		{"", 0},
		{".version 7.0\n.target sm_50\n.visible .entry f() { ret; }", 0},
		{".global .f32 x;", 4},
		{".visible .global .align 16 .b8 filler[1000];", 1008},
		{".global .u64 table[3][5];", 120},
		{".const .align 4 .b32 c[2] = {1, 2};", 8},
		{".global .v4 .f32 v[2];", 32},
		{".global .s32 a, b[3], c;", 20},
		{".global .b8 hex[0x10];", 16},
		{".extern .global .b8 e[64];", 64},
		{"// .global .b8 comment[64];\n/* .global .b8 comment[64]; */", 0},
		{".visible .entry f() { ld.global.u32 %r1, [%rd1]; st.global.f32 [%rd2], %f1; }", 0},
		{".global .b8 huge[99999999999999999999];", UINT64_MAX},
		{".global", 0},
		{".global .b8 cut[", 2},
		{".global .attribute(.managed) .align 4 .b8 managed[64];", 64},
		{".global .attribute(.unified(19,95)) .f32 unified[4];", 16},
		{".global.v4.f32 joined[2];", 32},
		{".visible.global.align 4.b8 joined[64];", 64},
		{".global .v8 .b32 wide[2];", 64},
		{".global .f16x2 packed[4];", 16},
		{".global .b8 suffix[16U];", 16},
		{".global .b8 expression[1 << 34];", UINT64_MAX},
		{".global .b8 expression[4*1024];", UINT64_MAX},
		{".global .b8 named[N];", UINT64_MAX},
		{".global /* a */ .b8 /* b */ between /* c */ [ /* d */ 64 // e\n ];", 64},
		{".global .s32 first /* { */, second[3] // {\n, third;", 20},
		{".file 1 \"a/*b\"\n.global .b8 x[64];", 64},
		{".file 1 \"http://x\" .global .b8 x[64];", 64},
		{".file 1 \".global /*\"\n.global .b8 x[64];", 64},
		{".entry f(.param .u64 .ptr .global .align 1 p) { }\n.global .b8 x[64];", 64 + 8},
		{".visible .entry f(.param .u64 p) { { ld.global.u32 %r1, [%rd1]; } atom.global.add.u32 a, [b], 1; }", 0},
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint64_t bytes = vg_ptx_bytes(cases[i].text, strlen(cases[i].text));

		if (bytes != cases[i].bytes)
			fprintf(stderr, "\"%s\"\n", cases[i].text);
		CHECK_EQUAL(bytes, cases[i].bytes);
	}
}

// The size of a declaration without dimensions is estimated from its initialiser, and is never too
// low.
static void test_ptx_open_array(void)
{
	const char *text = ".global .b8 s[] = {104, 101, 108, 108, 111};";

	CHECK(vg_ptx_bytes(text, strlen(text)) >= 5);
}

static void test_elf(void)
{
	struct {
		Elf64_Ehdr head;
		Elf64_Shdr sections[3];
	} image = {0};

	memcpy(image.head.e_ident, ELFMAG, SELFMAG);
	image.head.e_shoff = sizeof image.head;
	image.head.e_shentsize = sizeof *image.sections;
	image.head.e_shnum = 3;
	image.sections[1].sh_flags = SHF_ALLOC;
	image.sections[1].sh_size = 1000; // .nv.global
	image.sections[2].sh_size = 5000; // a debugger's section
	CHECK_EQUAL(vg_image_bytes(&image, vg_image_unknown_size), 1024);
	CHECK_EQUAL(vg_image_bytes(&image, sizeof image), 1024);
	image.head.e_shnum = 0; // the number of sections exceeds the header's field
	image.sections[0].sh_size = 3;
	CHECK_EQUAL(vg_image_bytes(&image, vg_image_unknown_size), 1024);
	image.head.e_shnum = 60000; // beyond the end, so that the whole size counts
	CHECK_EQUAL(vg_image_bytes(&image, sizeof image), sizeof image);
}

// A wrapper in a wrapper is not an image. The search ends for a wrapper that points to itself.
static void test_wrappers(void)
{
	struct {
		uint32_t magic, version;
		const void *data, *unused;
	} inner = {.magic = 0x466243b1, .version = 1, .data = "text"}, outer = inner;

	CHECK(vg_image_bytes(&inner, vg_image_unknown_size) > 0);
	outer.data = &inner;
	CHECK_EQUAL(vg_image_bytes(&outer, vg_image_unknown_size), 0);
	outer.data = &outer;
	CHECK_EQUAL(vg_image_bytes(&outer, vg_image_unknown_size), 0);
}

static void test_fatbin(void)
{
	struct {
		uint32_t magic;
		uint16_t version;
		uint16_t head_bytes;
		uint64_t bytes;
		unsigned char part[64];
		char text[32];
	} image = {.magic = 0xba55ed50, .version = 1, .head_bytes = 16, .bytes = 96};
	uint16_t kind = 1;
	uint32_t head_bytes = 64;
	uint64_t bytes = 32;

	memcpy(image.part, &kind, sizeof kind);
	memcpy(image.part + 4, &head_bytes, sizeof head_bytes);
	memcpy(image.part + 8, &bytes, sizeof bytes);
	strcpy(image.text, ".global .b8 x[4096];");
	CHECK(vg_image_bytes(&image, vg_image_unknown_size) >= 4096);
	CHECK(vg_image_bytes(&image, vg_image_unknown_size) < 4096 + 512);
	for (size_t length = 1; length < sizeof image; length++) {
		unsigned char *cut = malloc(length);

		memcpy(cut, &image, length);
		vg_image_bytes(cut, length);
		free(cut);
	}
}

// fat_part is the header of a part of a fat binary.
struct fat_part {
	uint16_t kind, unknown;
	uint32_t head_bytes;
	uint64_t bytes;
	uint32_t compressed_bytes, options_offset;
	uint16_t minor, major;
	uint32_t architecture, name_offset, name_bytes;
	uint64_t flags, zero, uncompressed_bytes;
};

struct fat_image {
	uint32_t magic;
	uint16_t version;
	uint16_t head_bytes;
	uint64_t bytes;
	struct fat_part part;
	unsigned char content[1024];
};

static struct fat_image fat_image(uint64_t flags, uint64_t stated)
{
	return (struct fat_image){
		.magic = 0xba55ed50, .version = 1, .head_bytes = 16,
		.bytes = sizeof(struct fat_part) + 1024,
		.part = {.kind = 2, .head_bytes = sizeof(struct fat_part), .bytes = 1024,
			 .flags = flags, .uncompressed_bytes = stated},
	};
}

// A compressed part counts with the size in its header, for any compression, and at least with its
// compressed size.
static void test_compressed(void)
{
	static const uint64_t flags[] = {0x2000, 0x8000};
	const uint64_t mib = 1 << 20;

	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
		struct fat_image image = fat_image(flags[i], 40 * mib);
		uint64_t bytes = vg_image_bytes(&image, vg_image_unknown_size);

		CHECK(bytes >= 40 * mib && bytes <= 40 * mib + 4096);
		CHECK_EQUAL(vg_image_bytes(&image, sizeof image), bytes);
		image = fat_image(flags[i], 10);
		CHECK(vg_image_bytes(&image, sizeof image) >= 1024);
		image = fat_image(flags[i], UINT64_MAX);
		CHECK_EQUAL(vg_image_bytes(&image, sizeof image), UINT64_MAX);
	}
}

// Every part counts, because the driver may load the last of many parts.
static void test_many_parts(void)
{
	enum { parts = 5000 };
	static struct {
		uint32_t magic;
		uint16_t version;
		uint16_t head_bytes;
		uint64_t bytes;
		struct fat_part parts[parts];
		char text[32];
	} image = {.magic = 0xba55ed50, .version = 1, .head_bytes = 16, .text = ".global .b8 x[4096];"};

	image.bytes = sizeof image - 16;
	for (size_t i = 0; i < parts; i++)
		image.parts[i] = (struct fat_part){.kind = 1, .head_bytes = sizeof(struct fat_part)};
	image.parts[parts - 1].bytes = sizeof image.text;
	CHECK(vg_image_bytes(&image, vg_image_unknown_size) >= 4096);
	CHECK(vg_image_bytes(&image, sizeof image) >= 4096);
}

// For an image that states more bytes than exist, only mapped bytes are read.
static void test_truncated_in_memory(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char *end = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct fat_image image = fat_image(0, 0);
	Elf64_Ehdr elf = {.e_shoff = page, .e_shnum = 60000, .e_shentsize = sizeof(Elf64_Shdr)};

	CHECK(end != MAP_FAILED);
	CHECK(munmap(end + page, page) == 0);
	end += page;
	image.bytes = image.part.bytes = 1 << 30;
	for (size_t length = 4; length < 600; length++) {
		memcpy(end - length, &image, length);
		vg_image_bytes(end - length, vg_image_unknown_size);
	}
	image.part.kind = 1;
	memcpy(end - 600, &image, 600);
	CHECK(vg_image_bytes(end - 600, vg_image_unknown_size) >= 1 << 30);
	memcpy(elf.e_ident, ELFMAG, SELFMAG);
	memcpy(end - sizeof elf, &elf, sizeof elf);
	vg_image_bytes(end - sizeof elf, vg_image_unknown_size);
	munmap(end - page, page);
}

// A file of any length may declare larger variables. A file without an end, such as a pipe, may
// contain any image.
static void test_file(void)
{
	static const char text[] = ".global .b8 x[8589934592];";
	char path[32];
	int ends[2];
	int fd = memfd_create("image", MFD_CLOEXEC);

	CHECK(fd >= 0);
	CHECK(write(fd, text, sizeof text) == sizeof text);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	CHECK(vg_image_file_bytes(path) >= UINT64_C(8589934592));
	CHECK(vg_image_file_bytes(path) < UINT64_C(8589934592) + 1024);
	CHECK(ftruncate(fd, (1 << 30) + 1) == 0);
	CHECK(vg_image_file_bytes(path) >= UINT64_C(8589934592));
	CHECK(ftruncate(fd, 0) == 0);
	CHECK_EQUAL(vg_image_file_bytes(path), 0);
	CHECK(pipe(ends) == 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
	CHECK_EQUAL(vg_image_file_bytes(path), UINT64_MAX);
	CHECK_EQUAL(vg_image_file_bytes("/nonexistent"), 0);
}

int main(void)
{
	test_file();
	test_wrappers();
	test_compressed();
	test_truncated_in_memory();
	test_many_parts();
	test_ptx();
	test_ptx_open_array();
	test_elf();
	test_fatbin();
	return 0;
}
