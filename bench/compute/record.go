package main

import "math"

// Record is the result of one point: a line of the output.
type Record struct {
	ID       string `json:"id"`
	Workload string `json:"workload"`
	// Profile names the simulated driver and card; a real machine has none.
	Profile string `json:"profile,omitempty"`
	// Tenant is the container of a point that has only one.
	*Tenant
	Tenants []Tenant `json:"tenants,omitempty"`
	// CapacityPercent is the GPU time of all without limits: changing between them takes
	// the rest.
	CapacityPercent *float64 `json:"capacity_percent,omitempty"`
	// JainIndex is over shares / limits.
	JainIndex *float64 `json:"jain_index,omitempty"`
	// LostPercent is of the time that the limits allow.
	LostPercent *float64 `json:"lost_percent,omitempty"`
	*Latencies
	MeasuredS float64 `json:"measured_s"`
	// StalledPercent is the part of the time in which the machine's processors
	// stood still, Attempts how often the point was measured for that.
	StalledPercent *float64 `json:"stalled_percent"`
	Attempts       int      `json:"attempts,omitempty"`
	// CPUPressurePercent is the part of the point's time in which some program
	// of the machine waited for a processor: the result is as noisy.
	CPUPressurePercent *float64 `json:"cpu_pressure_percent"`
}

// Tenant is what one container got. What a machine cannot tell is null.
type Tenant struct {
	KernelUS     float64 `json:"kernel_us"`
	Pattern      string  `json:"pattern"`
	LaunchUS     float64 `json:"launch_us"` // kernels of a graph together
	LimitPercent int     `json:"limit_percent"`
	// CPUCores is the quota of processors' time; there is none where it is left out.
	CPUCores float64 `json:"cpu_cores,omitempty"`
	// UnlimitedPercent is the GPU time of the same work alone and without
	// limits: work that leaves the GPU idle by itself does not reach every
	// limit.
	UnlimitedPercent *float64 `json:"unlimited_gpu_time_percent"`
	// TargetPercent is what it should get: the limit, or what it can use.
	TargetPercent float64 `json:"target_percent"`
	// GPUTimePercent is by the simulator's oracle.
	GPUTimePercent *float64 `json:"gpu_time_percent"`
	// MeteredPercent is what the container was charged, by its usage page.
	MeteredPercent *float64 `json:"metered_percent"`
	// ThroughputPercent is kernels per second, of those without limits.
	ThroughputPercent float64 `json:"throughput_percent"`
	// ErrorPoints is the GPU time, or else the throughput, less the target.
	ErrorPoints float64 `json:"error_points"`
	// P99WindowErrorPoints is over the windows in which, and shortly before which,
	// the processors hardly stood still; P99AllWindowsErrorPoints over all.
	P99WindowErrorPoints     *float64 `json:"p99_window_error_points"`
	P99AllWindowsErrorPoints *float64 `json:"p99_all_windows_error_points"`
	FirstSecondPercent       *float64 `json:"first_second_percent"`
	Windows                  int      `json:"windows"`
	WindowsDisturbed         int      `json:"windows_disturbed"`
	LongestWindowMS          float64  `json:"longest_window_ms"`
}

// Share is the percentage of GPU time, or of throughput where it is unknown.
func (t Tenant) Share() float64 {
	if t.GPUTimePercent != nil {
		return *t.GPUTimePercent
	}
	return t.ThroughputPercent
}

// idles tells whether the container, by itself, uses less than its limit.
func (t Tenant) idles() bool { return t.TargetPercent < float64(t.LimitPercent) }

// Latencies are those of the periodic kernel in three runs. The point's only tenant is the
// neighbour in the last.
type Latencies struct {
	NeighbourKernelUS float64 `json:"neighbour_kernel_us"`
	Alone             Latency `json:"alone"`
	TimeSlicing       Latency `json:"time_slicing"` // both without limits
	Limited           Latency `json:"limited"`
}

// Latency is from launch to end.
type Latency struct {
	P50MS   float64 `json:"p50_ms"`
	P99MS   float64 `json:"p99_ms"`
	MaxMS   float64 `json:"max_ms"`
	Samples int     `json:"samples"`
	// NeighbourPercent is the neighbour's GPU time, NeighbourMetered what it was charged.
	NeighbourPercent *float64 `json:"neighbour_gpu_time_percent"`
	NeighbourMetered *float64 `json:"neighbour_metered_percent"`
}

// all are the point's containers.
func (r Record) all() []Tenant {
	if r.Tenant != nil {
		return []Tenant{*r.Tenant}
	}
	return r.Tenants
}

// crowded reports whether the limits are more than can be had side by side.
func (r Record) crowded() bool {
	var limits float64
	for _, t := range r.Tenants {
		limits += float64(t.LimitPercent)
	}
	return r.CapacityPercent != nil && limits > *r.CapacityPercent
}

// why says why the point's containers may have less than their limits, empty where
// they must have them.
func (r Record) why() string {
	if r.crowded() {
		return "changing between containers takes what is missing"
	}
	if s, ok := short[profile{name: r.Profile}.card()]; ok && s.of(r) {
		return s.why
	}
	return ""
}

// known is a pointer to a number, or nil if it is none.
func known(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	rounded := round(v)
	return &rounded
}

// round to what a measurement can tell.
func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }
