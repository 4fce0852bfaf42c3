// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "loader.h"

#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/now.h"
#include "base/text.h"

// vg_object is a loaded object.
struct vg_object {
	struct vg_exports exports;
	const char *soname;
	bool versioned; // a name may stand for several functions
};

// vg_absolute returns the absolute form of an address of a dynamic section. glibc relocates these
// addresses in place. musl does not relocate these addresses, and the kernel does not relocate the
// addresses in its own object.
static uintptr_t vg_absolute(uintptr_t base, uintptr_t address)
{
	return address < base ? address + base : address;
}

static const ElfW(Dyn) *vg_dynamic(const struct dl_phdr_info *info)
{
	for (size_t i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			return (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	return NULL;
}

static int vg_object_read(struct vg_object *object, uintptr_t base, const ElfW(Dyn) *entry)
{
	struct vg_exports *exports = &object->exports;
	uintptr_t soname = 0;

	memset(object, 0, sizeof *object);
	exports->base = base;
	if (!entry)
		return -1;
	for (; entry->d_tag != DT_NULL; entry++) {
		uintptr_t at = vg_absolute(base, entry->d_un.d_ptr);

		switch (entry->d_tag) {
		case DT_STRTAB: exports->strings = (const char *)at; break;
		case DT_SYMTAB: exports->symbols = (const void *)at; break;
		case DT_GNU_HASH: exports->hash = (const uint32_t *)at; break;
		case DT_SONAME: soname = entry->d_un.d_val; break;
		case DT_VERDEF: object->versioned = true; break;
		default: break;
		}
	}
	if (!exports->strings || !exports->symbols || !exports->hash || !soname)
		return -1;
	object->soname = exports->strings + soname;
	return 0;
}

int vg_loader_object_paths(const struct dl_phdr_info *info, struct vg_object_paths *paths)
{
	const ElfW(Dyn) *entry = vg_dynamic(info);
	const char *strings = NULL;
	uintptr_t rpath = 0;
	uintptr_t runpath = 0;

	for (; entry && entry->d_tag != DT_NULL; entry++) {
		switch (entry->d_tag) {
		case DT_STRTAB: strings = (const char *)vg_absolute(info->dlpi_addr, entry->d_un.d_ptr); break;
		case DT_RPATH: rpath = entry->d_un.d_val; break;
		case DT_RUNPATH: runpath = entry->d_un.d_val; break;
		default: break;
		}
	}
	if (!strings)
		return -1;
	*paths = (struct vg_object_paths){
		.rpath = rpath ? strings + rpath : NULL,
		.runpath = runpath ? strings + runpath : NULL,
	};
	return 0;
}

static const ElfW(Sym) *vg_exports_symbol(const struct vg_exports *exports, const char *name, uint32_t hash)
{
	const uint32_t *table = exports->hash;
	const ElfW(Sym) *symbols = exports->symbols;
	uint32_t buckets = table[0];
	uint32_t first = table[1];
	uint32_t words = table[2];
	const uint32_t *bucket = table + 4 + words * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chain = bucket + buckets;

	if (buckets == 0 || bucket[hash % buckets] < first)
		return NULL;
	for (uint32_t i = bucket[hash % buckets];; i++) {
		const ElfW(Sym) *symbol = &symbols[i];

		if ((chain[i - first] | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
		    strcmp(exports->strings + symbol->st_name, name) == 0)
			return symbol;
		if (chain[i - first] & 1)
			return NULL;
	}
}

static void *vg_object_symbol(const struct vg_object *object, const char *name)
{
	const ElfW(Sym) *symbol = vg_exports_symbol(&object->exports, name, vg_text_hash(name));

	return symbol ? (void *)(object->exports.base + symbol->st_value) : NULL;
}

int vg_loader_read_exports(struct vg_exports *exports, const struct vg_loader *loader, void *handle)
{
	const struct link_map *map = NULL;
	struct vg_object object;

	if (!loader->info || loader->info(handle, RTLD_DI_LINKMAP, &map) || !map ||
	    vg_object_read(&object, map->l_addr, map->l_ld) || object.versioned)
		return -1;
	*exports = object.exports;
	return 0;
}

void *vg_loader_find_export(const struct vg_exports *exports, const char *name, uint32_t hash)
{
	const ElfW(Sym) *symbol = vg_exports_symbol(exports, name, hash);

	if (!symbol || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
		return NULL;
	return (void *)(exports->base + symbol->st_value);
}

// The names are in order of preference. The public functions are in the C library or in libdl.so.2.
// The other functions are internal to glibc before 2.34, and do not need libdl.so.2.
static const char *const vg_open_names[] = {"dlopen", "__libc_dlopen_mode"};
static const char *const vg_symbol_names[] = {"dlsym", "__libc_dlsym"};

struct vg_loader_search {
	void *open[2];
	void *symbol[2];
	void *info;
	void *clock;
	bool kept; // all functions found belong to the C library, which is never unloaded
};

// vg_is_of reports whether the object exports the function `found` by this name.
static bool vg_is_of(const struct vg_object *object, const char *name, const void *found)
{
	return found && vg_object_symbol(object, name) == found;
}

static int vg_search_object(struct dl_phdr_info *info, size_t size, void *context)
{
	struct vg_loader_search *search = context;
	struct vg_object object;
	bool is_libc;

	(void)size;
	if (vg_object_read(&object, info->dlpi_addr, vg_dynamic(info)))
		return 0;
	is_libc = strcmp(object.soname, "libc.so.6") == 0;
	if (!is_libc && strcmp(object.soname, "libdl.so.2") != 0)
		return 0;
	for (size_t i = 0; i < 2; i++) {
		if (!search->open[i])
			search->open[i] = vg_object_symbol(&object, vg_open_names[i]);
		if (!search->symbol[i])
			search->symbol[i] = vg_object_symbol(&object, vg_symbol_names[i]);
	}
	if (!search->info)
		search->info = vg_object_symbol(&object, "dlinfo");
	if (is_libc && !search->clock)
		search->clock = vg_loader_find_export(&object.exports, "clock_gettime", vg_text_hash("clock_gettime"));
	if (is_libc)
		search->kept = vg_is_of(&object, "dlopen", search->open[0]) &&
			       vg_is_of(&object, "dlsym", search->symbol[0]);
	return 0;
}

int vg_loader_get(struct vg_loader *loader)
{
	// vg_loader_get keeps the result if the C library has both functions, as in musl and in
	// glibc since 2.34. The C library is never unloaded, but libdl.so.2 can be. Two threads
	// find the same functions.
	static _Atomic(void *) kept_open;
	static _Atomic(void *) kept_symbol;
	static _Atomic(void *) kept_info;
	void *open = atomic_load(&kept_open);
	void *symbol = atomic_load(&kept_symbol);
	void *info = atomic_load(&kept_info);

	if (!open || !symbol) {
		struct vg_loader_search search = {0};

		dl_iterate_phdr(vg_search_object, &search);
		open = search.open[0] ? search.open[0] : search.open[1];
		symbol = search.symbol[0] ? search.symbol[0] : search.symbol[1];
		info = search.info;
		vg_now_set_clock(search.clock);
		if (search.kept) {
			atomic_store(&kept_info, info);
			atomic_store(&kept_open, open);
			atomic_store(&kept_symbol, symbol);
		}
	}
	if (!open || !symbol)
		return -1;
	memcpy(&loader->open, &open, sizeof open);
	memcpy(&loader->symbol, &symbol, sizeof symbol);
	memcpy(&loader->info, &info, sizeof info);
	return 0;
}

struct vg_self_search {
	uintptr_t address;
	char *path;
	size_t size;
};

static int vg_search_self(struct dl_phdr_info *info, size_t size, void *context)
{
	struct vg_self_search *search = context;

	(void)size;
	for (size_t i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type != PT_LOAD || search->address < start ||
		    search->address - start >= segment->p_memsz)
			continue;
		snprintf(search->path, search->size, "%s", info->dlpi_name);
		return 1;
	}
	return 0;
}

void vg_loader_self_path(char *path, unsigned long size)
{
	struct vg_self_search search = {(uintptr_t)vg_search_self, path, size};

	path[0] = '\0';
	dl_iterate_phdr(vg_search_self, &search);
}
