// SPDX-License-Identifier: Apache-2.0

#include "image.h"

#include <elf.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base.h"

enum {
	vg_fatbin_magic = (int)0xba55ed50,
	vg_wrapper_magic = 0x466243b1,
	vg_fatbin_ptx = 1,
	vg_fatbin_compressed = 0x2000,
	vg_max_sections = 65536,
	vg_max_image = 1 << 30,
	// Compression of code reaches no more than this.
	vg_expansion = 16,
};

// vg_fatbin_wrapper is what a compiler leaves in a program for its kernels.
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

// vg_elf_bytes adds up the sections that a cubin has in memory.
static uint64_t vg_elf_bytes(const unsigned char *image, size_t size)
{
	Elf64_Ehdr head;
	Elf64_Shdr section;
	uint64_t sum = 0;

	if (size < sizeof head)
		return 0;
	memcpy(&head, image, sizeof head);
	if (head.e_shentsize != sizeof section || head.e_shoff > size ||
	    head.e_shnum > (size - head.e_shoff) / sizeof section)
		return size;
	for (size_t i = 0; i < head.e_shnum; i++) {
		memcpy(&section, image + head.e_shoff + i * sizeof section, sizeof section);
		if (section.sh_flags & SHF_ALLOC)
			sum = vg_add_saturating(sum, vg_round_up(section.sh_size, 512));
	}
	return sum;
}

static uint64_t vg_text_bytes(const char *text, size_t length)
{
	// Code takes less than its text.
	return vg_add_saturating(vg_round_up(vg_ptx_bytes(text, length), 512), length);
}

static uint64_t vg_part_bytes(const struct vg_fatbin_part *part, const unsigned char *content,
			      size_t size)
{
	if (part->flags & vg_fatbin_compressed)
		return vg_add_saturating(part->uncompressed_bytes, size * vg_expansion);
	if (part->kind == vg_fatbin_ptx)
		return vg_text_bytes((const char *)content, strnlen((const char *)content, size));
	return vg_elf_bytes(content, size);
}

// vg_fatbin_bytes is the size of the largest part: the driver loads one.
static uint64_t vg_fatbin_bytes(const unsigned char *image, size_t size)
{
	struct vg_fatbin_head head;
	uint64_t most = 0;
	size_t at;
	size_t end;

	if (size < sizeof head)
		return 0;
	memcpy(&head, image, sizeof head);
	if (head.head_bytes > size)
		return 0;
	at = head.head_bytes;
	end = head.bytes < size - at ? at + (size_t)head.bytes : size;
	while (at < end && end - at >= sizeof(struct vg_fatbin_part)) {
		struct vg_fatbin_part part;
		uint64_t bytes;

		memcpy(&part, image + at, sizeof part);
		if (part.head_bytes < sizeof part || part.head_bytes > end - at ||
		    part.bytes > end - at - part.head_bytes)
			break;
		bytes = vg_part_bytes(&part, image + at + part.head_bytes, (size_t)part.bytes);
		most = bytes > most ? bytes : most;
		at += part.head_bytes + (size_t)part.bytes;
	}
	return most;
}

static size_t vg_fatbin_size(const void *image)
{
	struct vg_fatbin_head head;

	memcpy(&head, image, sizeof head);
	return head.bytes > vg_max_image ? 0 : head.head_bytes + (size_t)head.bytes;
}

// vg_elf_size is the length of an ELF image that the program vouches for.
static size_t vg_elf_size(const void *image)
{
	Elf64_Ehdr head;

	memcpy(&head, image, sizeof head);
	if (head.e_shoff > vg_max_image)
		return 0;
	return (size_t)head.e_shoff + (size_t)head.e_shnum * head.e_shentsize;
}

uint64_t vg_image_bytes(const void *image, size_t size)
{
	bool known = size != vg_image_unknown_size;
	uint32_t magic;

	if (!image || (known && size < sizeof magic))
		return size;
	memcpy(&magic, image, sizeof magic);
	if (memcmp(image, ELFMAG, SELFMAG) == 0)
		return vg_elf_bytes(image, known ? size : vg_elf_size(image));
	if (magic == (uint32_t)vg_fatbin_magic)
		return vg_fatbin_bytes(image, known ? size : vg_fatbin_size(image));
	if (magic == (uint32_t)vg_wrapper_magic && !known) {
		struct vg_fatbin_wrapper wrapper;

		memcpy(&wrapper, image, sizeof wrapper);
		return vg_image_bytes(wrapper.data, vg_image_unknown_size);
	}
	return vg_text_bytes(image, known ? strnlen(image, size) : strlen(image));
}

uint64_t vg_image_file_bytes(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t bytes = 0;
	char *image = NULL;
	off_t size;

	if (fd < 0)
		return 0;
	size = lseek(fd, 0, SEEK_END);
	if (size > 0 && size <= vg_max_image)
		image = malloc((size_t)size);
	if (image && pread(fd, image, (size_t)size, 0) == (ssize_t)size)
		bytes = vg_image_bytes(image, (size_t)size);
	free(image);
	close(fd);
	return bytes;
}
