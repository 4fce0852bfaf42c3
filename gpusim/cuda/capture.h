// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_CAPTURE_H
#define GPUSIM_CAPTURE_H

#include "graph.h"

/* sim_capture_is_open reports whether the capture with this id is still open. */
bool sim_capture_is_open(const struct sim_capture *capture, uint64_t id);

/* Add a capture to the list of all captures, and remove it. The caller holds the process lock. */
void sim_capture_list(struct sim_capture *capture);
void sim_capture_unlist(struct sim_capture *capture);

/* sim_capture_break invalidates a capture; returns an error for an invalidated stream; returns a
 * thread's id. */
void sim_capture_break(struct sim_capture *capture);
CUresult sim_capture_intact(const struct sim_stream *stream);
uint64_t sim_capture_thread(void);

/* sim_capture_begin begins a capture. sim_capture_begin creates a graph if the caller passes no
 * graph. */
CUresult sim_capture_begin(struct sim_stream *stream, struct sim_graph *graph, int mode);
CUresult sim_capture_end(struct sim_stream *stream, struct sim_graph **graph);
CUresult sim_capture_set_tips(struct sim_stream *stream, struct sim_node *const *tips, size_t count);

#endif
