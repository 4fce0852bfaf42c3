// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// creations contains the runtime's waits for the agent. A wait consists of the handler and the
// transport through NRI.
type creations struct {
	Measure string  `json:"measure"` // "create"
	Which   string  `json:"which"`   // "all", "granted", "withheld"
	Count   int     `json:"count"`
	P50ms   float64 `json:"p50_ms"`
	P99ms   float64 `json:"p99_ms"`
	MaxMs   float64 `json:"max_ms"`
}

func newCreations(which string, took []time.Duration) creations {
	slices.Sort(took)
	return creations{"create", which, len(took), ms(quantile(took, 0.5)), ms(quantile(took, 0.99)), ms(took[len(took)-1])}
}

// quantile returns the smallest of the sorted values that the fraction q of the values does not
// exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

func ms(d time.Duration) float64 { return thousandths(float64(d) / float64(time.Millisecond)) }

func thousandths(x float64) float64 { return math.Round(1000*x) / 1000 }

// idleness contains the costs of an idle program.
type idleness struct {
	Measure     string         `json:"measure"` // "idle"
	Program     string         `json:"program"`
	Seconds     float64        `json:"seconds"`
	CPUPercent  float64        `json:"cpu_percent_of_a_core"`
	ResidentMiB float64        `json:"resident_mib"`
	PeakMiB     float64        `json:"peak_resident_mib"`
	AnonMiB     float64        `json:"resident_anonymous_mib"`
	Writes      int            `json:"api_writes"`
	Requests    map[string]int `json:"api_requests"`
}

// verdict reports whether a promise holds.
type verdict struct {
	Measure string  `json:"measure"` // "verdict"
	Promise string  `json:"promise"`
	Limit   float64 `json:"limit"`
	Got     float64 `json:"got"`
	Holds   bool    `json:"holds"`
}

func (v verdict) String() string {
	word := "holds "
	if !v.Holds {
		word = "BROKEN"
	}
	return fmt.Sprintf("%s  %-50s %8.3f  (at most %g)", word, v.Promise, v.Got, v.Limit)
}

// These constants are the promised bounds.
const (
	maxCreateMs   = 2 // of 99 of 100 calls of the handler
	maxAgentMiB   = 60
	maxPatcherMiB = 30
	maxCPU        = 0.5
)

func judge(created []handled, idle []idleness) []verdict {
	var verdicts []verdict
	add := func(promise string, limit, got float64) {
		verdicts = append(verdicts, verdict{"verdict", promise, limit, got, got <= limit})
	}
	for _, c := range created {
		add(fmt.Sprintf("CreateContainer, %% over %d ms (%s)", maxCreateMs, c.Which), 1, c.SlowPercent)
	}
	memory := map[string]float64{agentName: maxAgentMiB, patcherName: maxPatcherMiB}
	for _, i := range idle {
		add("resident memory, MiB ("+i.Program+")", memory[i.Program], i.ResidentMiB)
		add("processor time when idle, % of a core ("+i.Program+")", maxCPU, i.CPUPercent)
		add("writes to the API server when idle ("+i.Program+")", 0, float64(i.Writes))
	}
	return verdicts
}
