// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements the process as a client of the Multi-Process Service. If a control daemon
 * answers in the pipe directory, the process and all other clients share the GPUs side by side. The
 * environment and the daemon set the limits of the process.
 */
#include "mps.h"
#include "sim.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANSWER_MS 10000
#define MIN_SMS 2u /* SMs come in pairs */

static struct {
	int server;        /* the connection */
	uint32_t part_ppm; /* of the SMs; 0 without a server */
	struct gs_mps_welcome welcome;
} mps;

static CUresult greet(int fd, struct gs_mps_welcome *welcome)
{
	const struct gs_mps_hello hello = {.magic = GS_MPS_MAGIC};
	struct pollfd answer = {.fd = fd, .events = POLLIN};

	if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello) ||
	    poll(&answer, 1, ANSWER_MS) != 1 ||
	    recv(fd, welcome, sizeof(*welcome), 0) != sizeof(*welcome) ||
	    welcome->magic != GS_MPS_MAGIC)
		return CUDA_ERROR_MPS_CONNECTION_FAILED;
	return (CUresult)welcome->error;
}

/* own_part returns the process's part. The environment can only narrow the daemon's settings. */
static uint32_t own_part(uint32_t server)
{
	const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
	uint32_t own = text ? gs_mps_part(text) : 0;

	return own && own < server ? own : server;
}

CUresult sim_mps_join(void)
{
	const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
	CUresult err;
	int fd = gs_mps_connect(dir && *dir ? dir : GS_MPS_DEFAULT_PIPES, GS_MPS_CONTROL);

	if (fd == -ENOENT || fd == -ENOTDIR)
		return CUDA_SUCCESS; /* without a daemon, the process uses the whole GPU */
	if (fd < 0)
		return CUDA_ERROR_MPS_CONNECTION_FAILED;
	err = greet(fd, &mps.welcome);
	if (err) {
		close(fd);
		return err;
	}
	mps.server = fd;
	mps.part_ppm = own_part(mps.welcome.part_ppm);
	gs_lock(&sim.handle);
	sim.handle.state->procs[sim.handle.id].mps = GS_MPS_CLIENT;
	sim.handle.state->procs[sim.handle.id].mps_ppm = mps.part_ppm;
	gs_unlock(&sim.handle);
	return CUDA_SUCCESS;
}

/* take_limit reads one "0=1G" of the list. The list ends at the first unreadable entry. */
static bool take_limit(struct gs_proc *me, const char **text)
{
	char *end;
	unsigned long device = strtoul(*text, &end, 10);
	uint64_t bytes = end != *text && *end == '=' ? gs_mps_size(end + 1, text) : 0;
	uint64_t *limit;

	if (!bytes || device >= (unsigned long)sim.device_count)
		return false;
	limit = &me->gpu[sim.devices[device].gpu].limit_bytes;
	if (!*limit || bytes < *limit)
		*limit = bytes;
	return *(*text)++ == ',';
}

void sim_mps_limit(void)
{
	const char *text = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
	struct gs_proc *me = &sim.handle.state->procs[sim.handle.id];

	if (!mps.part_ppm)
		return;
	gs_lock(&sim.handle);
	for (uint32_t g = 0; g < GS_MAX_GPUS; g++)
		me->gpu[g].limit_bytes = mps.welcome.limits[g];
	while (text && *text && take_limit(me, &text))
		;
	gs_unlock(&sim.handle);
}

bool sim_mps_serves(uint32_t gpu)
{
	return !mps.part_ppm || mps.welcome.gpus >> gpu & 1;
}

bool sim_mps_client(void)
{
	return mps.part_ppm != 0;
}

uint32_t sim_mps_sms(const struct gs_gpu *gpu)
{
	uint64_t sms;

	if (!mps.part_ppm)
		return gpu->sm_count;
	sms = (uint64_t)gpu->sm_count * mps.part_ppm / GS_DEMAND_ALL / MIN_SMS * MIN_SMS;
	return sms ? (uint32_t)sms : MIN_SMS;
}

void sim_mps_squeeze(struct gs_work *work)
{
	if (!mps.part_ppm || work->kind != GS_ITEM_COMPUTE || work->demand_ppm <= mps.part_ppm)
		return;
	work->duration_ns = work->duration_ns * work->demand_ppm / mps.part_ppm;
	work->demand_ppm = mps.part_ppm;
}

CUresult sim_mps_alive(void)
{
	char end;

	if (!mps.part_ppm)
		return CUDA_SUCCESS;
	if (recv(mps.server, &end, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN)
		return CUDA_SUCCESS;
	return CUDA_ERROR_MPS_RPC_FAILURE;
}

/* count_clients counts the clients with a context on the GPU. count_clients sets *others if a
 * process that is not a client has a context, and *trapped if a kernel of a client has trapped. The
 * caller holds the lock. */
static unsigned count_clients(uint32_t gpu, bool *others, bool *trapped)
{
	struct gs_proc *proc;
	unsigned clients = 0;
	uint32_t cursor = 0;

	gs_reap(&sim.handle);
	while ((proc = gs_proc_next(&sim.handle, &cursor))) {
		if (gs_slot(&sim.handle, proc) == sim.handle.id || !proc->gpu[gpu].contexts)
			continue;
		clients += proc->mps == GS_MPS_CLIENT;
		*others |= !sim_mps_client() || proc->mps == GS_MPS_NONE;
		*trapped |= proc->mps == GS_MPS_CLIENT && proc->gpu[gpu].trapped;
	}
	return clients;
}

CUresult sim_mps_admit(const struct sim_device *device)
{
	bool others = false, trapped = false;
	unsigned clients = 0, mode;
	CUresult err = sim_mps_alive();

	if (err)
		return err;
	gs_lock(&sim.handle);
	mode = sim_gpu(device)->compute_mode;
	if (mode == 3 || sim_mps_client()) /* the other modes ignore other processes */
		clients = count_clients(device->gpu, &others, &trapped);
	gs_unlock(&sim.handle);
	if (mode == 2 || (mode == 3 && others)) /* prohibited; exclusive to a process */
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	if (sim_mps_client() && trapped)
		return CUDA_ERROR_MPS_SERVER_NOT_READY;
	return sim_mps_client() && clients >= GS_MPS_CLIENTS ? CUDA_ERROR_MPS_MAX_CLIENTS_REACHED :
								CUDA_SUCCESS;
}
