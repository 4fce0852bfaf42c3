// SPDX-License-Identifier: Apache-2.0

// This file replaces cuGetProcAddress, which first calls the driver's cuGetProcAddress with the
// same arguments. vg_exchange then replaces the returned pointer if the interposer has a function
// for the pointer. vg_exchange compares the pointer with the versions of the requested name. If no
// version matches, vg_swap searches all functions for which the interposer has a replacement.

#include <string.h>

#include "base/large.h"
#include "base/log.h"
#include "base/text.h"
#include "cu_proc.h"
#include "driver/driver.h"
#include "load/capture_count.h"
#include "load/family.h"

// vg_owns holds the symbols of the functions that the interposer replaces.
static const uint16_t vg_owns[] = {
#define VG_OWN_ENTRY(name) VG_SYM_##name,
	VG_OWN_SYMBOLS(VG_OWN_ENTRY)
#undef VG_OWN_ENTRY
};

enum { vg_own_count = sizeof vg_owns / sizeof *vg_owns };

enum {
#define VG_OWN_POSITION(name) vg_own_position_##name,
	VG_OWN_SYMBOLS(VG_OWN_POSITION)
#undef VG_OWN_POSITION
};

// vg_own_positions holds, by symbol, the index of the symbol in vg_owns + 1, or 0 if the interposer
// has no replacement.
static const uint16_t vg_own_positions[VG_SYMBOL_COUNT] = {
#define VG_OWN_ENTRY(name) [VG_SYM_##name] = vg_own_position_##name + 1,
	VG_OWN_SYMBOLS(VG_OWN_ENTRY)
#undef VG_OWN_ENTRY
};

// vg_own_distances holds the distances of the replacements from vg_own_base, in the order of
// vg_owns: see stubs.S.
extern const int32_t vg_own_distances[vg_own_count];
extern const char vg_own_base[];

// vg_own_function returns the interposer's function for vg_owns[own].
static vg_function vg_own_function(size_t own)
{
	const char *at = vg_own_base + vg_own_distances[own];
	vg_function function;

	memcpy(&function, &at, sizeof function);
	return function;
}

// vg_place_pointers and vg_place_owns are a hash table with open addressing. The table maps a
// pointer, to an interposer's or a driver's function, to an index of vg_owns + 1. Two threads that
// fill the table at once write the same values into the same places.
enum { vg_place_bits = 11, vg_places = 1 << vg_place_bits };
_Static_assert(vg_places >= 4 * vg_own_count, "the places hold two pointers of each function, half empty");

VG_LARGE static _Atomic(vg_function) vg_place_pointers[vg_places];
VG_LARGE static _Atomic uint16_t vg_place_owns[vg_places];

static uint32_t vg_pointer_place(vg_function function)
{
	return (uint32_t)((uint64_t)(uintptr_t)function * UINT64_C(0x9e3779b97f4a7c15) >>
			  (64 - vg_place_bits));
}

// vg_remember records the function to which a pointer belongs. If a driver exports a function under
// two names, the first name counts.
static void vg_remember(vg_function function, uint16_t own)
{
	uint32_t at = vg_pointer_place(function);
	uint16_t none = 0;

	for (;; at = (at + 1) % vg_places) {
		vg_function there = NULL;

		if (atomic_compare_exchange_strong(&vg_place_pointers[at], &there, function) ||
		    there == function)
			break;
	}
	atomic_compare_exchange_strong(&vg_place_owns[at], &none, (uint16_t)(own + 1));
}

static void vg_find_reals(void)
{
	static _Atomic int found;

	if (atomic_load(&found))
		return;
	for (uint16_t i = 0; i < vg_own_count; i++) {
		vg_function real = vg_real_lookup(vg_owns[i]);

		if (real)
			vg_remember(real, i);
		vg_remember(vg_own_function(i), i);
	}
	atomic_store(&found, 1);
}

// vg_swap returns the interposer's function for a driver's function, or NULL if the interposer has
// no replacement. A driver that looks up its own names through the loader may return the
// interposer's function.
static vg_function vg_swap(vg_function real)
{
	vg_function there;

	vg_find_reals();
	for (uint32_t at = vg_pointer_place(real);; at = (at + 1) % vg_places) {
		there = atomic_load_explicit(&vg_place_pointers[at], memory_order_relaxed);
		if (there == real)
			return vg_own_function(atomic_load(&vg_place_owns[at]) - 1u);
		if (!there)
			return NULL;
	}
}

static const uint16_t vg_symbol_places[] = {VG_SYMBOL_PLACES};
static const uint16_t vg_symbol_versions[] = {VG_SYMBOL_VERSIONS};

enum { vg_symbol_place_count = sizeof vg_symbol_places / sizeof *vg_symbol_places };
_Static_assert((vg_symbol_place_count & (vg_symbol_place_count - 1)) == 0, "a hash is cut to the places");

// vg_versions returns the symbols that are versions of `name`, whose vg_text_hash is `hash`. A version
// is the same name, followed by a version, a suffix for per-thread streams, or both. VG_SYMBOL_COUNT
// ends the list.
static const uint16_t *vg_versions(const char *name, uint32_t hash)
{
	size_t length = strlen(name);

	for (uint32_t at = hash;; at++) {
		uint16_t there = vg_symbol_places[at % vg_symbol_place_count];
		const uint16_t *list = vg_symbol_versions + there;

		if (!there)
			return list;
		if (*list == length && memcmp(vg_real_name(list[1]), name, length) == 0)
			return list + 1;
	}
}

// vg_exported_as returns the version of `name` that the driver exports at the address `real`.
// vg_exported_as returns VG_SYMBOL_COUNT if the driver exports no version there.
static uint32_t vg_exported_as(const char *name, vg_function real)
{
	uint32_t hash = vg_text_hash(name);
	const uint16_t *version = vg_versions(name, hash);
	size_t length = strlen(name);

	for (; *version != VG_SYMBOL_COUNT; version++) {
		const char *suffix = vg_real_name(*version) + length;

		if (vg_real_lookup_hashed(*version, vg_text_hash_more(hash, suffix)) == real)
			break;
	}
	return *version;
}

// vg_own_of returns the interposer's function for a symbol, or NULL if the interposer has no
// replacement.
static vg_function vg_own_of(uint32_t symbol)
{
	return vg_own_positions[symbol] ? vg_own_function(vg_own_positions[symbol] - 1u) : NULL;
}

// vg_is_guarded reports whether the interposer replaces any version of this name. A driver newer
// than this library may have further versions. The program must not receive further versions,
// because no limit would apply to these functions.
static bool vg_is_guarded(const char *name)
{
	const uint16_t *version = vg_versions(name, vg_text_hash(name));

	while (*version != VG_SYMBOL_COUNT && !vg_own_positions[*version])
		version++;
	return *version != VG_SYMBOL_COUNT;
}

// vg_may_pass reports whether the program may receive a function that the driver exports under no
// known name. A function that begins a capture always passes, because it allocates no limited
// resource.
static bool vg_may_pass(const char *name)
{
	switch (vg_family_of(name)) {
	case vg_family_capture:
		vg_capture_count_unknown();
		return true;
	case vg_family_refuse:
		return false;
	default:
		return !vg_is_guarded(name);
	}
}

static CUresult vg_exchange(const char *name, void **function, int *status)
{
	vg_function real;
	vg_function own;
	uint32_t symbol;

	if (!name || !function || !*function)
		return CUDA_SUCCESS;
	memcpy(&real, function, sizeof real);
	symbol = vg_exported_as(name, real);
	own = symbol == VG_SYMBOL_COUNT ? vg_swap(real) : vg_own_of(symbol);
	if (own) {
		memcpy(function, &own, sizeof own);
		return CUDA_SUCCESS;
	}
	if (symbol != VG_SYMBOL_COUNT || vg_may_pass(name))
		return CUDA_SUCCESS;
	vg_log(VG_LOG_WITHHELD, "withheld %s: the driver's version of this function is newer than this "
			    "nri-vgpu, which cannot limit the function; install a newer nri-vgpu", name);
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

// vg_identical reports whether the driver's cuGetProcAddress returns the function that the driver
// exports. vg_identical requests CUDA 12.0, which has no newer version of the checked functions.
static bool vg_identical(const char *name, uint32_t symbol)
{
	enum { version = 12000 };
	vg_function exported = vg_real_lookup(symbol);
	vg_function answered;
	void *function = NULL;

	if (!exported || VG_CALL(cuGetProcAddress, name, &function, version, 0) || !function)
		return true;
	memcpy(&answered, &function, sizeof answered);
	return answered == exported;
}

void vg_cu_proc_check(void)
{
	if (vg_identical("cuMemAlloc", VG_SYM_cuMemAlloc_v2) &&
	    vg_identical("cuLaunchKernel", VG_SYM_cuLaunchKernel))
		return;
	vg_log(VG_LOG_IDENTITY, "withheld functions that have limits: this driver's cuGetProcAddress returns "
				"other functions than the driver exports; install an nri-vgpu that knows this "
				"driver");
}
