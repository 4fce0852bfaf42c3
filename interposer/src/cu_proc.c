// SPDX-License-Identifier: Apache-2.0

// cuGetProcAddress: the real one is asked first, with the same arguments. What
// it answers is exchanged by the pointer: every real function that we stand in
// for has its counterpart, in all its variants, whatever name, version and flags
// led to it.

#include <ctype.h>
#include <string.h>

#include "base.h"
#include "driver.h"

#define VG_DECLARE_OWN(name) extern int name(void);
VG_OWN_SYMBOLS(VG_DECLARE_OWN)
#undef VG_DECLARE_OWN

struct vg_own {
	uint32_t symbol;
	vg_function function;
};

static const struct vg_own vg_owns[] = {
#define VG_OWN_ENTRY(name) {VG_SYM_##name, name},
	VG_OWN_SYMBOLS(VG_OWN_ENTRY)
#undef VG_OWN_ENTRY
};

enum { vg_own_count = sizeof vg_owns / sizeof *vg_owns };

// The real counterparts of vg_owns, NULL where this driver has none. Two
// threads that fill it at once write the same.
static _Atomic(vg_function) vg_reals[vg_own_count];

static void vg_find_reals(void)
{
	static _Atomic int found;

	if (atomic_load(&found))
		return;
	for (size_t i = 0; i < vg_own_count; i++)
		atomic_store(&vg_reals[i], vg_real_lookup(vg_owns[i].symbol));
	atomic_store(&found, 1);
}

// vg_swap is our function for a real one, or NULL if there is none. A driver
// that looks its own names up through the loader may answer with ours.
static vg_function vg_swap(vg_function real)
{
	vg_find_reals();
	for (size_t i = 0; i < vg_own_count; i++)
		if (atomic_load_explicit(&vg_reals[i], memory_order_relaxed) == real ||
		    vg_owns[i].function == real)
			return vg_owns[i].function;
	return NULL;
}

// vg_is_variant says whether an exported name is one of `name`: the same,
// followed by a version, a suffix for per-thread streams, or both.
static bool vg_is_variant(const char *exported, const char *name)
{
	size_t length = strlen(name);
	const char *rest = exported + length;

	if (strncmp(exported, name, length) != 0)
		return false;
	if (rest[0] == '_' && rest[1] == 'v' && isdigit((unsigned char)rest[2]))
		for (rest += 3; isdigit((unsigned char)*rest); rest++)
			continue;
	return *rest == '\0' || strcmp(rest, "_ptsz") == 0 || strcmp(rest, "_ptds") == 0;
}

// vg_is_guarded says whether we stand in for any function of this name. A
// variant of such a one that we do not know, of a driver newer than we are,
// must not be handed out: it would be a door without a limit.
static bool vg_is_guarded(const char *name)
{
	for (size_t i = 0; i < vg_own_count; i++)
		if (vg_is_variant(vg_symbol_name(vg_owns[i].symbol), name))
			return true;
	return false;
}

static CUresult vg_exchange(const char *name, void **function, int *status)
{
	vg_function real;
	vg_function own;

	if (!name || !function || !*function)
		return CUDA_SUCCESS;
	memcpy(&real, function, sizeof real);
	own = vg_swap(real);
	if (own) {
		memcpy(function, &own, sizeof own);
		return CUDA_SUCCESS;
	}
	if (!vg_is_guarded(name))
		return CUDA_SUCCESS;
	vg_say(VG_SAY_DOOR, "this driver has a version of %s that is newer than this library, which "
			    "therefore withholds it; install a newer nri-vgpu", name);
	*function = NULL;
	if (status)
		*status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_ERROR_NOT_FOUND;
}

VG_API(cuGetProcAddress_v2, const char *name, void **function, int version, uint64_t flags, int *status)
{
	CUresult result = VG_CALL(cuGetProcAddress_v2, name, function, version, flags, status);

	return result ? result : vg_exchange(name, function, status);
}

VG_API(cuGetProcAddress, const char *name, void **function, int version, uint64_t flags)
{
	CUresult result = VG_CALL(cuGetProcAddress, name, function, version, flags);

	return result ? result : vg_exchange(name, function, NULL);
}
