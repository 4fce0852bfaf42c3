// SPDX-License-Identifier: Apache-2.0

// A library that does nothing: what a process takes to load one.

extern const int bc_empty;
__attribute__((visibility("default"))) const int bc_empty = 0;
