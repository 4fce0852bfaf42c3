// SPDX-License-Identifier: Apache-2.0
/* This file records the processes that call NVML, and the number of calls of each process. Tests check that some
 * processes make no call. */
#include "state.h"

#include "identity.h"

#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

bool gs_nvml_user_alive(struct gs_handle *handle, const struct gs_nvml_user *user, pid_t *pid)
{
	const struct gs_identity *identity = &handle->state->identities[user->identity % GS_MAX_IDS];

	if (pid)
		*pid = 0;
	return user->in_use && __atomic_load_n(&identity->in_use, __ATOMIC_ACQUIRE) &&
	       __atomic_load_n(&identity->exec_id, __ATOMIC_RELAXED) == user->exec_id &&
	       __atomic_load_n(&identity->self_pid, __ATOMIC_RELAXED) == user->self_pid &&
	       gs_identity_alive(handle, user->identity % GS_MAX_IDS, pid);
}

/* oldest_ended returns the oldest entry of an ended process. The table has more entries than the
 * maximum number of live processes. */
static struct gs_nvml_user *oldest_ended(struct gs_handle *handle)
{
	struct gs_state *state = handle->state;
	struct gs_nvml_user *user;

	do
		user = &state->nvml_users[state->nvml_user_seq++ % GS_NVML_USERS];
	while (gs_nvml_user_alive(handle, user, NULL));
	return user;
}

struct gs_nvml_user *gs_nvml_user_add(struct gs_handle *handle)
{
	struct gs_nvml_user *user = oldest_ended(handle);

	memset(user, 0, sizeof(*user));
	user->exec_id = handle->exec_id;
	user->pid_namespace = gs_pid_namespace();
	user->self_pid = handle->pid;
	user->start_ns = gs_now();
	user->identity = handle->id;
	(void)prctl(PR_GET_NAME, user->comm);
	if (gethostname(user->hostname, sizeof(user->hostname) - 1) != 0)
		user->hostname[0] = '\0';
	user->in_use = 1;
	return user;
}

uint64_t gs_nvml_calls(const struct gs_state *state, uint64_t exec_id, uint64_t pid_namespace,
		       int32_t self_pid)
{
	uint64_t end = state->nvml_user_seq < GS_NVML_USERS ? state->nvml_user_seq : GS_NVML_USERS;
	uint64_t calls = 0;

	for (uint64_t i = 0; i < end; i++) {
		const struct gs_nvml_user *user = &state->nvml_users[i];

		if (user->in_use && user->exec_id == exec_id && user->self_pid == self_pid &&
		    user->pid_namespace == pid_namespace)
			calls += __atomic_load_n(&user->calls, __ATOMIC_RELAXED);
	}
	return calls;
}
