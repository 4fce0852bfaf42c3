// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

var errEarly = errors.New("earlier than it should")

// windowLength is the length of the windows in which a limit must also hold.
const windowLength = 100 * time.Millisecond

// outcome is the result of one container. An unknown value is NaN.
type outcome struct {
	share         float64 // percent of GPU time
	metered       float64 // charged time, in percent
	rate          float64 // kernels per second
	firstSecond   float64 // percent of GPU time
	windows       []window
	longestWindow time.Duration
	stalled       float64 // percent of the time in which processors stalled
}

// machine runs loads on the GPU.
type machine interface {
	// kind returns "simulated" or "real".
	kind() string
	// run runs loads concurrently.
	run(ctx context.Context, loads []load, s span) ([]outcome, error)
	// latency runs the periodic load, and concurrently the neighbour if neighbour is not nil.
	latency(ctx context.Context, periodic load, neighbour *load, s span) (Latency, error)
}

// hasGPU reports whether this machine has a real GPU.
func hasGPU() bool {
	_, err := os.Stat("/dev/nvidiactl")
	return err == nil
}

// seconds formats a duration as an argument of the workloads.
func seconds(d time.Duration) string { return formatNumber(d.Seconds()) }

// periodicWarmup is the time in which the interposer learns the length of the periodic kernel.
// After this time, the interposer measures the kernel less and less often.
const periodicWarmup = 5 * time.Second

// startPeriodic starts the workload "latency".
func startPeriodic(ctx context.Context, h *host, l load, duration time.Duration) (*process, error) {
	t, err := h.startProgram(ctx, l, "latency", []string{
		"--kernel-us", formatNumber(l.kernelUS),
		"--period-ms", fmt.Sprint(periodMS),
		"--warmup", seconds(periodicWarmup), "--duration", seconds(duration),
	})
	if err != nil {
		return nil, err
	}
	return t.processes[0], nil
}

// parseLatency parses the output of the workload "latency".
func parseLatency(output []byte) (Latency, error) {
	var l Latency
	if err := json.Unmarshal(output, &l); err != nil {
		return Latency{}, fmt.Errorf("read the output of latency: %w", err)
	}
	if l.Samples == 0 {
		return Latency{}, fmt.Errorf("read the output of latency: no sample: %s", output)
	}
	return l, nil
}
