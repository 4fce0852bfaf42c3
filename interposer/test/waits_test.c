// SPDX-License-Identifier: Apache-2.0

// This test checks that a program that waits for the GPU queries the agent before the wait, while
// the GPU works. A query after the wait would delay the program.

#include <string.h>

#include "check.h"
#include "fixture.h"
#include "memory/correction.h"
#include "pages/held.h"
#include "process.h"
#include "stand_in.h"

static struct vg_state *state;
static int questions;
static int asked_before; // queries when the driver began to wait

// vg_held_ask replaces the function of pages/held.c.
enum vg_held_result vg_held_ask(const char *path, uint32_t slot, struct vg_held *held)
{
	CHECK(strcmp(path, "socket") == 0);
	(void)slot;
	questions++;
	held->count = 0;
	return VG_HELD_ANSWERED;
}

static CUresult driver_waits(void)
{
	asked_before = questions;
	return CUDA_SUCCESS;
}

static CUresult driver_stream_waits(CUstream stream)
{
	(void)stream;
	return driver_waits();
}

static CUresult driver_context_waits(CUcontext context)
{
	(void)context;
	return driver_waits();
}

static CUresult driver_event_waits(CUevent event)
{
	(void)event;
	return driver_waits();
}

CUresult vg_cuStreamSynchronize(CUstream);
CUresult vg_cuStreamSynchronize_ptsz(CUstream);
CUresult vg_cuCtxSynchronize(void);
CUresult vg_cuCtxSynchronize_v2(CUcontext);
CUresult vg_cuEventSynchronize(CUevent);

// begin creates a process that was charged by estimate, and has not queried the agent yet.
static void begin(void)
{
	const struct vg_limits_device device = test_device(1, 1 << 20);

	memset(vg_state_new(), 0, sizeof *state);
	state = test_process(&device, 1);
	strcpy(state->agent, "socket");
	vg_correction_estimate_made(state, 0, 500);
	questions = 0;
	asked_before = 0;
}

static void expect_question_first(CUresult result)
{
	CHECK_EQUAL(result, CUDA_SUCCESS);
	CHECK_EQUAL(asked_before, 1);
	CHECK_EQUAL(questions, 1);
}

int main(void)
{
	DRIVER(cuStreamSynchronize, driver_stream_waits);
	DRIVER(cuStreamSynchronize_ptsz, driver_stream_waits);
	DRIVER(cuCtxSynchronize, driver_waits);
	DRIVER(cuCtxSynchronize_v2, driver_context_waits);
	DRIVER(cuEventSynchronize, driver_event_waits);
	begin();
	expect_question_first(vg_cuStreamSynchronize(NULL));
	begin();
	expect_question_first(vg_cuStreamSynchronize_ptsz(NULL));
	begin();
	expect_question_first(vg_cuCtxSynchronize());
	begin();
	expect_question_first(vg_cuCtxSynchronize_v2(NULL));
	begin();
	expect_question_first(vg_cuEventSynchronize(NULL));
	return 0;
}
