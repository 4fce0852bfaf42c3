// Package nodestatus keeps the node's GPU capacity on its Node object, as
// extended resources, and keeps it there whoever else writes: it is the
// patcher. What to advertise and what to write are pure functions (Desired,
// Plan); the loop around them (Patcher) reads node.json and talks to the API
// server. It does not know how GPUs are found.
package nodestatus

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
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
	// Newer: the report has the format of a newer release, and nothing of it is
	// known but the heartbeat.
	Newer bool
}

// Age is how long ago the agent was last known to live.
func (o Observation) Age(now time.Time) time.Duration { return now.Sub(o.Alive) }

// Resources are units by resource name. A name that is absent is not
// advertised; 0 is never a value.
type Resources map[string]int64

// Desired is what a Node with the given labels must advertise. When that is
// nothing, the second result says why, in words for the log; else it is empty.
func Desired(o Observation, cfg config.Config, labels map[string]string, staleAfter time.Duration, now time.Time) (Resources, string) {
	switch {
	case o.Report == nil:
		return nil, "the agent has not reported"
	case o.Age(now) > staleAfter:
		return nil, fmt.Sprintf("the agent's last heartbeat is more than %s old", staleAfter)
	case !o.Report.PluginRegistered:
		return nil, "the NRI plugin is not registered with the runtime"
	case o.Report.Sums == nil:
		return nil, "the agent does not know the node's pods yet"
	}
	sums := *o.Report.Sums
	if !labelled(labels, cfg.Dialects.AWS.NodeLabel) {
		sums.Free = maps.Clone(sums.Free)
		delete(sums.Free, cfg.Dialects.AWS.Slots)
	}
	desired := capacity(o.Report.GPUs, sums, cfg)
	if len(desired) == 0 {
		return nil, "the node has no GPU to offer"
	}
	return desired, ""
}

// undecided reports whether the agent lives and does not know the node's pods yet,
// or is of a newer release, so that neither more nor less than before may be
// advertised.
func undecided(o Observation, staleAfter time.Duration, now time.Time) bool {
	return notUnderstood(o, staleAfter, now) ||
		o.Report != nil && o.Age(now) <= staleAfter && o.Report.PluginRegistered && o.Report.Sums == nil
}

// notUnderstood reports whether the agent lives and is of a newer release.
func notUnderstood(o Observation, staleAfter time.Duration, now time.Time) bool {
	return o.Newer && o.Age(now) <= staleAfter
}

// capacity is what a dialect's own pods use and what is left in its units, so
// that the scheduler, which subtracts the former, has the latter, whatever
// others hold. It is never less than what its pods use: a kubelet that
// restarts admits them again, and fails those that do not fit. Nor is it more
// than the GPUs are worth, though pods may ask for more than they can get.
func capacity(gpus []gpu.GPU, sums nodereport.Sums, cfg config.Config) Resources {
	desired := Resources{}
	for name, whole := range request.Capacity(asHealthy(gpus), cfg) {
		used := sums.Used[name]
		if units := max(used, min(used+sums.Free[name], whole)); units > 0 {
			desired[name] = units
		}
	}
	keepVolcano(desired, cfg.Dialects.Volcano)
	return desired
}

// labelled tells whether a Node has a label, "key=value" or "key"; without one
// to have, any Node has it.
func labelled(labels map[string]string, label string) bool {
	key, want, exact := strings.Cut(label, "=")
	value, has := labels[key]
	return label == "" || has && (!exact || value == want)
}

func asHealthy(gpus []gpu.GPU) []gpu.GPU {
	all := slices.Clone(gpus)
	for i := range all {
		all[i].Healthy = true
	}
	return all
}

// keepVolcano has all three of Volcano's resources there where one is: its
// scheduler takes a node that has none of one for a node without GPUs.
func keepVolcano(desired Resources, v config.Volcano) {
	names := []string{v.Number, v.Memory, v.Cores}
	if !v.Enabled || !slices.ContainsFunc(names, func(name string) bool { return desired[name] > 0 }) {
		return
	}
	for _, name := range names {
		desired[name] = max(desired[name], 1)
	}
}
