// SPDX-License-Identifier: Apache-2.0

// This file measures the GPU's time slices, from a row of short kernels with an event after each
// kernel. Two events are far apart if another process had the GPU between them.

#include "card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

enum {
	wl_in_flight = 300, // kernels, each with an event: a queue has room for 1,024
	wl_far = 5,         // events this many kernels apart have other containers' slices between them
};

static const uint64_t wl_kernel_ns = 20000;

struct wl_row {
	struct wl_session *session;
	CUstream stream;
	CUevent *events;
	double *apart_ms; // time between an event and the previous event
	size_t count;
};

static int wl_row_event(struct wl_row *row, size_t i)
{
	const struct wl_driver *driver = &row->session->driver;
	void *parameters[] = {(void *)(uintptr_t)&wl_kernel_ns};

	if (wl_session_check(row->session, "cuEventCreate",
			     WL_CALL(driver, event_create, &row->events[i], 0)) ||
	    wl_session_check(row->session, "cuLaunchKernel",
			     WL_CALL(driver, launch, row->session->spin, 1, 1, 1, 1, 1, 1, 0,
				     row->stream, parameters, NULL)))
		return -1;
	return wl_session_check(row->session, "cuEventRecord",
				WL_CALL(driver, event_record, row->events[i], row->stream));
}

static int wl_row_wait(struct wl_row *row, size_t i)
{
	return wl_session_check(row->session, "cuEventSynchronize",
				WL_CALL(&row->session->driver, event_synchronize, row->events[i]));
}

static int wl_row_run(struct wl_row *row)
{
	const struct wl_driver *driver = &row->session->driver;

	if (wl_session_check(row->session, "cuStreamCreate",
			     WL_CALL(driver, stream_create, &row->stream, 1)))
		return -1;
	for (size_t i = 0; i < row->count; i++)
		if ((i >= wl_in_flight && wl_row_wait(row, i - wl_in_flight)) ||
		    wl_row_event(row, i))
			return -1;
	if (wl_row_wait(row, row->count - 1))
		return -1;
	for (size_t i = 1; i < row->count; i++) {
		float ms = 0;

		if (wl_session_check(row->session, "cuEventElapsedTime",
				     WL_CALL(driver, event_elapsed, &ms, row->events[i - 1],
					     row->events[i])))
			return -1;
		row->apart_ms[i] = (double)ms;
	}
	return 0;
}

static int wl_by_size(const void *left, const void *right)
{
	double a = *(const double *)left;
	double b = *(const double *)right;

	return (a > b) - (a < b);
}

static double wl_median(double *values, size_t count)
{
	qsort(values, count, sizeof *values, wl_by_size);
	return count ? values[count / 2] : 0;
}

// wl_row_report reports the median of the time between other processes' slices, and the median of
// these slices. This process's time before the first slice and after the last slice is only a part
// of a slice.
static void wl_row_report(const struct wl_row *row, double *ours, double *others)
{
	double kernel_ms = (double)wl_kernel_ns / 1e6;
	double since_ms = 0;
	size_t seen = 0;

	for (size_t i = 1; i < row->count; i++) {
		if (row->apart_ms[i] < wl_far * kernel_ms) {
			since_ms += row->apart_ms[i];
			continue;
		}
		// The interval contains this process's kernel, before or behind the other process's slice.
		others[seen] = row->apart_ms[i] - kernel_ms;
		ours[seen++] = since_ms + kernel_ms;
		since_ms = 0;
	}
	wl_json_bytes("switches", seen);
	wl_json_number("others_ms", wl_median(others, seen));
	wl_json_number("ours_ms", seen > 1 ? wl_median(ours + 1, seen - 1) : 0);
}

int wl_card_slice(struct wl_session *session, uint64_t kernels)
{
	struct wl_row row = {.session = session, .count = kernels};
	double *room = calloc(3 * kernels, sizeof *room);
	int failed = -1;

	row.events = calloc(kernels, sizeof(*row.events));
	row.apart_ms = room;
	if (!room || !row.events)
		snprintf(session->message, sizeof session->message, "out of host memory");
	else
		failed = wl_row_run(&row);
	if (!failed)
		wl_row_report(&row, room + kernels, room + 2 * kernels);
	free((void *)row.events);
	free(room);
	return failed;
}
