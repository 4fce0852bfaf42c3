// Package nodereport is node.json: what the agent says of its node and the
// patcher advertises.
package nodereport

import (
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// FormatVersion is the version of the file's format that this code writes,
// and the only one that it reads. Adding a field does not change it: readers
// ignore fields that they do not know.
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
	// Sums are left out as long as the agent does not know the node's pods.
	Sums *Sums `json:"sums,omitempty"`
	// Volcano is how far Volcano's scheduler has been answered.
	Volcano Volcano `json:"volcano,omitzero"`
}

// Sums are what dialects have of the node, in their units, by resource name.
type Sums struct {
	// Used is what pods ask for that were sent to this node and have not
	// ended, as scheduler and kubelet count: capacity is never patched below
	// it.
	Used map[string]int64 `json:"used,omitempty"`
	// Free is what of the GPUs nobody has, in whichever dialect.
	Free map[string]int64 `json:"free,omitempty"`
}

// Volcano is how far Volcano's scheduler has been answered for the pods that it
// has assigned GPUs to: its lock on the Node may go when it has been.
type Volcano struct {
	// AnsweredAt is when, by the scheduler's clock and in seconds, it made the
	// latest assignment that was answered.
	AnsweredAt int64 `json:"answeredAt,omitempty"`
	// Pending is how many it still waits for.
	Pending int `json:"pending,omitempty"`
	// Missed counts the pods that it sent here without choosing their GPUs: it
	// may have to be told of the GPUs once more.
	Missed int `json:"missed,omitempty"`
}
