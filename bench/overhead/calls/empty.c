// SPDX-License-Identifier: Apache-2.0

// This empty library measures the cost of loading a library.

extern const int bc_empty;
__attribute__((visibility("default"))) const int bc_empty = 0;
