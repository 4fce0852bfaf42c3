// Package nodereport is node.json: what the agent says of its node and the
// patcher advertises.
package nodereport

import (
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// FormatVersion is the version of the file's format that this code writes,
// and the only one that it reads.
const FormatVersion = 1

// FileName is the report's name in the run directory.
const FileName = "node.json"

// Report is the content of node.json.
type Report struct {
	Version int `json:"version"`
	// Heartbeat is when the agent last wrote the report.
	Heartbeat time.Time `json:"heartbeat"`
	// PluginRegistered tells whether the runtime has our NRI plugin.
	PluginRegistered bool `json:"pluginRegistered"`
	// Unadjusted is how many containers run without their limits, as they
	// were created without the plugin.
	Unadjusted   int       `json:"unadjusted,omitempty"`
	AgentVersion string    `json:"agentVersion"`
	GPUs         []gpu.GPU `json:"gpus"`
	// Used is what running pods hold, in each dialect's units, by resource
	// name: capacity is never patched below it.
	Used map[string]int64 `json:"used,omitempty"`
}
