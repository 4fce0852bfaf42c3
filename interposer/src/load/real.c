// SPDX-License-Identifier: Apache-2.0

#include "real.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

#include "base/large.h"
#include "base/log.h"
#include "base/text.h"
#include "capture_count.h"
#include "finder.h"
#include "loader.h"

// No function in this file takes a lock. Two threads that open the same library or look up the same
// function get the same result. A fork at any moment leaves no partial state.

VG_LARGE _Atomic(vg_function) vg_real_functions[VG_SYMBOL_COUNT + VG_SPARE_COUNT];

extern const struct vg_spare vg_spares[VG_SPARE_COUNT];
_Static_assert(sizeof(struct vg_spare) == VG_SPARE_RECORD, "records of spares.S");

static const char vg_names[] = VG_SYMBOL_TEXT;
static const uint32_t vg_name_offsets[] = {VG_SYMBOL_OFFSETS};

const char *vg_real_name(uint32_t index)
{
	if (index >= VG_SYMBOL_COUNT)
		return vg_spares[index - VG_SYMBOL_COUNT].name;
	return vg_names + vg_name_offsets[index];
}

static void *vg_open_library(void)
{
	struct vg_loader loader;
	char path[PATH_MAX];
	void *library;

	if (vg_loader_get(&loader)) {
		vg_log(VG_LOG_DRIVER, "failed to load " VG_LIBRARY ": this process cannot load libraries");
		return NULL;
	}
	if (vg_finder_library(VG_LIBRARY, path)) {
		vg_log(VG_LOG_DRIVER, "failed to find the driver's " VG_LIBRARY " in the container; does it "
				      "get a GPU, and is the driver mounted into it?");
		return NULL;
	}
	library = loader.open(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		vg_log(VG_LOG_DRIVER, "failed to load the driver's %s; do the libraries that it "
				      "needs exist in the container?", path);
	return library;
}

void *vg_real_library(void)
{
	static _Atomic(void *) opened;
	void *library = atomic_load(&opened);

	if (!library) {
		library = vg_open_library();
		if (library)
			atomic_store(&opened, library);
	}
	return library;
}

// vg_real_exports returns the real library's exports. vg_real_exports returns NULL if the exports
// cannot be read, or if another thread is reading the exports.
static const struct vg_exports *vg_real_exports(const struct vg_loader *loader, void *library)
{
	enum { unread, reading, readable, unreadable };
	static _Atomic int state;
	static struct vg_exports exports;
	int seen = unread;

	if (atomic_compare_exchange_strong(&state, &seen, reading)) {
		seen = vg_loader_read_exports(&exports, loader, library) ? unreadable : readable;
		atomic_store(&state, seen);
	}
	return seen == readable ? &exports : NULL;
}

vg_function vg_real_lookup_hashed(uint32_t index, uint32_t hash)
{
	vg_function function = atomic_load_explicit(&vg_real_functions[index], memory_order_acquire);
	const struct vg_exports *exports;
	struct vg_loader loader;
	void *library;
	void *symbol;

	if (function)
		return function;
	library = vg_real_library();
	if (!library || vg_loader_get(&loader))
		return NULL;
	exports = vg_real_exports(&loader, library);
	symbol = exports ? vg_loader_find_export(exports, vg_real_name(index), hash) : NULL;
	if (!symbol)
		symbol = loader.symbol(library, vg_real_name(index));
	if (!symbol)
		return NULL;
	memcpy(&function, &symbol, sizeof function);
	atomic_store_explicit(&vg_real_functions[index], function, memory_order_release);
	return function;
}

vg_function vg_real_lookup(uint32_t index)
{
	vg_function function = atomic_load_explicit(&vg_real_functions[index], memory_order_acquire);

	return function ? function : vg_real_lookup_hashed(index, vg_text_hash(vg_real_name(index)));
}

static int vg_no_library(void)
{
	return VG_NO_LIBRARY;
}

static int vg_no_function(void)
{
	return VG_NO_FUNCTION;
}

vg_function vg_real(uint32_t index)
{
	vg_function function = vg_real_lookup(index);

	if (function)
		return function;
	return vg_real_library() ? vg_no_function : vg_no_library;
}

// vg_spare_resolve returns the function that a spare's stub calls. For a refused spare,
// vg_spare_resolve stores no function, so that each call of the stub resolves the spare again.
static vg_function vg_spare_resolve(uint32_t index)
{
	const struct vg_spare *spare = &vg_spares[index - VG_SYMBOL_COUNT];

	if (spare->treatment == 'r') {
		vg_log(VG_LOG_NAME, "refused %s: it is newer than this nri-vgpu, and may take memory or time of "
				    "the GPU; install a newer nri-vgpu",
		       spare->name);
		return vg_no_function;
	}
	if (spare->treatment == 'c')
		vg_capture_count_unknown();
	return vg_real(index);
}

vg_function vg_real_resolve(uint32_t index)
{
	return index < VG_SYMBOL_COUNT ? vg_real(index) : vg_spare_resolve(index);
}
