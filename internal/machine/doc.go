// SPDX-License-Identifier: Apache-2.0

// Package machine describes the architecture that nri-vgpu is built for.
package machine
