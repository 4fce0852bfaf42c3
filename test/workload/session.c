// SPDX-License-Identifier: Apache-2.0

#include "session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "json.h"
#include "spin_ptx.h"

int wl_session_check(struct wl_session *session, const char *call,
		     CUresult result)
{
	if (result == CUDA_SUCCESS)
		return 0;
	session->result = result;
	session->call = call;
	return -1;
}

static int wl_lookup_parse(struct wl_session *session, const char *text,
			   enum wl_lookup *lookup)
{
	if (strcmp(text, "getproc") == 0) {
		*lookup = WL_LOOKUP_GETPROC;
		return 0;
	}
	if (strcmp(text, "dlsym") == 0) {
		*lookup = WL_LOOKUP_DLSYM;
		return 0;
	}
	snprintf(session->message, sizeof session->message,
		 "--lookup must be getproc or dlsym, not \"%s\"", text);
	return -1;
}

int wl_session_load(struct wl_session *session, const struct wl_common *common)
{
	enum wl_lookup lookup;

	memset(session, 0, sizeof *session);
	if (wl_lookup_parse(session, common->lookup, &lookup))
		return -1;
	return wl_driver_open(&session->driver, common->library, lookup,
			      session->message, sizeof session->message);
}

int wl_session_device(struct wl_session *session,
		      const struct wl_common *common)
{
	const struct wl_driver *driver = &session->driver;
	CUuuid uuid;

	if (wl_session_load(session, common))
		return -1;
	if (wl_session_check(session, "cuInit", WL_CALL(driver, init, 0)))
		return -1;
	wl_driver_forget_later(&session->driver);
	if (wl_session_check(session, "cuDeviceGet",
			     WL_CALL(driver, device_get, &session->device,
				     (int)common->device)) ||
	    wl_session_check(session, "cuDeviceGetUuid",
			     WL_CALL(driver, device_uuid, &uuid,
				     session->device)) ||
	    wl_session_check(session, "cuDeviceTotalMem",
			     WL_CALL(driver, device_total, &session->total,
				     session->device)))
		return -1;
	wl_uuid_text(&uuid, session->uuid);
	return 0;
}

int wl_session_open(struct wl_session *session, const struct wl_common *common)
{
	const struct wl_driver *driver = &session->driver;

	if (wl_session_device(session, common))
		return -1;
	if (wl_session_check(session, "cuDevicePrimaryCtxRetain",
			     WL_CALL(driver, primary_retain, &session->context,
				     session->device)))
		return -1;
	return wl_session_check(session, "cuCtxSetCurrent",
				WL_CALL(driver, ctx_set_current,
					session->context));
}

static int wl_session_function(struct wl_session *session, CUmodule module, const char *name,
			       CUfunction *function)
{
	return wl_session_check(session, "cuModuleGetFunction",
				WL_CALL(&session->driver, module_function, function, module, name));
}

int wl_session_load_spin(struct wl_session *session)
{
	const struct wl_driver *driver = &session->driver;
	CUmodule module;

	if (wl_session_check(session, "cuModuleLoadData",
			     WL_CALL(driver, module_load, &module,
				     wl_spin_ptx)))
		return -1;
	return wl_session_function(session, module, "spin", &session->spin) ||
			       wl_session_function(session, module, "exchange", &session->exchange) ||
			       wl_session_function(session, module, "trap", &session->trap) ?
		       -1 :
		       0;
}

void wl_session_report(const struct wl_session *session)
{
	if (session->message[0]) {
		wl_json_string("message", session->message);
		return;
	}
	wl_json_string("error", wl_error_name(&session->driver,
					      session->result));
	wl_json_integer("error_code", session->result);
	if (session->call)
		wl_json_string("call", session->call);
}

int wl_session_fail(const struct wl_session *session, const char *program)
{
	wl_json_open(NULL);
	wl_json_integer("pid", getpid());
	wl_session_report(session);
	wl_json_close();
	if (session->message[0])
		fprintf(stderr, "%s: %s\n", program, session->message);
	else
		fprintf(stderr, "%s: %s: %s (%d)\n", program,
			session->call ? session->call : "driver",
			wl_error_name(&session->driver, session->result),
			session->result);
	return EXIT_FAILURE;
}

double wl_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

void wl_sleep_until(double when)
{
	struct timespec until = {
		.tv_sec = (time_t)when,
		.tv_nsec = (long)((when - (double)(time_t)when) * 1e9),
	};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) ==
	       EINTR)
		continue;
}
