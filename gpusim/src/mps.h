// SPDX-License-Identifier: Apache-2.0
/*
 * This header declares the messages between a client of the Multi-Process Service, its control
 * daemon and its server, over sockets that keep message boundaries. Only the simulator's programs
 * use these messages, because the messages of the real programs are not documented.
 */
#ifndef GPUSIM_MPS_H
#define GPUSIM_MPS_H

#include "state.h"

#define GS_MPS_MAGIC 0x5350474dU
#define GS_MPS_DEFAULT_PIPES "/tmp/nvidia-mps"
#define GS_MPS_DEFAULT_LOGS "/var/log/nvidia-mps"
#define GS_MPS_CONTROL "control"               /* where clients connect */
#define GS_MPS_PRIVILEGED "control_privileged" /* where commands arrive */

/* gs_mps_hello is a client's first message to the control daemon. */
struct gs_mps_hello {
	uint32_t magic;
	uint32_t reserved;
};

/* gs_mps_welcome is the server's answer. After the answer, the end of the connection means that the
 * peer is gone. */
struct gs_mps_welcome {
	uint32_t magic;
	uint32_t error;    /* a CUresult */
	uint32_t gpus;     /* a bit for each GPU that the server serves, by index in the state */
	uint32_t part_ppm; /* part of the SMs, unless the client requests less */
	uint64_t limits[GS_MAX_GPUS]; /* bytes that a client may hold, 0: no limit */
};

/* gs_mps_part returns a percentage such as "10" or "12.5", above 0 and up to 100, in ppm, or 0 for
 * an invalid text. */
uint32_t gs_mps_part(const char *text);

/* gs_mps_size returns the bytes of a size such as "512M" or "4G", or 0 for an invalid text. */
uint64_t gs_mps_size(const char *text, const char **rest);

/* gs_mps_connect connects to a socket in a pipe directory. gs_mps_connect returns the socket, or
 * -errno. */
int gs_mps_connect(const char *dir, const char *name);

#endif
