// SPDX-License-Identifier: Apache-2.0

// This header declares functions that write one JSON object on one line, member by member, to
// standard output.

#ifndef WORKLOAD_JSON_H
#define WORKLOAD_JSON_H

#include <stdbool.h>
#include <stdint.h>

void wl_json_open(const char *name);  // "{" or, inside an object, "name":{
void wl_json_close(void);             // "}"; the outermost "}" ends and flushes the line
void wl_json_array(const char *name); // "name":[
void wl_json_array_end(void);
void wl_json_string(const char *name, const char *value);
void wl_json_integer(const char *name, int64_t value);
void wl_json_bytes(const char *name, uint64_t value);
void wl_json_number(const char *name, double value); // null if not finite
void wl_json_bool(const char *name, bool value);

#endif
