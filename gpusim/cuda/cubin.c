// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements images that the linker makes. These images are ELF files for the
 * machine "CUDA" with a section of code and a section of variables, as in real images. The
 * code is PTX text.
 */
#include "module.h"

#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OSABI_CUDA 51
#define FLAGS_SM_90 0x5a055au /* of 64 bits */

enum { SECTION_NONE, SECTION_CODE, SECTION_VARIABLES, SECTION_NAMES, SECTIONS };

static const char names[] = "\0.text\0.nv.global\0.shstrtab";
enum { NAME_CODE = 1, NAME_VARIABLES = 7, NAME_NAMES = 18 };

static void fill_head(Elf64_Ehdr *head, uint64_t sections)
{
	memcpy(head->e_ident, ELFMAG, SELFMAG);
	head->e_ident[EI_CLASS] = ELFCLASS64;
	head->e_ident[EI_DATA] = ELFDATA2LSB;
	head->e_ident[EI_VERSION] = EV_CURRENT;
	head->e_ident[EI_OSABI] = OSABI_CUDA;
	head->e_type = ET_EXEC;
	head->e_machine = EM_CUDA;
	head->e_version = EV_CURRENT;
	head->e_flags = FLAGS_SM_90;
	head->e_ehsize = sizeof(*head);
	head->e_shoff = sections;
	head->e_shentsize = sizeof(Elf64_Shdr);
	head->e_shnum = SECTIONS;
	head->e_shstrndx = SECTION_NAMES;
}

CUresult sim_cubin_new(const char *text, uint64_t global_bytes, void **image, size_t *size)
{
	size_t length = strlen(text) + 1;
	size_t code = sizeof(Elf64_Ehdr), strings = code + length;
	size_t table = round_up(strings + sizeof(names), 8);
	Elf64_Shdr sections[SECTIONS] = {
		[SECTION_CODE] = {.sh_name = NAME_CODE, .sh_type = SHT_PROGBITS,
				  .sh_flags = SHF_ALLOC | SHF_EXECINSTR, .sh_offset = code,
				  .sh_size = length, .sh_addralign = 1},
		[SECTION_VARIABLES] = {.sh_name = NAME_VARIABLES, .sh_type = SHT_NOBITS,
				       .sh_flags = SHF_ALLOC | SHF_WRITE, .sh_offset = strings,
				       .sh_size = global_bytes, .sh_addralign = 16},
		[SECTION_NAMES] = {.sh_name = NAME_NAMES, .sh_type = SHT_STRTAB,
				   .sh_offset = strings, .sh_size = sizeof(names), .sh_addralign = 1},
	};
	Elf64_Ehdr head = {0};
	char *out;

	*size = table + sizeof(sections);
	out = calloc(1, *size);
	if (!out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	fill_head(&head, table);
	memcpy(out, &head, sizeof(head));
	memcpy(out + code, text, length);
	memcpy(out + strings, names, sizeof(names));
	memcpy(out + table, sections, sizeof(sections));
	*image = out;
	return CUDA_SUCCESS;
}

CUresult sim_cubin_text(const void *image, char **text)
{
	Elf64_Ehdr head;
	Elf64_Shdr code;

	memcpy(&head, image, sizeof(head));
	if (head.e_machine != EM_CUDA || head.e_ident[EI_OSABI] != OSABI_CUDA ||
	    head.e_shnum != SECTIONS || head.e_shentsize != sizeof(code))
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	memcpy(&code, (const char *)image + head.e_shoff + sizeof(code) * SECTION_CODE, sizeof(code));
	if (code.sh_name != NAME_CODE || code.sh_type != SHT_PROGBITS ||
	    code.sh_offset + code.sh_size > head.e_shoff)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	*text = strndup((const char *)image + code.sh_offset, code.sh_size);
	return *text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_read_file(const char *path, char **content, size_t *size)
{
	FILE *file = fopen(path, "rbe");
	long length;

	if (!file)
		return errno == ENOENT ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_OPERATING_SYSTEM;
	*content = NULL;
	if (fseek(file, 0, SEEK_END) == 0 && (length = ftell(file)) >= 0 &&
	    fseek(file, 0, SEEK_SET) == 0) {
		*content = calloc(1, (size_t)length + 1);
		if (*content && fread(*content, 1, (size_t)length, file) != (size_t)length) {
			free(*content);
			*content = NULL;
		}
		if (size)
			*size = (size_t)length;
	}
	fclose(file);
	return *content ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
