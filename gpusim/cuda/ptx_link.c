// SPDX-License-Identifier: Apache-2.0
/* This file implements the definitions and uses of names that PTX texts share. */
#include "ptx_text.h"
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* built_in lists the names that the driver itself defines for device code. */
static const char *const built_in[] = {"vprintf", "malloc", "free", "__assertfail"};

static struct ptx_symbol *find(const struct ptx *ptx, struct text name)
{
	for (size_t i = ptx->unit_symbols; i < ptx->symbol_count; i++)
		if (*name.at == *ptx->symbols[i].name && ptx_is(name, ptx->symbols[i].name))
			return &ptx->symbols[i];
	return NULL;
}

CUresult ptx_symbol_add(struct ptx *ptx, struct text name, enum ptx_linkage linkage, bool defined)
{
	struct ptx_symbol *symbol = find(ptx, name), *grown;

	if (symbol) {
		symbol->defined |= defined;
		if (linkage != PTX_EXTERN && linkage != PTX_LOCAL)
			symbol->linkage = linkage;
		return CUDA_SUCCESS;
	}
	if (linkage == PTX_LOCAL)
		return CUDA_SUCCESS;
	grown = realloc(ptx->symbols, (ptx->symbol_count + 1) * sizeof(*grown));
	if (!grown)
		return CUDA_ERROR_OUT_OF_MEMORY;
	ptx->symbols = grown;
	grown[ptx->symbol_count] = (struct ptx_symbol){
		.name = ptx_copy(name),
		.linkage = linkage,
		.defined = defined,
		.unit = ptx->units,
	};
	return grown[ptx->symbol_count++].name ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void ptx_symbol_use(struct ptx *ptx, struct text name)
{
	struct ptx_symbol *symbol = ptx_is_end(name) ? NULL : find(ptx, name);

	if (symbol)
		symbol->used = true;
}

void ptx_symbols_free(struct ptx *ptx)
{
	for (size_t i = 0; i < ptx->symbol_count; i++)
		free(ptx->symbols[i].name);
	free(ptx->symbols);
}

/* ---- links ---- */

static bool is_built_in(const char *name)
{
	for (size_t i = 0; i < sizeof(built_in) / sizeof(built_in[0]); i++)
		if (strcmp(built_in[i], name) == 0)
			return true;
	return false;
}

static bool is_defined(const struct ptx *ptx, const char *name)
{
	for (size_t i = 0; i < ptx->symbol_count; i++)
		if (ptx->symbols[i].defined && strcmp(ptx->symbols[i].name, name) == 0)
			return true;
	return is_built_in(name);
}

static bool is_defined_again(const struct ptx *ptx, const struct ptx_symbol *symbol)
{
	for (const struct ptx_symbol *s = symbol + 1; s < ptx->symbols + ptx->symbol_count; s++)
		if (s->defined && s->linkage == PTX_VISIBLE && s->unit != symbol->unit &&
		    strcmp(s->name, symbol->name) == 0)
			return true;
	return false;
}

CUresult ptx_check_symbols(const struct ptx *ptx, char *log, size_t room)
{
	for (size_t i = 0; i < ptx->symbol_count; i++) {
		const struct ptx_symbol *symbol = &ptx->symbols[i];
		const char *problem = NULL;

		if (symbol->used && !symbol->defined && !is_defined(ptx, symbol->name))
			problem = "Undefined reference to";
		else if (symbol->defined && symbol->linkage == PTX_VISIBLE && is_defined_again(ptx, symbol))
			problem = "Multiple definition of";
		if (!problem)
			continue;
		snprintf(log, room, "error   : %s '%s'", problem, symbol->name);
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	}
	return CUDA_SUCCESS;
}
