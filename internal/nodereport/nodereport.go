// SPDX-License-Identifier: Apache-2.0

// Package nodereport reads and writes node.json, the agent's report about its node. The patcher
// advertises the report's contents.
package nodereport

import (
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// FormatVersion is the version of the file's format that this code writes, and the only version
// that this code reads. A new field does not change the version, because readers ignore unknown
// fields.
const FormatVersion = 1

// FileName is the report's name in the run directory.
const FileName = "node.json"

const (
	// PerSecond bounds the reports in a second that changes of pods cause. The mode fit may write the
	// Node and the agent's pod after each report.
	PerSecond = 10
	// Pause is the least pause between two such reports. Changes within a pause share a report, and a
	// change after the pause is reported at once.
	Pause = time.Second / PerSecond
)

// Report is the content of node.json.
type Report struct {
	Version int `json:"version"`
	// Heartbeat is the time of the report.
	Heartbeat time.Time `json:"heartbeat"`
	// PluginRegistered reports whether the NRI plugin is registered with the runtime.
	PluginRegistered bool `json:"pluginRegistered"`
	// Unadjusted is the number of containers that run without their limits, because they were
	// created without the plugin.
	Unadjusted   int    `json:"unadjusted,omitempty"`
	AgentVersion string `json:"agentVersion"`
	// Pool is the name of the pool of config.toml whose configuration the agent applies, or "".
	Pool string    `json:"pool,omitempty"`
	GPUs []gpu.GPU `json:"gpus"`
	// LeftOut are the GPUs that the node does not offer.
	LeftOut []gpu.GPU `json:"leftOut,omitempty"`
	// Sums is nil until the agent knows the node's pods.
	Sums *Sums `json:"sums,omitempty"`
	// Volcano is the state of the answers to Volcano's scheduler.
	Volcano Volcano `json:"volcano,omitzero"`
}

// Sums are the node's amounts of the dialects' resources, by resource name, in each resource's
// unit.
type Sums struct {
	// Used are the requests of this node's pods that have not ended, as the scheduler and the
	// kubelet count requests. The patcher never lowers capacity below Used.
	Used map[string]int64 `json:"used,omitempty"`
	// Free is the unallocated capacity of the GPUs, in the units of each resource.
	Free map[string]int64 `json:"free,omitempty"`
	// Fit is omitted unless the agent's mode of scheduling is fit.
	Fit *Fit `json:"fit,omitempty"`
}

// Fit describes the free capacity of the node's single GPUs.
type Fit struct {
	// Labels are the labels of the Node, with the rooms of the GPUs and the shapes of the node's pods.
	Labels map[string]string `json:"labels,omitempty"`
	// Full are the shapes of the node's pods that have no room for another pod, sorted.
	Full []string `json:"full,omitempty"`
	// Closed reports whether the Node must offer no turn.
	Closed bool `json:"closed,omitempty"`
}

// Volcano is the state of the node's answers to Volcano's scheduler about assigned pods. Once the
// node has answered all assignments, the scheduler's lock on the Node can be removed.
type Volcano struct {
	// AnsweredAt is the time of the latest answered assignment, by the scheduler's clock, in
	// seconds.
	AnsweredAt int64 `json:"answeredAt,omitempty"`
	// Pending is the number of assignments without an answer.
	Pending int `json:"pending,omitempty"`
	// Missed is the number of pods that the scheduler bound to this node without choosing GPUs. The
	// node may have to announce its GPUs to the scheduler again.
	Missed int `json:"missed,omitempty"`
}
