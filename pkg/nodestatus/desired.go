// Package nodestatus keeps the node's GPU capacity on its Node object, as
// extended resources, and keeps it there whoever else writes: it is the
// patcher. What to advertise and what to write are pure functions (Desired,
// Plan); the loop around them (Patcher) reads node.json and talks to the API
// server. It does not know how GPUs are found.
package nodestatus

import (
	"fmt"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Observation is what the patcher knows of the agent.
type Observation struct {
	// Report is the last one that could be read; nil before the first.
	Report *nodereport.Report
	// Alive is when the agent was last known to live, by this process's
	// clock: the wall clock may jump while both run.
	Alive time.Time
}

// Age is how long ago the agent was last known to live.
func (o Observation) Age(now time.Time) time.Duration { return now.Sub(o.Alive) }

// Resources are units by resource name. A name that is absent is not
// advertised; 0 is never a value.
type Resources map[string]int64

// Desired is what the Node must advertise. When that is nothing, the second
// result says why, in words for the log; else it is empty.
func Desired(o Observation, cfg config.Config, staleAfter time.Duration, now time.Time) (Resources, string) {
	switch {
	case o.Report == nil:
		return nil, "the agent has not reported"
	case o.Age(now) > staleAfter:
		return nil, fmt.Sprintf("the agent's last heartbeat is more than %s old", staleAfter)
	case !o.Report.PluginRegistered:
		return nil, "the NRI plugin is not registered with the runtime"
	}
	desired := capacity(o.Report, cfg)
	if len(desired) == 0 {
		return nil, "the node has no GPU to offer"
	}
	return desired, ""
}

// capacity is what the healthy GPUs are worth, and never less than what
// running pods hold: a kubelet that restarts admits them again, and fails
// those that do not fit.
func capacity(report *nodereport.Report, cfg config.Config) Resources {
	desired := Resources{}
	for name, units := range request.Capacity(report.GPUs, cfg) {
		if units = max(units, report.Used[name]); units > 0 {
			desired[name] = units
		}
	}
	return desired
}
