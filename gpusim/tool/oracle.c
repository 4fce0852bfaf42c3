// SPDX-License-Identifier: Apache-2.0
/* gpusim oracle prints the actual memory and GPU time, seen from outside. */
#include "tool.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct oracle_options {
	int json, watch;
	double interval; /* seconds between two reads */
	const char *dir;
};

/* process is a copy of all printed data, taken at once under the lock. */
struct process {
	pid_t pid; /* in the oracle's namespace, 0: not visible in that namespace */
	uint64_t nvml_calls;
	struct gs_proc data;
};

struct ended {
	uint64_t nvml_calls;
	struct gs_history data;
};

struct nvml_user {
	pid_t pid;
	bool alive;
	struct gs_nvml_user data;
};

struct snapshot {
	uint64_t time_ns;
	uint32_t gpu_count;
	char names[sizeof(((struct gs_driver *)0)->names)];
	struct gs_gpu gpus[GS_MAX_GPUS];
	uint32_t process_count;
	struct process processes[GS_MAX_PROCS];
	uint32_t finished_count;
	struct ended finished[GS_HISTORY_RING]; /* oldest first */
	uint32_t nvml_count;
	struct nvml_user nvml[GS_NVML_USERS];
};

static void copy_processes(struct gs_handle *handle, struct snapshot *snapshot)
{
	uint64_t namespace = gs_pid_namespace();
	struct gs_proc *proc;
	uint32_t cursor = 0;

	while ((proc = gs_proc_next(handle, &cursor))) {
		struct process *copy = &snapshot->processes[snapshot->process_count];

		if (!gs_proc_alive(handle, gs_slot(handle, proc), &copy->pid))
			continue;
		if (copy->pid > 0 && proc->pid_namespace != namespace)
			proc->seen_pid = copy->pid; /* for the history */
		copy->data = *proc;
		copy->nvml_calls = gs_nvml_calls(handle->state, proc->exec_id, proc->pid_namespace,
						 proc->self_pid);
		snapshot->process_count++;
	}
}

static void copy_finished(const struct gs_state *state, struct snapshot *snapshot)
{
	uint64_t last = state->history_seq;
	uint64_t first = last > GS_HISTORY_RING ? last - GS_HISTORY_RING + 1 : 1;

	for (uint64_t seq = first; seq <= last; seq++) {
		struct ended *copy = &snapshot->finished[snapshot->finished_count++];

		copy->data = state->history[seq % GS_HISTORY_RING];
		copy->nvml_calls = gs_nvml_calls(state, copy->data.exec_id, copy->data.pid_namespace,
						 copy->data.self_pid);
	}
}

static void copy_nvml_users(struct gs_handle *handle, struct snapshot *snapshot)
{
	uint64_t namespace = gs_pid_namespace();

	for (uint32_t i = 0; i < GS_NVML_USERS; i++) {
		struct gs_nvml_user *user = &handle->state->nvml_users[i];
		struct nvml_user *copy = &snapshot->nvml[snapshot->nvml_count];

		if (!user->in_use)
			continue;
		copy->alive = gs_nvml_user_alive(handle, user, &copy->pid);
		if (copy->pid > 0 && user->pid_namespace != namespace)
			user->seen_pid = copy->pid;
		copy->data = *user;
		snapshot->nvml_count++;
	}
}

static void take_snapshot(struct gs_handle *handle, struct snapshot *snapshot)
{
	struct gs_state *state = handle->state;

	memset(snapshot, 0, sizeof(*snapshot));
	gs_lock(handle);
	gs_reap(handle);
	gs_advance(handle, gs_now());
	snapshot->time_ns = state->clock_ns;
	snapshot->gpu_count = state->gpu_count;
	memcpy(snapshot->names, state->driver.names, sizeof(snapshot->names));
	memcpy(snapshot->gpus, state->gpus, sizeof(snapshot->gpus));
	copy_processes(handle, snapshot);
	copy_finished(state, snapshot);
	copy_nvml_users(handle, snapshot);
	gs_unlock(handle);
}

/* ---- JSON ---- */

static void json_gpu(const struct gs_gpu *gpu, uint32_t index)
{
	char uuid[GS_UUID_SIZE];

	gs_uuid_text(gpu, uuid);
	printf("{\"index\":%u,\"uuid\":\"%s\",\"minor\":%u,\"name\":", index, uuid, gpu->minor);
	tool_json_string(gpu->name);
	printf(",\"memory_bytes\":%" PRIu64 ",\"used_bytes\":%" PRIu64
	       ",\"peak_used_bytes\":%" PRIu64 ",\"busy_ns\":%" PRIu64 ",\"lost\":%s}",
	       gpu->memory_bytes, gpu->used_bytes, gpu->peak_used_bytes, gpu->busy_ns,
	       gpu->faults.lost ? "true" : "false");
}

static void json_who(pid_t pid, int self_pid, const char *comm, const char *hostname)
{
	printf("{\"pid\":%d,\"self_pid\":%d,\"comm\":", (int)pid, self_pid);
	tool_json_string(comm);
	printf(",\"hostname\":");
	tool_json_string(hostname);
}

static bool is_used(const struct gs_proc_gpu *use)
{
	return use->peak_bytes > 0 || use->contexts > 0 || use->gpu_time_ns > 0;
}

static void json_process(const struct snapshot *snapshot, const struct process *process)
{
	const char *comma = "";

	json_who(process->pid, process->data.self_pid, process->data.comm,
		 process->data.hostname);
	printf(",\"nvml_calls\":%" PRIu64 ",\"gpus\":[", process->nvml_calls);
	for (uint32_t g = 0; g < snapshot->gpu_count; g++) {
		const struct gs_proc_gpu *use = &process->data.gpu[g];
		char uuid[GS_UUID_SIZE];

		if (!is_used(use))
			continue;
		gs_uuid_text(&snapshot->gpus[g], uuid);
		printf("%s{\"index\":%u,\"uuid\":\"%s\",\"bytes\":%" PRIu64
		       ",\"peak_bytes\":%" PRIu64 ",\"context_bytes\":%" PRIu64
		       ",\"contexts\":%u,\"gpu_time_ns\":%" PRIu64 ",\"launches\":%" PRIu64 "}",
		       comma, g, uuid, use->bytes, use->peak_bytes, use->context_bytes,
		       use->contexts, use->gpu_time_ns, use->launches);
		comma = ",";
	}
	printf("]}");
}

static void json_finished(const struct snapshot *snapshot, const struct ended *ended)
{
	const struct gs_history *past = &ended->data;
	const char *comma = "";

	json_who(past->seen_pid ? past->seen_pid : past->self_pid, past->self_pid, past->comm,
		 past->hostname);
	printf(",\"start_ns\":%" PRIu64 ",\"end_ns\":%" PRIu64 ",\"nvml_calls\":%" PRIu64
	       ",\"gpus\":[", past->start_ns, past->end_ns, ended->nvml_calls);
	for (uint32_t g = 0; g < snapshot->gpu_count; g++) {
		char uuid[GS_UUID_SIZE];

		if (past->gpu[g].peak_bytes == 0 && past->gpu[g].gpu_time_ns == 0)
			continue;
		gs_uuid_text(&snapshot->gpus[g], uuid);
		printf("%s{\"index\":%u,\"uuid\":\"%s\",\"peak_bytes\":%" PRIu64
		       ",\"gpu_time_ns\":%" PRIu64 "}",
		       comma, g, uuid, past->gpu[g].peak_bytes, past->gpu[g].gpu_time_ns);
		comma = ",";
	}
	printf("]}");
}

/* json_nvml_user prints a process that has initialised NVML, with CUDA or without. */
static void json_nvml_user(const struct nvml_user *user)
{
	const struct gs_nvml_user *data = &user->data;
	pid_t seen = data->seen_pid ? data->seen_pid : data->self_pid;

	json_who(user->alive && user->pid ? user->pid : seen, data->self_pid, data->comm,
		 data->hostname);
	printf(",\"start_ns\":%" PRIu64 ",\"calls\":%" PRIu64 ",\"alive\":%s}", data->start_ns,
	       data->calls, user->alive ? "true" : "false");
}

static void print_json(const struct snapshot *snapshot)
{
	printf("{\"time_ns\":%" PRIu64 ",\"names\":", snapshot->time_ns);
	tool_json_string(snapshot->names);
	printf(",\"gpus\":[");
	for (uint32_t g = 0; g < snapshot->gpu_count; g++) {
		printf("%s", g ? "," : "");
		json_gpu(&snapshot->gpus[g], g);
	}
	printf("],\"processes\":[");
	for (uint32_t i = 0; i < snapshot->process_count; i++) {
		printf("%s", i ? "," : "");
		json_process(snapshot, &snapshot->processes[i]);
	}
	printf("],\"finished\":[");
	for (uint32_t i = 0; i < snapshot->finished_count; i++) {
		printf("%s", i ? "," : "");
		json_finished(snapshot, &snapshot->finished[i]);
	}
	printf("],\"nvml\":[");
	for (uint32_t i = 0; i < snapshot->nvml_count; i++) {
		printf("%s", i ? "," : "");
		json_nvml_user(&snapshot->nvml[i]);
	}
	printf("]}\n");
}

/* ---- table ---- */

#define MIB (1024.0 * 1024.0)

static void print_row(const struct process *process, uint32_t gpu)
{
	const struct gs_proc_gpu *use = &process->data.gpu[gpu];

	printf("%8d %-16s %-24.24s %3u %12.1f %12.1f %12.3f\n", (int)process->pid,
	       process->data.comm, process->data.hostname, gpu, (double)use->bytes / MIB,
	       (double)use->peak_bytes / MIB, (double)use->gpu_time_ns / 1e9);
}

static void print_table(const struct snapshot *snapshot)
{
	printf("%3s %-40s %-24s %12s %12s %12s\n", "GPU", "UUID", "NAME", "TOTAL MiB", "USED MiB",
	       "BUSY s");
	for (uint32_t g = 0; g < snapshot->gpu_count; g++) {
		const struct gs_gpu *gpu = &snapshot->gpus[g];
		char uuid[GS_UUID_SIZE];

		gs_uuid_text(gpu, uuid);
		printf("%3u %-40s %-24.24s %12.1f %12.1f %12.3f%s\n", g, uuid, gpu->name,
		       (double)gpu->memory_bytes / MIB, (double)gpu->used_bytes / MIB,
		       (double)gpu->busy_ns / 1e9, gpu->faults.lost ? "  LOST" : "");
	}
	printf("\n%8s %-16s %-24s %3s %12s %12s %12s\n", "PID", "COMMAND", "HOST", "GPU",
	       "HOLDS MiB", "PEAK MiB", "GPU TIME s");
	for (uint32_t i = 0; i < snapshot->process_count; i++)
		for (uint32_t g = 0; g < snapshot->gpu_count; g++)
			if (is_used(&snapshot->processes[i].data.gpu[g]))
				print_row(&snapshot->processes[i], g);
}

/* ---- command ---- */

static bool parse_options(struct oracle_options *options, int argc, char **argv)
{
	const struct option known[] = {
		{"json", no_argument, &options->json, 1},
		{"watch", no_argument, &options->watch, 1},
		{"interval", required_argument, NULL, 'i'},
		{NULL, 0, NULL, 0},
	};
	int option;

	options->interval = 1;
	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		char *end;

		if (option == 0)
			continue;
		if (option != 'i')
			return false;
		options->interval = strtod(optarg, &end);
		if (*end || !(options->interval >= 0.01 && options->interval <= 86400))
			return false;
	}
	if (optind + 1 != argc)
		return false;
	options->dir = argv[optind];
	return true;
}

static void show(const struct oracle_options *options, const struct snapshot *snapshot)
{
	if (options->json) {
		print_json(snapshot);
	} else {
		if (options->watch && isatty(STDOUT_FILENO))
			printf("\033[H\033[2J");
		print_table(snapshot);
	}
	(void)fflush(stdout);
}

int tool_oracle(int argc, char **argv)
{
	struct oracle_options options = {0};
	struct gs_handle handle;
	struct snapshot *snapshot;
	struct timespec pause;

	if (!parse_options(&options, argc, argv)) {
		fprintf(stderr, "usage: gpusim oracle [--json] [--watch] [--interval SECONDS] DIR\n"
				"  --interval is 0.01 to 86400, with --watch\n");
		return 2;
	}
	snapshot = malloc(sizeof(*snapshot));
	if (!snapshot || tool_open(&handle, options.dir)) {
		free(snapshot);
		return 1;
	}
	pause.tv_sec = (time_t)options.interval;
	pause.tv_nsec = (long)((options.interval - (double)pause.tv_sec) * 1e9);
	do {
		take_snapshot(&handle, snapshot);
		show(&options, snapshot);
	} while (options.watch && !ferror(stdout) && nanosleep(&pause, NULL) == 0);
	gs_close(&handle);
	free(snapshot);
	return 0;
}
