// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// start is the report of the workload "card" about the driver at its start.
type start struct {
	PID             int      `json:"pid"`
	Before          view     `json:"before"`
	After           view     `json:"after"`
	InitMS          float64  `json:"init_ms"`
	ContextMS       float64  `json:"context_ms"`
	CUDAVersion     int      `json:"cuda_version"`
	Name            string   `json:"name"`
	UUID            string   `json:"uuid"`
	TotalBytes      uint64   `json:"total_bytes"`
	Multiprocessors int      `json:"multiprocessors"`
	Lookups         int      `json:"lookups"`
	LookupsDiffer   []string `json:"lookups_differ"`
}

// view is the state that NVML reports.
type view struct {
	NVML struct {
		Message string   `json:"message"` // the reason that NVML failed to start
		Error   int      `json:"init_error_code"`
		Driver  string   `json:"driver_version"`
		Devices []device `json:"devices"`
	} `json:"nvml"`
}

type device struct {
	UUID   string `json:"uuid"`
	Memory struct {
		Used uint64 `json:"used"`
	} `json:"memory"`
	Error     int       `json:"processes_error_code"`
	Processes []process `json:"processes"`
}

type process struct {
	PID  int    `json:"pid"`
	Used uint64 `json:"used"`
}

// of returns the state of a GPU.
func (v view) of(uuid string) device {
	at := slices.IndexFunc(v.NVML.Devices, func(d device) bool { return d.UUID == uuid })
	if at < 0 {
		return device{}
	}
	return v.NVML.Devices[at]
}

// others returns the UUIDs of all other GPUs.
func (s start) others() []string {
	var all []string
	for _, d := range s.Before.NVML.Devices {
		if d.UUID != s.UUID {
			all = append(all, d.UUID)
		}
	}
	return all
}

// context returns the GPU memory that the context uses, in bytes.
func (s start) context() uint64 {
	before, after := s.Before.of(s.UUID).Memory.Used, s.After.of(s.UUID).Memory.Used
	if after < before {
		return 0
	}
	return after - before
}

// These constants are the regimes of NVML: the information that NVML returns to a process about
// itself.
const (
	regimeBytes  = "own pid, with bytes"
	regimeZero   = "own pid, 0 bytes"
	regimeNone   = "memory of processes not available"
	regimeHost   = "processes by other pids"
	regimeHidden = "the process is not listed"
	regimeAbsent = "NVML cannot be used"
)

// regime returns the regime of NVML on this card.
func (s start) regime() string {
	seen := s.After.of(s.UUID)
	if s.After.NVML.Message != "" || s.After.NVML.Error != 0 || seen.UUID == "" || seen.Error != 0 {
		return regimeAbsent
	}
	for _, p := range seen.Processes {
		switch {
		case p.PID != s.PID:
		case p.Used == math.MaxUint64:
			return regimeNone
		case p.Used == 0:
			return regimeZero
		default:
			return regimeBytes
		}
	}
	if len(seen.Processes) > len(s.Before.of(s.UUID).Processes) {
		return regimeHost
	}
	return regimeHidden
}

// busy returns an error if another process already uses the GPU for computing.
func (s start) busy() error {
	if n := len(s.Before.of(s.UUID).Processes); n > 0 {
		return fmt.Errorf("%d processes use the GPU %s already: end these processes, because the test would measure their use, too", n, s.UUID)
	}
	return nil
}

// facts returns the facts that are known after the start.
func (s start) facts() []Fact {
	branch, _, _ := strings.Cut(s.Before.NVML.Driver, ".")
	return []Fact{
		{"card", fmt.Sprintf("%s, %d multiprocessors, %d MiB", s.Name, s.Multiprocessors, s.TotalBytes>>20)},
		{"driver", fmt.Sprintf("%s (R%s), CUDA %d.%d", s.Before.NVML.Driver, branch, s.CUDAVersion/1000, s.CUDAVersion%1000/10)},
		{"NVML", s.regime()},
		{"context", fmt.Sprintf("%.1f MiB", float64(s.context())/(1<<20))},
		{"start", fmt.Sprintf("cuInit %.1f ms, context %.1f ms", s.InitMS, s.ContextMS)},
	}
}

// lookupsRow judges whether the driver's two look-up functions return equal addresses. If the
// addresses differ, the interposer withholds every guarded function.
func (s start) lookupsRow() Row {
	r := row(Holds, "dlsym and cuGetProcAddress return the same", fmt.Sprintf("%d of %d", s.Lookups-len(s.LookupsDiffer), s.Lookups))
	if len(s.LookupsDiffer) > 0 || s.Lookups == 0 {
		r.Verdict, r.Why = DoesNotHold, strings.Join(s.LookupsDiffer, ", ")
	}
	return r
}

// turns describes the time slices of a process beside another process that saturates the GPU.
type turns struct {
	Switches int     `json:"switches"`
	OursMS   float64 `json:"ours_ms"`
	OthersMS float64 `json:"others_ms"`
}

// fact returns the length of the slice and the cost of a switch. The other process has a slice of
// equal length, between two switches.
func (t turns) fact() Fact {
	if t.Switches < 2 {
		return Fact{"time slice", "no switches seen"}
	}
	return Fact{"time slice", fmt.Sprintf("%.2f ms, a switch %.0f µs", t.OursMS, max(0, t.OthersMS-t.OursMS)/2*1000)}
}

// queues is the number of streams that run before a stream waits for another stream's kernel.
type queues struct {
	Connections int `json:"connections"`
	Streams     int `json:"streams"`
}

func (q queues) fact() Fact {
	if q.Connections == 0 {
		return Fact{"hardware queues", fmt.Sprintf("no two of %d streams share one", q.Streams)}
	}
	return Fact{"hardware queues", fmt.Sprintf("%d for a context", q.Connections)}
}

// drift is the relative speed of the GPU's clock against the host's.
type drift struct {
	Seconds float64 `json:"seconds"`
	PPM     float64 `json:"drift_ppm"`
}

func (d drift) fact() Fact {
	return Fact{"clock drift", fmt.Sprintf("%+.1f ppm over %.0f s", d.PPM, d.Seconds)}
}
