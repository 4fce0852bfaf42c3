// SPDX-License-Identifier: Apache-2.0
/*
 * This header covers the driver's ABI. The handles point to the simulator's own structures. A
 * library is always a module, and a kernel is always a function.
 */
#ifndef GPUSIM_ABI_H
#define GPUSIM_ABI_H

#define CUctx_st sim_context
#define CUgreenCtx_st sim_green
#define CUstream_st sim_stream
#define CUevent_st sim_event
#define CUmod_st sim_module
#define CUlib_st sim_module
#define CUfunc_st sim_function
#define CUkern_st sim_function
#define CUarray_st sim_array
#define CUmipmappedArray_st sim_array
#define CUmemPoolHandle_st sim_pool
#define CUgraph_st sim_graph
#define CUgraphNode_st sim_node
#define CUgraphExec_st sim_exec
#define CUextMemory_st sim_external
#define CUlinkState_st sim_link

#include "cuda_abi.h"

#endif
