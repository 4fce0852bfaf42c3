// SPDX-License-Identifier: Apache-2.0

//go:build seccomp

package main

// withoutSeccomp reports whether the wrapped runc, which has the same build tags, rejects filters.
const withoutSeccomp = false
