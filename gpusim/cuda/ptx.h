// SPDX-License-Identifier: Apache-2.0
/* What the simulator reads of PTX text (ptx.c, ptx_data.c, ptx_link.c). */
#ifndef GPUSIM_PTX_H
#define GPUSIM_PTX_H

#include "cuda_abi.h"

#include <stdbool.h>

struct ptx_param {
	uint32_t offset, size;
};

struct ptx_entry {
	char *name;
	struct ptx_param *params;
	uint32_t param_count;
	uint32_t param_bytes;
	bool spins; /* runs for as many ns as its first parameter says */
	bool meets; /* …and then until the kernel that it meets has done so */
};

/* An initial value that is the address of a variable, and something more. */
struct ptx_address {
	uint64_t offset; /* in the initial content */
	char *name;
	int64_t addend;
};

/* The initial content of a variable; what is behind it is zero. */
struct ptx_data {
	unsigned char *bytes;
	uint64_t size;
	struct ptx_address *addresses;
	size_t address_count;
};

struct ptx_global {
	char *name;
	uint64_t size;
	uint32_t alignment;
	struct ptx_data data;
};

enum ptx_linkage { PTX_LOCAL, PTX_VISIBLE, PTX_WEAK, PTX_EXTERN };

/* A name that other texts may use or define. */
struct ptx_symbol {
	char *name;
	enum ptx_linkage linkage;
	bool defined;
	bool used; /* only what is used must be defined */
	unsigned unit; /* the text that it stands in */
};

/* One text, or several that were linked, one behind the other. */
struct ptx {
	struct ptx_entry *entries;
	size_t entry_count;
	struct ptx_global *globals;
	size_t global_count;
	struct ptx_symbol *symbols;
	size_t symbol_count;
	size_t unit_symbols; /* index of the first one of the text being read */
	unsigned units;
	uint64_t length; /* of the text */
};

CUresult ptx_parse(const char *text, struct ptx *ptx);
void ptx_free(struct ptx *ptx);

/* Bytes of a type such as .u64 or .b8, 0 if the word is none. */
struct text;
uint32_t ptx_type_size(struct text word);

/* Reads an initialiser, from behind the = to the comma or semicolon after it. */
CUresult ptx_read_data(struct text *t, uint32_t element, struct ptx *ptx, struct ptx_data *data);
void ptx_data_free(struct ptx_data *data);

/* Files a name of the text being read; what is known of it adds up. */
CUresult ptx_symbol_add(struct ptx *ptx, struct text name, enum ptx_linkage linkage, bool defined);
/* Notes that code or an initialiser uses the name. */
void ptx_symbol_use(struct ptx *ptx, struct text name);
void ptx_symbols_free(struct ptx *ptx);

/*
 * Whether every name that is used is defined, and none twice: else
 * CUDA_ERROR_NO_BINARY_FOR_GPU, and a line about it in the log.
 */
CUresult ptx_check_symbols(const struct ptx *ptx, char *log, size_t room);

/* Bytes that the variables take in device memory, one behind the other. */
uint64_t ptx_global_bytes(const struct ptx *ptx);

#endif
