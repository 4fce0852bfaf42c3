// SPDX-License-Identifier: Apache-2.0
/*
 * This header declares the data that the simulator reads from PTX text (ptx.c, ptx_data.c,
 * ptx_link.c).
 */
#ifndef GPUSIM_PTX_H
#define GPUSIM_PTX_H

#include "abi.h"

#include <stdbool.h>

struct ptx_param {
	uint32_t offset, size;
};

struct ptx_entry {
	char *name;
	struct ptx_param *params;
	uint32_t param_count;
	uint32_t param_bytes;
	bool spins; /* runs for as many ns as its first parameter holds */
	bool meets; /* then runs until the kernel that this kernel meets has finished too */
	bool traps; /* then ends with an exception */
};

/* ptx_address is an initial value: a variable's address plus an addend. */
struct ptx_address {
	uint64_t offset; /* in the initial content */
	char *name;
	int64_t addend;
};

/* ptx_data is the initial content of a variable. Bytes beyond the initial content are zero. */
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

/* ptx_symbol is a name that other texts may use or define. */
struct ptx_symbol {
	char *name;
	enum ptx_linkage linkage;
	bool defined;
	bool used; /* only used names must be defined */
	unsigned unit; /* index of the symbol's text */
};

/* ptx is one text, or several linked texts in a row. */
struct ptx {
	struct ptx_entry *entries;
	size_t entry_count;
	struct ptx_global *globals;
	size_t global_count;
	struct ptx_symbol *symbols;
	size_t symbol_count;
	size_t unit_symbols; /* index of the first symbol of the text being read */
	unsigned units;
	uint64_t length; /* of the text */
};

CUresult ptx_parse(const char *text, struct ptx *ptx);
void ptx_free(struct ptx *ptx);

/* ptx_type_size returns the size of a type such as .u64 or .b8 in bytes, and 0 for other words. */
struct text;
uint32_t ptx_type_size(struct text word);

/* ptx_read_data reads an initialiser, from behind the = to the next comma or semicolon. */
CUresult ptx_read_data(struct text *t, uint32_t element, struct ptx *ptx, struct ptx_data *data);
void ptx_data_free(struct ptx_data *data);

/* ptx_symbol_add adds a name of the text being read, or adds properties to a known name. */
CUresult ptx_symbol_add(struct ptx *ptx, struct text name, enum ptx_linkage linkage, bool defined);
/* ptx_symbol_use records that code or an initialiser uses the name. */
void ptx_symbol_use(struct ptx *ptx, struct text name);
void ptx_symbols_free(struct ptx *ptx);

/*
 * ptx_check_symbols checks that every used name is defined, and that no name is defined twice. If
 * the check fails, ptx_check_symbols returns CUDA_ERROR_NO_BINARY_FOR_GPU and writes a line to the
 * log.
 */
CUresult ptx_check_symbols(const struct ptx *ptx, char *log, size_t room);

/* ptx_global_bytes returns the total size of the variables in device memory. */
uint64_t ptx_global_bytes(const struct ptx *ptx);

#endif
