// SPDX-License-Identifier: Apache-2.0
/* This file implements each thread's stack of contexts. */
#include "sim.h"

#define STACK_DEPTH 64

static __thread struct {
	struct sim_context *entries[STACK_DEPTH];
	int depth;
} stack;

static struct sim_context *top(void)
{
	return stack.depth ? stack.entries[stack.depth - 1] : NULL;
}

void sim_push(struct sim_context *context)
{
	if (stack.depth < STACK_DEPTH)
		stack.entries[stack.depth++] = context;
}

void sim_pop(const struct sim_context *context)
{
	if (top() == context)
		stack.depth--;
}

bool sim_is_alive(const struct sim_context *context)
{
	return __atomic_load_n(&context->alive, __ATOMIC_ACQUIRE);
}

CUresult sim_current(struct sim_context **context)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	*context = top();
	if (!*context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!sim_is_alive(*context))
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return sim_broken((*context)->device);
}

/*
 * is_known reports whether the context exists. The list contains every context, because the
 * simulator never frees contexts.
 */
static bool is_known(const struct sim_context *context)
{
	struct sim_context *c;

	sim_lock();
	for (c = sim.contexts; c && c != context; c = c->next)
		;
	sim_unlock();
	return c != NULL;
}

CUresult sim_context_of(CUcontext handle, struct sim_context **context)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!handle)
		return sim_current(context);
	if (!is_known(handle))
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = handle;
	return sim_is_alive(handle) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult push(CUcontext handle)
{
	struct sim_context *context;
	CUresult err = handle ? sim_context_of(handle, &context) : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		sim_push(context);
	return err;
}

CU_API CUresult cuCtxPushCurrent(CUcontext context)
{
	return push(context);
}

CU_API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	return push(context);
}

static CUresult pop(CUcontext *out)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!top())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (out)
		*out = top();
	stack.depth--;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxPopCurrent(CUcontext *out)
{
	return pop(out);
}

CU_API CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	return pop(out);
}

CU_API CUresult cuCtxGetCurrent(CUcontext *out)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = top();
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxSetCurrent(CUcontext handle)
{
	struct sim_context *context;
	CUresult err = handle ? sim_context_of(handle, &context) : sim_ready();

	if (err)
		return err;
	if (stack.depth)
		stack.depth--;
	if (handle)
		sim_push(context);
	return CUDA_SUCCESS;
}
