// SPDX-License-Identifier: Apache-2.0

package limits

import "github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"

// Way is a way of allocating device memory, as recorded on usage pages.
type Way uint8

// These constants are the ways of allocating. The interposer writes the numbers.
const (
	WayNone    Way = layout.WayNone
	WayContext Way = layout.WayContext
	WayAlloc   Way = layout.WayAlloc
	WayPitch   Way = layout.WayPitch
	WayManaged Way = layout.WayManaged
	WayArray   Way = layout.WayArray
	WayMipmap  Way = layout.WayMipmap
	WayAsync   Way = layout.WayAsync
	WayPool    Way = layout.WayPool
	WayVMM     Way = layout.WayVMM
	WayGraph   Way = layout.WayGraph
	WayImport  Way = layout.WayImport
	WayModule  Way = layout.WayModule
)

// WayCount is the number of ways, including WayNone.
const WayCount = layout.WayCount

var wayNames = [WayCount]string{
	WayNone: "none", WayContext: "context", WayAlloc: "alloc", WayPitch: "pitch", WayManaged: "managed",
	WayArray: "array", WayMipmap: "mipmap", WayAsync: "async", WayPool: "pool", WayVMM: "vmm",
	WayGraph: "graph", WayImport: "import", WayModule: "module",
}

// String returns the way's name, or "unknown" for an unknown way.
func (w Way) String() string {
	if int(w) < len(wayNames) {
		return wayNames[w]
	}
	return "unknown"
}
