// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "image.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/number.h"
#include "ptx.h"

enum {
	vg_fatbin_magic = (int)0xba55ed50,
	vg_wrapper_magic = 0x466243b1,
	vg_fatbin_ptx = 1,
	// flags of a part that is compressed by LZ4 or by zstd
	vg_fatbin_lz4 = 0x2000,
	vg_fatbin_zstd = 0x8000,
};

// vg_fatbin_wrapper is the record with which a compiler embeds kernels in a program.
struct vg_fatbin_wrapper {
	uint32_t magic;
	uint32_t version;
	const void *data;
	const void *unused;
};

struct vg_fatbin_head {
	uint32_t magic;
	uint16_t version;
	uint16_t head_bytes;
	uint64_t bytes; // behind the head
};

struct vg_fatbin_part {
	uint16_t kind;
	uint16_t unknown;
	uint32_t head_bytes;
	uint64_t bytes; // behind the head
	uint32_t compressed_bytes;
	uint32_t options_offset;
	uint16_t minor;
	uint16_t major;
	uint32_t architecture;
	uint32_t name_offset;
	uint32_t name_bytes;
	uint64_t flags;
	uint64_t zero;
	uint64_t uncompressed_bytes;
};

static uint64_t vg_larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

// vg_view is an image. If `vouched` is set, the image is in memory, and the end of the image is
// unknown. The program guarantees a whole image, but may be wrong. Therefore the interposer reads
// only mapped memory.
struct vg_view {
	const unsigned char *at;
	uint64_t size;
	bool vouched;
};

static bool vg_is_mapped(const unsigned char *at, size_t size)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t from = (uintptr_t)at / page * page;
	unsigned char in_core[4];
	size_t length = (uintptr_t)at + size - from;

	if (length > page * sizeof in_core)
		return false;
	return mincore((void *)from, length, in_core) == 0 || errno != ENOMEM;
}

// vg_view_copy copies a piece out of the image. vg_view_copy returns false if the image does not
// contain the piece.
static bool vg_view_copy(const struct vg_view *view, uint64_t at, void *to, size_t size)
{
	if (at > view->size || size > view->size - at ||
	    (view->vouched && !vg_is_mapped(view->at + at, size)))
		return false;
	memcpy(to, view->at + at, size);
	return true;
}

// vg_view_part returns a part of an image, cut off at the image's end.
static struct vg_view vg_view_part(const struct vg_view *view, uint64_t at, uint64_t size)
{
	uint64_t left = at < view->size ? view->size - at : 0;

	return (struct vg_view){view->at + (at < view->size ? at : view->size),
				size < left ? size : left, view->vouched};
}

// vg_view_text returns the length of a text. The text ends at a zero byte, or with the image.
static size_t vg_view_text(const struct vg_view *view)
{
	return strnlen((const char *)view->at, (size_t)view->size);
}

// vg_elf_sections returns the number of sections of a cubin. The first section contains the number
// if the number is too large for the head.
static uint64_t vg_elf_sections(const struct vg_view *view, const Elf64_Ehdr *head)
{
	Elf64_Shdr first;

	if (head->e_shnum || !head->e_shoff || !vg_view_copy(view, head->e_shoff, &first, sizeof first))
		return head->e_shnum;
	return first.sh_size;
}

// vg_elf_bytes adds up the sections that a cubin has in memory. If vg_elf_bytes cannot read all
// sections, it returns `stated`.
static uint64_t vg_elf_bytes(const struct vg_view *view, uint64_t stated)
{
	Elf64_Ehdr head;
	Elf64_Shdr section;
	uint64_t sum = 0;
	uint64_t count;

	if (!vg_view_copy(view, 0, &head, sizeof head))
		return stated;
	if (head.e_shentsize != sizeof section)
		return stated;
	count = vg_elf_sections(view, &head);
	for (uint64_t i = 0; i < count; i++) {
		if (head.e_shoff > UINT64_MAX / 2 ||
		    !vg_view_copy(view, head.e_shoff + i * sizeof section, &section, sizeof section))
			return stated;
		if (section.sh_flags & SHF_ALLOC)
			sum = vg_add_saturating(sum, vg_round_up(section.sh_size, 512));
	}
	return sum;
}

static uint64_t vg_text_bytes(const char *text, size_t length)
{
	// The length of the text is an upper bound of the code's memory.
	return vg_add_saturating(vg_round_up(vg_ptx_bytes(text, length), 512), length);
}

// vg_part_bytes returns the memory that a part takes. The header of a compressed part states the
// uncompressed size, which is never less than the compressed size.
static uint64_t vg_part_bytes(const struct vg_fatbin_part *part, const struct vg_view *content)
{
	unsigned char last;

	if (part->flags & (vg_fatbin_lz4 | vg_fatbin_zstd))
		return vg_larger(part->uncompressed_bytes, part->bytes);
	if (part->kind != vg_fatbin_ptx)
		return vg_elf_bytes(content, part->bytes);
	if (content->size < part->bytes ||
	    (part->bytes && !vg_view_copy(content, part->bytes - 1, &last, 1)))
		return part->bytes;
	return vg_text_bytes((const char *)content->at, vg_view_text(content));
}

// vg_fatbin_sum collects the sizes of a fat binary's parts. The driver loads only one part.
struct vg_fatbin_sum {
	uint64_t plain;      // the largest part that is not compressed
	uint64_t compressed; // the largest compressed part
	// `variables` is the size of the largest variables of a text. The size of a compressed part
	// does not include the part's variables, which may be as large.
	uint64_t variables;
};

static void vg_part_add(struct vg_fatbin_sum *sum, const struct vg_fatbin_part *part,
			const struct vg_view *content)
{
	uint64_t bytes = vg_part_bytes(part, content);

	if (part->flags & (vg_fatbin_lz4 | vg_fatbin_zstd)) {
		sum->compressed = vg_larger(sum->compressed, bytes);
		return;
	}
	sum->plain = vg_larger(sum->plain, bytes);
	if (part->kind == vg_fatbin_ptx)
		sum->variables = vg_larger(sum->variables, bytes - vg_min(bytes, part->bytes));
}

static uint64_t vg_fatbin_bytes(const struct vg_view *view)
{
	struct vg_fatbin_sum sum = {0, 0, 0};
	struct vg_fatbin_head head;
	struct vg_fatbin_part part;
	uint64_t at;
	uint64_t end;

	if (!vg_view_copy(view, 0, &head, sizeof head))
		return 0;
	at = head.head_bytes;
	end = vg_add_saturating(at, head.bytes);
	while (at < end) { // each part has a header, so that the loop ends with the image
		struct vg_view content;

		if (!vg_view_copy(view, at, &part, sizeof part) || part.head_bytes < sizeof part)
			break;
		content = vg_view_part(view, at + part.head_bytes, part.bytes);
		vg_part_add(&sum, &part, &content);
		at = vg_add_saturating(at, vg_add_saturating(part.head_bytes, part.bytes));
	}
	if (sum.compressed)
		sum.compressed = vg_add_saturating(sum.compressed, sum.variables + 512);
	return vg_larger(sum.plain, sum.compressed);
}

// vg_unwrapped returns the image to which a wrapper points, or `image` itself if `image` is not a
// wrapper. No driver accepts a wrapper in a wrapper.
static const void *vg_unwrapped(const void *image)
{
	struct vg_view view = {image, UINT64_MAX / 4, true};
	struct vg_fatbin_wrapper wrapper;
	uint32_t magic;

	if (!image || !vg_view_copy(&view, 0, &magic, sizeof magic) || magic != (uint32_t)vg_wrapper_magic)
		return image;
	return vg_view_copy(&view, 0, &wrapper, sizeof wrapper) ? wrapper.data : NULL;
}

uint64_t vg_image_bytes(const void *image, size_t size)
{
	bool known = size != vg_image_unknown_size;
	const void *content = known ? image : vg_unwrapped(image);
	struct vg_view view = {content, known ? size : UINT64_MAX / 4, !known};
	uint32_t magic;

	if (!content || (known && size < sizeof magic) || !vg_view_copy(&view, 0, &magic, sizeof magic))
		return size;
	if (memcmp(&magic, ELFMAG, SELFMAG) == 0)
		return vg_elf_bytes(&view, known ? size : 0);
	if (magic == (uint32_t)vg_fatbin_magic)
		return vg_fatbin_bytes(&view);
	if (magic == (uint32_t)vg_wrapper_magic)
		return 0;
	return vg_text_bytes(content, known ? strnlen(content, size) : strlen(content));
}

uint64_t vg_image_file_bytes(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t bytes = UINT64_MAX; // an image may declare variables of any size
	char *image;
	off_t size;

	if (fd < 0)
		return 0;
	size = lseek(fd, 0, SEEK_END);
	image = size > 0 ? malloc((size_t)size) : NULL;
	if (size == 0)
		bytes = 0;
	else if (image && pread(fd, image, (size_t)size, 0) == (ssize_t)size)
		bytes = vg_image_bytes(image, (size_t)size);
	free(image);
	close(fd);
	return bytes;
}
