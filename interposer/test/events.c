// SPDX-License-Identifier: Apache-2.0

#include "events.h"

#include "check.h"
#include "stand_in.h"

int events_count;
bool events_capturing;
_Atomic int events_asked_capture;
_Atomic int events_recorded;

static uint64_t recorded[65536]; // the time of the event's recording, by event
static uint64_t (*time_reached)(void);
static uint64_t (*time_now)(void);

static uint64_t *time_of(CUevent event)
{
	CHECK(event && (uintptr_t)event / 16 < sizeof recorded / sizeof *recorded);
	return &recorded[(uintptr_t)event / 16];
}

static CUresult event_create(CUevent *event, unsigned flags)
{
	static uintptr_t last;

	CHECK_EQUAL(flags, 0);
	*event = (CUevent)(last += 16);
	events_count++;
	return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
	CHECK(event);
	events_count--;
	return CUDA_SUCCESS;
}

static CUresult event_record(CUevent event, CUstream stream)
{
	(void)stream; // the stream may be a default stream
	CHECK(!events_capturing);
	events_recorded++;
	*time_of(event) = time_reached();
	return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
	return *time_of(event) <= time_now() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult event_elapsed(float *ms, CUevent from, CUevent to)
{
	*ms = (float)((double)(int64_t)(*time_of(to) - *time_of(from)) / 1e6);
	return CUDA_SUCCESS;
}

static CUresult exchange_mode(int *mode)
{
	CHECK(mode);
	return CUDA_SUCCESS;
}

static CUresult capture_begin(CUstream stream, int mode)
{
	CHECK(stream && mode == CU_STREAM_CAPTURE_MODE_RELAXED);
	events_capturing = true;
	return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream stream, int *status)
{
	(void)stream;
	events_asked_capture++;
	*status = events_capturing;
	return CUDA_SUCCESS;
}

void events_install(uint64_t (*reached)(void), uint64_t (*now)(void))
{
	time_reached = reached;
	time_now = now;
	DRIVER(cuEventCreate, event_create);
	DRIVER(cuEventDestroy_v2, event_destroy);
	DRIVER(cuEventRecord, event_record);
	DRIVER(cuEventRecord_ptsz, event_record);
	DRIVER(cuEventQuery, event_query);
	DRIVER(cuEventElapsedTime, event_elapsed);
	DRIVER(cuThreadExchangeStreamCaptureMode, exchange_mode);
	DRIVER(cuStreamBeginCapture_v2, capture_begin);
	DRIVER(cuStreamIsCapturing, is_capturing);
}
