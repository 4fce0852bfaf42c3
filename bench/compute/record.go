// SPDX-License-Identifier: Apache-2.0

package main

import "math"

// Record is the result of one point: a line of the output.
type Record struct {
	ID       string `json:"id"`
	Workload string `json:"workload"`
	// Profile names the simulated driver and card. Profile is empty for a real machine.
	Profile string `json:"profile,omitempty"`
	// Tenant is the container of a point with a single container.
	*Tenant
	Tenants []Tenant `json:"tenants,omitempty"`
	// CapacityPercent is the total GPU time without limits. Switching between containers
	// takes the rest.
	CapacityPercent *float64 `json:"capacity_percent,omitempty"`
	// JainIndex is the index of shares / limits.
	JainIndex *float64 `json:"jain_index,omitempty"`
	// LostPercent is a percentage of the time that the limits allow.
	LostPercent *float64 `json:"lost_percent,omitempty"`
	*Latencies
	MeasuredS float64 `json:"measured_s"`
	// StalledPercent is the part of the time in which the machine's processors stalled. Attempts is
	// the number of measurements of the point, which stalls can increase.
	StalledPercent *float64 `json:"stalled_percent"`
	Attempts       int      `json:"attempts,omitempty"`
	// CPUPressurePercent is the percentage of the point's time in which at least one program
	// of the machine waited for a processor. A high percentage means a noisy result.
	CPUPressurePercent *float64 `json:"cpu_pressure_percent"`
}

// Tenant is the result of one container. An unknown value is null.
type Tenant struct {
	KernelUS     float64 `json:"kernel_us"`
	Pattern      string  `json:"pattern"`
	LaunchUS     float64 `json:"launch_us"` // of all kernels of a graph
	LimitPercent int     `json:"limit_percent"`
	// CPUCores is the CPU quota. CPUCores is omitted if there is no quota.
	CPUCores float64 `json:"cpu_cores,omitempty"`
	// UnlimitedPercent is the GPU time of the same work alone and without limits. Work
	// that leaves the GPU idle cannot reach every limit.
	UnlimitedPercent *float64 `json:"unlimited_gpu_time_percent"`
	// TargetPercent is the GPU time that the container should get: the limit, or less if the
	// container cannot use the whole limit.
	TargetPercent float64 `json:"target_percent"`
	// GPUTimePercent is the GPU time that the simulator's oracle reports.
	GPUTimePercent *float64 `json:"gpu_time_percent"`
	// MeteredPercent is the time charged to the container, according to its usage page.
	MeteredPercent *float64 `json:"metered_percent"`
	// ThroughputPercent is the rate of kernels, in percent of the rate without limits.
	ThroughputPercent float64 `json:"throughput_percent"`
	// ErrorPoints is the GPU time less the target. If the GPU time is unknown, ErrorPoints is the
	// throughput less the target.
	ErrorPoints float64 `json:"error_points"`
	// P99WindowErrorPoints covers only the windows with few stalls inside and shortly before the
	// window. P99AllWindowsErrorPoints covers all windows.
	P99WindowErrorPoints     *float64 `json:"p99_window_error_points"`
	P99AllWindowsErrorPoints *float64 `json:"p99_all_windows_error_points"`
	FirstSecondPercent       *float64 `json:"first_second_percent"`
	Windows                  int      `json:"windows"`
	WindowsDisturbed         int      `json:"windows_disturbed"`
	LongestWindowMS          float64  `json:"longest_window_ms"`
}

// Share returns the percentage of GPU time, or of throughput if GPU time is unknown.
func (t Tenant) Share() float64 {
	if t.GPUTimePercent != nil {
		return *t.GPUTimePercent
	}
	return t.ThroughputPercent
}

// idles reports whether the container's work alone uses less than its limit.
func (t Tenant) idles() bool { return t.TargetPercent < float64(t.LimitPercent) }

// Latencies are the latencies of the periodic kernel in three runs. The tenant of the point is the
// neighbour in the last run.
type Latencies struct {
	NeighbourKernelUS float64 `json:"neighbour_kernel_us"`
	Alone             Latency `json:"alone"`
	TimeSlicing       Latency `json:"time_slicing"` // both without limits
	Limited           Latency `json:"limited"`
}

// Latency contains statistics of the times from launch to end.
type Latency struct {
	P50MS   float64 `json:"p50_ms"`
	P99MS   float64 `json:"p99_ms"`
	MaxMS   float64 `json:"max_ms"`
	Samples int     `json:"samples"`
	// NeighbourPercent is the neighbour's GPU time, and NeighbourMetered is the neighbour's charged
	// time.
	NeighbourPercent *float64 `json:"neighbour_gpu_time_percent"`
	NeighbourMetered *float64 `json:"neighbour_metered_percent"`
}

// all returns the point's containers.
func (r Record) all() []Tenant {
	if r.Tenant != nil {
		return []Tenant{*r.Tenant}
	}
	return r.Tenants
}

// crowded reports whether the limits exceed the GPU time that concurrent containers can
// have.
func (r Record) crowded() bool {
	var limits float64
	for _, t := range r.Tenants {
		limits += float64(t.LimitPercent)
	}
	return r.CapacityPercent != nil && limits > *r.CapacityPercent
}

// why returns the reason that the point's containers may get less than their limits. why returns ""
// if the containers must get their limits.
func (r Record) why() string {
	if r.crowded() {
		return "switches between containers take the missing time"
	}
	if s, ok := short[profile{name: r.Profile}.card()]; ok && s.of(r) {
		return s.why
	}
	return ""
}

// known returns a pointer to the rounded number, or nil if v is NaN or infinite.
func known(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	rounded := round(v)
	return &rounded
}

// round rounds to the precision of the measurements.
func round(v float64) float64 { return math.Round(v*1e4) / 1e4 }
