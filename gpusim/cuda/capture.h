// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_CAPTURE_H
#define GPUSIM_CAPTURE_H

#include "graph.h"

/* Whether the capture that had this id goes on. */
bool sim_capture_is_open(const struct sim_capture *capture, uint64_t id);

/* Begins a capture, into a graph of its own if none is given. */
CUresult sim_capture_begin(struct sim_stream *stream, struct sim_graph *graph, int mode);
CUresult sim_capture_end(struct sim_stream *stream, struct sim_graph **graph);
CUresult sim_capture_set_tips(struct sim_stream *stream, struct sim_node *const *tips, size_t count);

#endif
