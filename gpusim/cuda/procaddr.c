// SPDX-License-Identifier: Apache-2.0
/*
 * cuGetProcAddress returns the newest variant of a name up to the requested version, for the
 * requested kind of default stream.
 */
#include "names.h"
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEWEST_VARIANT 4

static int compare(const void *name, const void *entry)
{
	return strcmp(name, ((const struct driver_name *)entry)->name);
}

static const struct driver_name *find(const char *name)
{
	return bsearch(name, driver_names, driver_name_count, sizeof(*driver_names), compare);
}

/* find_variant finds the name with a variant's and a flavour's suffix. */
static const struct driver_name *find_variant(const char *base, int variant, const char *flavour)
{
	char name[128];
	int length;

	if (variant == 1)
		length = snprintf(name, sizeof(name), "%s%s", base, flavour);
	else
		length = snprintf(name, sizeof(name), "%s_v%d%s", base, variant, flavour);
	return length < (int)sizeof(name) ? find(name) : NULL;
}

static const struct driver_name *per_thread_flavour(const char *base, int variant, int version)
{
	const struct driver_name *found = find_variant(base, variant, "_ptsz");

	if (!found)
		found = find_variant(base, variant, "_ptds");
	return found && found->version <= version ? found : NULL;
}

static const struct driver_name *resolve(const char *base, int version, bool per_thread, bool *exists)
{
	for (int variant = NEWEST_VARIANT; variant >= 1; variant--) {
		const struct driver_name *plain = find_variant(base, variant, "");
		const struct driver_name *flavoured;

		if (!plain)
			continue;
		*exists = true;
		if (plain->version > version)
			continue;
		flavoured = per_thread ? per_thread_flavour(base, variant, version) : NULL;
		return flavoured ? flavoured : plain;
	}
	return NULL;
}

static CUresult look_up(const char *symbol, void **function, int version, cuuint64_t flags, int *status)
{
	const struct driver_name *found;
	bool exists = false;

	if (!symbol || !function || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	*function = NULL;
	*status = CU_GET_PROC_ADDRESS_SUCCESS;
	if (!*symbol) /* the CUDA runtime's probe without a name finds no function */
		return CUDA_SUCCESS;
	found = resolve(symbol, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &exists);
	if (!found) {
		*status = exists ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
		return CUDA_ERROR_NOT_FOUND;
	}
	memcpy(function, &found->function, sizeof(*function));
	return CUDA_SUCCESS;
}

CU_API CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
	int status;

	return look_up(symbol, function, version, flags, &status);
}

CU_API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
				    cuuint64_t flags, int *status)
{
	int unused;

	return look_up(symbol, function, version, flags, status ? status : &unused);
}

CU_API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
	if (!table || !id)
		return CUDA_ERROR_INVALID_VALUE;
	*table = NULL;
	return CUDA_ERROR_NOT_FOUND;
}
