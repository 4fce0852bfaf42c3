// SPDX-License-Identifier: Apache-2.0

// This header covers first uses of code.
//
// A driver may load a module's code when the program first uses a function of the module. The
// interposer charged the module an upper estimate when the program loaded the module. After a
// measurement without the code, the interposer may have credited the estimate. Other memory may
// have taken the room. Before a first use, the interposer charges the credit again. If the limit
// has no room, the use fails with the error that the driver returns if the GPU has no room.

#ifndef VG_USE_H
#define VG_USE_H

#include "claim.h"
#include "driver/handle.h"

// vg_owner is the module or library that was charged for code. If the kind is 0, the owner is not
// known.
struct vg_owner {
	enum vg_kind kind;
	uint64_t key;
};

// vg_first is the first use of a function, or of another name in a module.
struct vg_first {
	uint64_t key;
	struct vg_owner owner;
};

enum { vg_most_firsts = 32 };

// vg_use is a call of the driver that may use code for the first time.
struct vg_use {
	struct vg_state *state; // NULL: nothing to charge or record
	struct vg_claim claim;
	uint32_t count;
	bool more; // the call has more first uses, which are not recorded
	struct vg_first firsts[vg_most_firsts];
};

// vg_use_key returns the key of a handle's use. vg_use_key includes the context only in a process
// that has made several contexts.
static inline uint64_t vg_use_key(const struct vg_state *state, const void *handle)
{
	if (__builtin_expect(atomic_load_explicit(&state->contexts, memory_order_relaxed) < 2, 1))
		return vg_handle_key(handle);
	return vg_handle_key(handle) ^ vg_handle_context() * UINT64_C(0x9e3779b97f4a7c15);
}

static inline _Atomic uint64_t *vg_use_note(struct vg_state *state, uint64_t key)
{
	return &state->uses[key * UINT64_C(0x9e3779b97f4a7c15) >> (64 - vg_uses_bits)];
}

// vg_use_open begins an empty use. vg_use_add adds a handle of the driver, and vg_use_add_name adds
// a name in a module or library. vg_use_add and vg_use_add_name ignore handles and names that were
// used before. vg_use_claim reserves the room that these uses may need, and returns 0 or the error
// for the program. vg_use_close ends the use with the driver's result, and returns that result.
void vg_use_open(struct vg_use *use, struct vg_state *state);
void vg_use_add(struct vg_use *use, const void *handle);
void vg_use_add_name(struct vg_use *use, struct vg_owner owner, const char *name);
CUresult vg_use_claim(struct vg_use *use);
CUresult vg_use_close(struct vg_use *use, CUresult result);

// vg_use_known records that the use of a handle needs no more memory, because the call that
// returned the handle loaded the code. vg_use_belongs records the owner of a handle.
void vg_use_known(struct vg_state *state, const void *handle, struct vg_owner owner);
void vg_use_belongs(struct vg_state *state, const void *handle, struct vg_owner owner);

// vg_uses_unload drops the uses of a module or library before it is unloaded. vg_uses_forget clears
// the cache of uses after a context has ended, so that each use is looked up in the table again.
void vg_uses_unload(struct vg_state *state, const void *owner);
void vg_uses_forget(struct vg_state *state);

// vg_lazy_state returns the state if the driver loads code at first use, and NULL for any other
// driver.
static inline struct vg_state *vg_lazy_state(void)
{
	struct vg_state *state = vg_state_ready();

	return state && atomic_load_explicit(&state->lazy, memory_order_relaxed) ? state : NULL;
}

static inline CUresult vg_use_begin(struct vg_use *use, const void *handle)
{
	struct vg_state *state = vg_lazy_state();
	uint64_t key;

	use->state = NULL;
	if (!state)
		return CUDA_SUCCESS;
	key = vg_use_key(state, handle);
	if (__builtin_expect(atomic_load_explicit(vg_use_note(state, key), memory_order_relaxed) == key, 1))
		return CUDA_SUCCESS;
	vg_use_open(use, state);
	vg_use_add(use, handle);
	return vg_use_claim(use);
}

static inline CUresult vg_use_end(struct vg_use *use, CUresult result)
{
	return __builtin_expect(use->state != NULL, 0) ? vg_use_close(use, result) : result;
}

// VG_USE makes a call of the driver that may use a function for the first time.
#define VG_USE(handle, call)                                              \
	({                                                                \
		struct vg_use use_;                                       \
		CUresult used_ = vg_use_begin(&use_, handle);             \
                                                                          \
		used_ ? used_ : vg_use_end(&use_, call);                  \
	})

#endif
