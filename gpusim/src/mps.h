// SPDX-License-Identifier: Apache-2.0
/*
 * What passes between a client of the Multi-Process Service, its control daemon
 * and its server: messages over sockets that keep their bounds. Between these
 * programs alone: the real ones' are not documented.
 */
#ifndef GPUSIM_MPS_H
#define GPUSIM_MPS_H

#include "state.h"

#define GS_MPS_MAGIC 0x5350474dU
#define GS_MPS_DEFAULT_PIPES "/tmp/nvidia-mps"
#define GS_MPS_DEFAULT_LOGS "/var/log/nvidia-mps"
#define GS_MPS_CONTROL "control"               /* where clients come */
#define GS_MPS_PRIVILEGED "control_privileged" /* where commands come */

/* A client's first words, to the control daemon. */
struct gs_mps_hello {
	uint32_t magic;
	uint32_t reserved;
};

/* The server's answer. After it the connection says by its end that one is gone. */
struct gs_mps_welcome {
	uint32_t magic;
	uint32_t error;    /* a CUresult */
	uint32_t gpus;     /* a bit for each that is served, by index in the state */
	uint32_t part_ppm; /* of the SMs, unless the client asks for less */
	uint64_t limits[GS_MAX_GPUS]; /* bytes that a client may hold, 0: no limit */
};

/* "10", "12.5": a percentage above 0 up to 100, in parts per million; 0: not one. */
uint32_t gs_mps_part(const char *text);

/* "512M", "4G": bytes; 0: not a size. */
uint64_t gs_mps_size(const char *text, const char **rest);

/* Connects to a socket in a directory of pipes. Returns it, or -errno. */
int gs_mps_connect(const char *dir, const char *name);

#endif
