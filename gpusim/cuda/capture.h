// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_CAPTURE_H
#define GPUSIM_CAPTURE_H

#include "graph.h"

/* sim_capture_is_open reports whether the capture with this id is still open. */
bool sim_capture_is_open(const struct sim_capture *capture, uint64_t id);

/* sim_capture_list adds a capture to the list of all captures, and sim_capture_unlist removes a
 * capture. The caller holds the process lock. */
void sim_capture_list(struct sim_capture *capture);
void sim_capture_unlist(struct sim_capture *capture);

/* sim_capture_break invalidates a capture. sim_capture_intact returns an error for a stream whose
 * capture is invalid. sim_capture_thread returns the calling thread's id. */
void sim_capture_break(struct sim_capture *capture);
CUresult sim_capture_intact(const struct sim_stream *stream);
uint64_t sim_capture_thread(void);

/* sim_capture_begin begins a capture. sim_capture_begin creates a graph if the caller passes no
 * graph. */
CUresult sim_capture_begin(struct sim_stream *stream, struct sim_graph *graph, int mode);
CUresult sim_capture_end(struct sim_stream *stream, struct sim_graph **graph);
CUresult sim_capture_set_tips(struct sim_stream *stream, struct sim_node *const *tips, size_t count);

#endif
