// SPDX-License-Identifier: Apache-2.0
/*
 * This test covers the Multi-Process Service, through the daemon's own program. The test
 * covers the program's commands, clients side by side, their limits, and the effects of the
 * daemon's end.
 */
#include "harness.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONTEXT (16 * MIB)
#define SERVER (32 * MIB)
#define FULL 4224 /* blocks of a kernel that fills the GPU */
#define CLIENTS 48

static char work[64];
static pid_t tester;

static int shell(const char *command, char *answer, size_t room)
{
	FILE *pipe = popen(command, "re");
	size_t size = 0;
	int status;

	CHECK(pipe);
	if (answer) {
		size = fread(answer, 1, room - 1, pipe);
		answer[size] = '\0';
	}
	status = pclose(pipe);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* control sends the daemon a command, as a user would. */
static int control(const char *command, char *answer, size_t room)
{
	char line[256];

	(void)snprintf(line, sizeof(line), "echo '%s' | \"$GPUSIM_MPS\" 2>/dev/null", command);
	return shell(line, answer, room);
}

static void expect(const char *command, const char *want)
{
	char answer[4096];

	CHECK(control(command, answer, sizeof(answer)) == 0);
	if (strcmp(answer, want) != 0)
		fprintf(stderr, "%s: \"%s\", not \"%s\"\n", command, answer, want);
	CHECK(strcmp(answer, want) == 0);
}

static void start_daemon(void)
{
	CHECK(shell("\"$GPUSIM_MPS\" -d", NULL, 0) == 0);
}

static void quit_daemon(void)
{
	CHECK(control("quit -t 0", NULL, 0) == 0);
}

/* daemon_pid returns the pid in the daemon's pid file. */
static pid_t daemon_pid(void)
{
	char path[128], text[16] = "";
	FILE *file;

	(void)snprintf(path, sizeof(path), "%s/pipe/nvidia-cuda-mps-control.pid", work);
	file = fopen(path, "re");
	CHECK(file && fgets(text, sizeof(text), file));
	fclose(file);
	return (pid_t)atoi(text);
}

/* setup makes a machine with small contexts, and the daemon's directories. */
static void setup(void)
{
	char text[512];

	(void)snprintf(work, sizeof(work), "/tmp/mps-test-%d", (int)getpid());
	(void)snprintf(text, sizeof(text),
		       "mkdir %s && echo 'context = 16MiB' >%s/c && "
		       "\"$GPUSIM_TOOL\" create --config %s/c --gpus 2 --memory 4GiB %s/dev",
		       work, work, work, work);
	CHECK(shell(text, NULL, 0) == 0);
	(void)snprintf(text, sizeof(text), "%s/dev/state", work);
	setenv("GPUSIM_STATE", text, 1);
	(void)snprintf(text, sizeof(text), "%s/pipe", work);
	setenv("CUDA_MPS_PIPE_DIRECTORY", text, 1);
	(void)snprintf(text, sizeof(text), "%s/log", work);
	setenv("CUDA_MPS_LOG_DIRECTORY", text, 1);
}

/* teardown cleans up when the test ends in any way. Children of the test skip the cleanup. */
static void teardown(void)
{
	char text[160];

	if (getpid() != tester)
		return;
	(void)control("quit -t 0", NULL, 0);
	(void)snprintf(text, sizeof(text), "rm -r %s", work);
	(void)shell(text, NULL, 0);
}

/* ---- commands ---- */

static void the_daemon_answers(void)
{
	char servers[32], status[64];

	CHECK(control("get_server_list", NULL, 0) == 1);
	start_daemon();
	CHECK(shell("\"$GPUSIM_MPS\" -d 2>/dev/null", NULL, 0) == 1);
	expect("get_server_list", "");
	expect("get_default_active_thread_percentage", "100.0\n");
	expect("set_default_active_thread_percentage 40", "40.0\n");
	expect("get_default_active_thread_percentage", "40.0\n");
	expect("set_default_active_thread_percentage 101",
	       "Active thread percentage must be above 0 and at most 100\n");
	expect("set_default_device_pinned_mem_limit 0 2G", "2048M\n");
	expect("get_default_device_pinned_mem_limit 0", "2048M\n");
	expect("nonsense", "Unrecognized command: nonsense\n");
	expect("start_server -uid 0", "");
	CHECK(control("get_server_list", servers, sizeof(servers)) == 0 && atoi(servers) > 0);
	(void)snprintf(status, sizeof(status), "get_server_status %d", atoi(servers));
	expect(status, "ACTIVE\n");
	(void)snprintf(status, sizeof(status), "get_client_list %d", atoi(servers));
	CHECK(used(0) == SERVER);
	quit_daemon();
	CHECK(control("get_server_list", NULL, 0) == 1);
	CHECK(used(0) == 0);
}

/* ---- side by side ---- */

struct share {
	const char *percent;
	int *there; /* number of processes ready to begin */
	uint64_t took_ns;
};

/* saturate launches 40 kernels of 1 ms that fill the GPU. */
static void saturate(void *argument)
{
	DRIVER(cuCtxSynchronize, void);
	struct share *share = argument;
	uint64_t began;

	setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", share->percent, 1);
	begin();
	spin(NULL, 1, 1);
	OK(cuCtxSynchronize());
	__atomic_add_fetch(share->there, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(share->there, __ATOMIC_SEQ_CST) < 2)
		sleep_ns(MS / 10);
	began = gs_now();
	for (int i = 0; i < 40; i++)
		spin(NULL, MS, FULL);
	OK(cuCtxSynchronize());
	share->took_ns = gs_now() - began;
}

static struct share *shares(int count)
{
	struct share *all = mmap(NULL, (size_t)count * sizeof(*all), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(all != MAP_FAILED);
	return all;
}

/* saturate_both runs two clients with these parts, which begin together. */
static struct share *saturate_both(const char *one, const char *two)
{
	struct share *both = shares(3);
	pid_t a, b;

	start_daemon();
	both[0] = (struct share){.percent = one, .there = (int *)(void *)&both[2]};
	both[1] = (struct share){.percent = two, .there = (int *)(void *)&both[2]};
	a = start(saturate, &both[0]);
	b = start(saturate, &both[1]);
	finish(a);
	finish(b);
	quit_daemon();
	return both;
}

static void parts_of_the_gpu_work_at_one_time(void)
{
	const struct share *both = saturate_both("20", "50");

	BETWEEN(both[0].took_ns / MS, 198, 250);
	BETWEEN(both[1].took_ns / MS, 79, 120);
}

static void whole_parts_take_turns(void)
{
	const struct share *both = saturate_both("100", "100");

	BETWEEN(both[0].took_ns / MS, 70, 120);
	BETWEEN(both[1].took_ns / MS, 70, 120);
}

/* ---- limits ---- */

static void hold_to_64_mib(void *unused)
{
	DRIVER(cuDeviceGetAttribute, int *, int, CUdevice);
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	CUdeviceptr address;
	int sms;

	(void)unused;
	setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25", 1);
	setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=64M,1=32M", 1);
	begin();
	OK(cuDeviceGetAttribute(&sms, 16, 0));
	CHECK(sms == 32);
	OK(cuMemAlloc_v2(&address, 48 * MIB));
	CHECK(cuMemAlloc_v2(&address, MIB) == CUDA_ERROR_OUT_OF_MEMORY);
}

static void the_environment_limits_a_client(void)
{
	start_daemon();
	finish(start(hold_to_64_mib, NULL));
	quit_daemon();
}

static void sees_a_tenth(void *unused)
{
	DRIVER(cuDeviceGetAttribute, int *, int, CUdevice);
	int sms;

	(void)unused;
	setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "90", 1);
	begin();
	OK(cuDeviceGetAttribute(&sms, 16, 0));
	CHECK(sms == 12);
}

static void the_environment_only_narrows(void)
{
	start_daemon();
	expect("set_default_active_thread_percentage 10", "10.0\n");
	finish(start(sees_a_tenth, NULL));
	quit_daemon();
}

/* ---- number of clients ---- */

/* stay makes a context, reports the context, and waits until the test kills the process. */
static void stay(void *argument)
{
	int *there = argument;

	begin();
	__atomic_add_fetch(there, 1, __ATOMIC_SEQ_CST);
	sleep_ns(60000 * MS);
}

static void is_one_too_many(void *unused)
{
	DRIVER(cuInit, unsigned);
	DRIVER(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
	CUcontext context;

	(void)unused;
	OK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
	OK(cuDevicePrimaryCtxRetain(&context, 1));
}

static void a_gpu_serves_48_clients(void)
{
	int *there = (int *)(void *)shares(1);
	pid_t clients[CLIENTS];
	char answer[4096], command[64];
	int lines = 0;

	start_daemon();
	for (int i = 0; i < CLIENTS; i++)
		clients[i] = start(stay, there);
	for (int i = 0; i < 1000 && __atomic_load_n(there, __ATOMIC_SEQ_CST) < CLIENTS; i++)
		sleep_ns(10 * MS);
	finish(start(is_one_too_many, NULL));
	CHECK(control("get_server_list", answer, sizeof(answer)) == 0);
	(void)snprintf(command, sizeof(command), "get_client_list %d", atoi(answer));
	CHECK(control(command, answer, sizeof(answer)) == 0);
	for (const char *c = answer; *c; c++)
		lines += *c == '\n';
	CHECK(lines == CLIENTS);
	for (int i = 0; i < CLIENTS; i++)
		kill_hard(clients[i]);
	finish(start(hold_to_64_mib, NULL));
	quit_daemon();
}

/* ---- an exception ends the work of all clients of a GPU ---- */

enum { LAUNCH_FAILED = 719, WORKS = 1, IS_STRUCK, MAY_END };

static void wait_for(int *phase, int value)
{
	for (int i = 0; i < 1000 && __atomic_load_n(phase, __ATOMIC_SEQ_CST) < value; i++)
		sleep_ns(10 * MS);
}

/* is_struck works until a launch fails with another client's error. */
static void is_struck(void *argument)
{
	int *phase = argument;
	CUresult result = CUDA_SUCCESS;
	CUfunction function;

	begin();
	function = kernel("spin");
	__atomic_store_n(phase, WORKS, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 10000 && !result; i++) {
		result = launch_for(function, NULL, MS, 1);
		sleep_ns(MS);
	}
	CHECK(result == LAUNCH_FAILED);
	__atomic_store_n(phase, IS_STRUCK, __ATOMIC_SEQ_CST);
	wait_for(phase, MAY_END);
}

static void traps(void *unused)
{
	DRIVER(cuCtxSynchronize, void);

	(void)unused;
	begin();
	OK(launch_for(kernel("trap"), NULL, MS, 1));
	CHECK(cuCtxSynchronize() == LAUNCH_FAILED);
}

static void is_not_served(void *unused)
{
	DRIVER(cuInit, unsigned);
	DRIVER(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
	CUcontext context;

	(void)unused;
	OK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_MPS_SERVER_NOT_READY);
}

static void an_exception_strikes_all_clients(void)
{
	int *phase = (int *)(void *)shares(1);
	pid_t other;

	start_daemon();
	other = start(is_struck, phase);
	wait_for(phase, WORKS);
	finish(start(traps, NULL));
	wait_for(phase, IS_STRUCK);
	finish(start(is_not_served, NULL));
	__atomic_store_n(phase, MAY_END, __ATOMIC_SEQ_CST);
	finish(other);
	finish(start(hold_to_64_mib, NULL));
	quit_daemon();
}

/* ---- the end of the daemon ---- */

/* work_to_the_end works until a call fails. The error must be the error for an ended server. */
static void work_to_the_end(void *argument)
{
	DRIVER(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
	       unsigned, CUstream, void **, void **);
	int *there = argument;
	uint64_t ns = MS;
	void *params[] = {&ns};
	CUfunction function;
	CUresult result = CUDA_SUCCESS;

	begin();
	function = kernel("spin");
	__atomic_add_fetch(there, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 10000 && !result; i++) {
		result = cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL);
		sleep_ns(MS);
	}
	CHECK(result == CUDA_ERROR_MPS_RPC_FAILURE);
}

static void finds_nobody(void *unused)
{
	DRIVER(cuInit, unsigned);

	(void)unused;
	CHECK(cuInit(0) == CUDA_ERROR_MPS_CONNECTION_FAILED);
}

static void the_end_of_the_daemon_is_that_of_its_clients(void)
{
	int *there = (int *)(void *)shares(1);
	pid_t client, master;

	start_daemon();
	client = start(work_to_the_end, there);
	for (int i = 0; i < 1000 && !__atomic_load_n(there, __ATOMIC_SEQ_CST); i++)
		sleep_ns(10 * MS);
	master = daemon_pid();
	CHECK(kill(master, SIGKILL) == 0);
	finish(client);
	finish(start(finds_nobody, NULL));
	start_daemon();
	CHECK(daemon_pid() != master);
	finish(start(hold_to_64_mib, NULL));
	quit_daemon();
	CHECK(used(0) == 0);
}

/* ---- the compute mode ---- */

static void is_kept_out(void *unused)
{
	DRIVER(cuInit, unsigned);
	DRIVER(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice);
	CUcontext context;

	(void)unused;
	setenv("CUDA_MPS_PIPE_DIRECTORY", "/nowhere", 1);
	OK(cuInit(0));
	CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_DEVICE_UNAVAILABLE);
}

static void an_exclusive_gpu_is_the_servers(void)
{
	start_daemon();
	expect("start_server -uid 0", "");
	gs_lock(observer());
	observer()->state->gpus[0].compute_mode = 3;
	gs_unlock(observer());
	finish(start(is_kept_out, NULL));
	finish(start(hold_to_64_mib, NULL));
	gs_lock(observer());
	observer()->state->gpus[0].compute_mode = 0;
	gs_unlock(observer());
	quit_daemon();
}

int main(void)
{
	tester = getpid();
	setup();
	CHECK(atexit(teardown) == 0);
	the_daemon_answers();
	parts_of_the_gpu_work_at_one_time();
	whole_parts_take_turns();
	the_environment_limits_a_client();
	the_environment_only_narrows();
	a_gpu_serves_48_clients();
	an_exception_strikes_all_clients();
	the_end_of_the_daemon_is_that_of_its_clients();
	an_exclusive_gpu_is_the_servers();
	return 0;
}
