// SPDX-License-Identifier: Apache-2.0

// The meter makes as many events as its streams can have under way, however long a
// program runs and between whatever contexts it changes. The driver here counts
// events.

#include "meter.h"

#include "check.h"
#include "real.h"

enum { contexts = 2, streams_of_each = 2, turns = 1000 };

static const uint64_t work_ns = 1200000;

static int events; // that there are

static CUresult driver_create(CUevent *event, unsigned flags)
{
	static uintptr_t last;

	CHECK_EQUAL(flags, 0);
	*event = (CUevent)(last += 16);
	events++;
	return CUDA_SUCCESS;
}

static CUresult driver_destroy(CUevent event)
{
	CHECK(event);
	events--;
	return CUDA_SUCCESS;
}

static CUresult driver_record(CUevent event, CUstream stream)
{
	CHECK(event && stream);
	return CUDA_SUCCESS;
}

static CUresult driver_query(CUevent event)
{
	CHECK(event);
	return CUDA_SUCCESS;
}

static CUresult driver_elapsed(float *ms, CUevent from, CUevent to)
{
	CHECK(from && to);
	*ms = 1.2f;
	return CUDA_SUCCESS;
}

static CUresult driver_mode(int *mode)
{
	CHECK(mode);
	return CUDA_SUCCESS;
}

#define DRIVER(name, function) vg_real_functions[VG_SYM_##name] = (vg_function)(void (*)(void))(function)

static void install(void)
{
	DRIVER(cuEventCreate, driver_create);
	DRIVER(cuEventDestroy_v2, driver_destroy);
	DRIVER(cuEventRecord, driver_record);
	DRIVER(cuEventQuery, driver_query);
	DRIVER(cuEventElapsedTime, driver_elapsed);
	DRIVER(cuThreadExchangeStreamCaptureMode, driver_mode);
}

static void launch(struct vg_meter *meter, CUstream handle, uint64_t context, uint64_t now)
{
	struct vg_class *class = vg_class_of(&meter->estimates, 1, work_ns);
	struct vg_stream *stream = vg_meter_stream(meter, handle, context, 0);

	CHECK(stream);
	class->measured = true;
	if (vg_meter_before(meter, stream, class, (int64_t)class->ns, now, false))
		vg_meter_after(meter, stream, false, false);
}

static void test_contexts_in_turn(void)
{
	static struct vg_meter meter;
	uint64_t now = UINT64_C(1) << 40;

	for (int turn = 0; turn < turns; turn++) {
		uint64_t context = (uint64_t)(turn % contexts) + 1;

		for (uint64_t s = 0; s < streams_of_each; s++)
			launch(&meter, (CUstream)(uintptr_t)(context << 8 | (s + 1) << 4), context, now);
		now += work_ns;
		vg_meter_harvest(&meter, now);
	}
	CHECK(meter.base);
	CHECK(events > 0 && events <= contexts * streams_of_each * 2 * vg_ring + 2);
	for (uint64_t context = 1; context <= contexts; context++)
		for (uint64_t s = 0; s < streams_of_each; s++)
			vg_meter_drop_stream(&meter, (CUstream)(uintptr_t)(context << 8 | (s + 1) << 4));
	CHECK(events <= 2); // those that times are told from
}

int main(void)
{
	install();
	test_contexts_in_turn();
	return 0;
}
