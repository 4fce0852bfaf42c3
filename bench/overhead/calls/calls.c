// SPDX-License-Identifier: Apache-2.0

// calls times driver calls, like a program that makes the calls. calls measures the library that
// the loader selects. The caller compares the times of different libraries.
//
// As a server, calls makes a context and waits. For each line "CALL COUNT" on the standard input,
// the server makes COUNT calls and prints the time. Therefore a caller can time two servers with
// different libraries alternately, milliseconds apart. With --once the program times its own start.
// With --storm the program starts many processes at once.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "json.h"
#include "options.h"
#include "session.h"

enum {
	bc_async_bytes = 1 << 20,
	bc_alloc_bytes = 2 << 20,
	bc_most_processes = 1024,
};

// bc_empty_ptx is the empty kernel.
static const char bc_empty_ptx[] =
	".version 7.0\n.target sm_50\n.address_size 64\n"
	".visible .entry empty()\n{\n\tret;\n}\n";

// bc_bench is a session with the objects that calls use.
struct bc_bench {
	struct wl_session session;
	CUfunction empty;
	CUstream stream;
};

static uint64_t bc_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

// Each function makes a call and returns the driver's first error.

static CUresult bc_async(struct bc_bench *bench)
{
	const struct wl_driver *driver = &bench->session.driver;
	CUdeviceptr pointer;
	CUresult result = WL_CALL(driver, mem_alloc_async, &pointer,
				  bc_async_bytes, bench->stream);

	return result ? result : WL_CALL(driver, mem_free_async, pointer,
					 bench->stream);
}

static CUresult bc_alloc(struct bc_bench *bench)
{
	const struct wl_driver *driver = &bench->session.driver;
	CUdeviceptr pointer;
	CUresult result = WL_CALL(driver, mem_alloc, &pointer, bc_alloc_bytes);

	return result ? result : WL_CALL(driver, mem_free, pointer);
}

static CUresult bc_meminfo(struct bc_bench *bench)
{
	size_t available;
	size_t total;

	return WL_CALL(&bench->session.driver, mem_info, &available, &total);
}

static CUresult bc_launch(struct bc_bench *bench)
{
	return WL_CALL(&bench->session.driver, launch, bench->empty, 1, 1, 1, 1,
		       1, 1, 0, bench->stream, NULL, NULL);
}

struct bc_call {
	const char *name;
	CUresult (*call)(struct bc_bench *bench);
	uint64_t apart; // ns to wait before each call, not counted
};

// bc_apart is the time in ns after which the interposer no longer uses a cached answer.
enum { bc_apart = 500000 };

static const struct bc_call bc_calls[] = {
	{"async", bc_async, 0},
	{"alloc", bc_alloc, 0},
	{"meminfo", bc_meminfo, 0},
	{"meminfo-apart", bc_meminfo, bc_apart},
	{"launch", bc_launch, 0},
};

static const struct bc_call *bc_find(const char *name)
{
	for (size_t i = 0; i < sizeof bc_calls / sizeof *bc_calls; i++)
		if (strcmp(bc_calls[i].name, name) == 0)
			return &bc_calls[i];
	return NULL;
}

// These functions make calls and return the time in ns. On error these functions return 0, and the
// session contains the message.

static uint64_t bc_back_to_back(struct bc_bench *bench,
				const struct bc_call *what, unsigned long count)
{
	uint64_t began = bc_now();

	for (unsigned long i = 0; i < count; i++)
		if (wl_session_check(&bench->session, what->name,
				     what->call(bench)))
			return 0;
	return bc_now() - began;
}

// bc_one_by_one does not count the first call. The first call finds the other servers' data in the
// processor's caches, and would determine the mean of so few calls.
static uint64_t bc_one_by_one(struct bc_bench *bench,
			      const struct bc_call *what, unsigned long count)
{
	uint64_t sum = 0;

	for (unsigned long i = 0; i <= count; i++) {
		uint64_t before = bc_now();
		uint64_t began;

		do
			began = bc_now();
		while (began - before < what->apart);
		if (wl_session_check(&bench->session, what->name,
				     what->call(bench)))
			return 0;
		if (i)
			sum += bc_now() - began;
	}
	return sum;
}

// bc_time makes calls, and then waits for the device. The time does not include the wait.
static uint64_t bc_time(struct bc_bench *bench, const char *name,
			unsigned long count)
{
	const struct bc_call *what = bc_find(name);
	uint64_t ns;

	if (!what) {
		snprintf(bench->session.message, sizeof bench->session.message,
			 "unknown call \"%s\"", name);
		return 0;
	}
	ns = what->apart ? bc_one_by_one(bench, what, count)
			 : bc_back_to_back(bench, what, count);
	if (wl_session_check(&bench->session, "cuStreamSynchronize",
			     WL_CALL(&bench->session.driver,
				     stream_synchronize, bench->stream)))
		return 0;
	return ns;
}

static int bc_prepare(struct bc_bench *bench, const struct wl_common *common)
{
	struct wl_session *session = &bench->session;
	const struct wl_driver *driver = &session->driver;
	CUmodule module;

	if (wl_session_open(session, common))
		return -1;
	if (wl_session_check(session, "cuModuleLoadData",
			     WL_CALL(driver, module_load, &module,
				     bc_empty_ptx)) ||
	    wl_session_check(session, "cuModuleGetFunction",
			     WL_CALL(driver, module_function, &bench->empty,
				     module, "empty")))
		return -1;
	return wl_session_check(session, "cuStreamCreate",
				WL_CALL(driver, stream_create, &bench->stream,
					CU_STREAM_NON_BLOCKING));
}

static int bc_serve(const struct wl_common *common, const char *program)
{
	static struct bc_bench bench;
	char line[64];

	if (bc_prepare(&bench, common))
		return wl_session_fail(&bench.session, program);
	while (fgets(line, sizeof line, stdin)) {
		char name[sizeof line];
		unsigned long count;
		uint64_t ns;

		if (sscanf(line, "%63s %lu", name, &count) != 2) {
			fprintf(stderr, "%s: not CALL COUNT: %s", program, line);
			return WL_EXIT_USAGE;
		}
		ns = bc_time(&bench, name, count);
		if (ns == 0)
			return wl_session_fail(&bench.session, program);
		wl_json_open(NULL);
		wl_json_bytes("ns", ns);
		wl_json_close();
	}
	return EXIT_SUCCESS;
}

// bc_once opens the library, looks up all functions, and initialises. bc_once may also make a
// context, whose time is not part of the times.
static int bc_once(const struct wl_common *common, bool context,
		   const char *program)
{
	static struct wl_session session;
	uint64_t began = bc_now();
	uint64_t opened;
	uint64_t ended;
	size_t total = 0;
	CUuuid uuid;

	if (wl_session_load(&session, common))
		return wl_session_fail(&session, program);
	opened = bc_now();
	if (wl_session_check(&session, "cuInit",
			     WL_CALL(&session.driver, init, 0)))
		return wl_session_fail(&session, program);
	ended = bc_now();
	if (wl_session_check(&session, "cuDeviceGetUuid",
			     WL_CALL(&session.driver, device_uuid, &uuid,
				     (CUdevice)common->device)) ||
	    wl_session_check(&session, "cuDeviceTotalMem",
			     WL_CALL(&session.driver, device_total, &total,
				     (CUdevice)common->device)))
		return wl_session_fail(&session, program);
	if (context &&
	    wl_session_check(&session, "cuDevicePrimaryCtxRetain",
			     WL_CALL(&session.driver, primary_retain,
				     &session.context,
				     (CUdevice)common->device)))
		return wl_session_fail(&session, program);
	wl_uuid_text(&uuid, session.uuid);
	wl_json_open(NULL);
	wl_json_bytes("init_ns", ended - opened);
	wl_json_bytes("start_ns", ended - began);
	wl_json_string("uuid", session.uuid);
	wl_json_bytes("total_mem_seen", total);
	wl_json_close();
	return EXIT_SUCCESS;
}

// bc_member waits until the gate closes, and then executes the program to start.
__attribute__((noreturn)) static void bc_member(const int gate[2])
{
	char nothing;
	char *argv[] = {"calls", "--once", "--context", NULL};

	close(gate[1]);
	while (read(gate[0], &nothing, 1) > 0)
		continue;
	close(gate[0]);
	if (!freopen("/dev/null", "w", stdout))
		_exit(EXIT_FAILURE);
	execv("/proc/self/exe", argv);
	_exit(EXIT_FAILURE);
}

// bc_reap waits for all children and returns the number of failed children.
static uint64_t bc_reap(void)
{
	uint64_t failed = 0;
	int status;

	while (wait(&status) > 0)
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			failed++;
	return failed;
}

// bc_cpu returns the processor time of the children that have been waited for.
static uint64_t bc_cpu(void)
{
	struct rusage usage;

	getrusage(RUSAGE_CHILDREN, &usage);
	return (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) *
		       1000000000 +
	       (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) *
		       1000;
}

// bc_storm starts processes at once, each with a context. bc_storm measures the time until the last
// process has ended.
static int bc_storm(uint64_t count, const char *program)
{
	int gate[2];
	uint64_t started = 0;
	uint64_t failed;
	uint64_t began;

	if (count > bc_most_processes || pipe(gate)) {
		fprintf(stderr, "%s: --storm must be 1 to %d\n", program,
			bc_most_processes);
		return WL_EXIT_USAGE;
	}
	while (started < count) {
		pid_t pid = fork();

		if (pid == 0)
			bc_member(gate);
		if (pid < 0)
			break;
		started++;
	}
	close(gate[0]);
	began = bc_now();
	close(gate[1]);
	failed = bc_reap() + count - started;
	wl_json_open(NULL);
	wl_json_bytes("ns", bc_now() - began);
	wl_json_bytes("cpu_ns", bc_cpu());
	wl_json_bytes("processes", count);
	wl_json_bytes("failed", failed);
	wl_json_close();
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct wl_common common = WL_COMMON_DEFAULTS;
	bool once = false;
	bool context = false;
	uint64_t storm = 0;
	const struct wl_option table[] = {
		{"once", WL_OPTION_FLAG, &once,
		 "print the duration of opening the driver and of cuInit, and end"},
		{"context", WL_OPTION_FLAG, &context,
		 "with --once: make a context, too"},
		{"storm", WL_OPTION_COUNT, &storm,
		 "start this many processes at once, with contexts; print the "
		 "time until the last has ended"},
		WL_COMMON_OPTIONS(common),
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};

	wl_options_parse(argc, argv,
			 "Time driver calls. Reads lines of CALL COUNT (calls: "
			 "async, alloc, meminfo, meminfo-apart, launch) and "
			 "prints, for each line, the ns of all calls as one JSON "
			 "line.",
			 table);
	if (storm)
		return bc_storm(storm, argv[0]);
	if (once)
		return bc_once(&common, context, argv[0]);
	return bc_serve(&common, argv[0]);
}
