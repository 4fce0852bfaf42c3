// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"context"
	"math"
	"time"
)

// Sample is the driver's measurement of a process over one period.
type Sample struct {
	PID int
	// At is the end of the period.
	At time.Time
	// Percent is the part of the period during which the process's kernels ran.
	Percent uint32
	// Encoder and Decoder are the process's parts of the video engines' time, in percent.
	Encoder, Decoder uint32
}

// Load is the driver's measurement of a GPU over one period.
type Load struct {
	// At is the end of the period.
	At time.Time
	// Percent is the part of the period during which kernels ran.
	Percent uint32
}

// Samples are the measurements of one GPU and of its processes.
type Samples struct {
	Processes []Sample
	Loads     []Load
}

// onEngine reports whether the process used a video engine. Some drivers return samples
// with invalid values.
func (s Sample) onEngine() bool {
	measured := func(percent uint32) bool { return percent > 0 && percent <= 100 }
	return measured(s.Encoder) || measured(s.Decoder)
}

// Activity is a process that uses a GPU, with its recent use.
type Activity struct {
	Process
	// Utilisation is the process's part of the GPU's time, in percent. Utilisation is nil
	// if the driver does not report samples.
	Utilisation *float64
}

// Activity returns the processes that use each GPU, by UUID, and their parts of the GPU's
// time in the preceding window. Activity omits GPUs that do not answer or that the node does not
// offer. Activity waits no longer than Refresh, and does not change the inventory.
func (i *Inventory) Activity(ctx context.Context, window time.Duration) (map[string][]Activity, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	active, err := ask(ctx, i, func() (map[string][]Activity, error) { return activity(i.driver, window) })
	if err != nil {
		return nil, i.explain(err)
	}
	for _, g := range i.LeftOut() {
		delete(active, g.UUID)
	}
	return active, nil
}

// Samples returns the driver's measurements since a time, by the GPU's UUID. Samples
// omits GPUs whose processes the driver does not measure. Samples waits no longer than
// Refresh.
func (i *Inventory) Samples(ctx context.Context, since time.Time) (map[string]Samples, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	samples, err := ask(ctx, i, func() (map[string]Samples, error) { return sampled(i.driver, since) })
	if err != nil {
		return nil, i.explain(err)
	}
	return samples, nil
}

func sampled(d Driver, since time.Time) (map[string]Samples, error) {
	processes, err := d.Samples(since)
	if err != nil {
		return nil, err
	}
	loads, err := d.Loads(since)
	if err != nil {
		return nil, err
	}
	all := make(map[string]Samples, len(processes))
	for uuid, list := range processes {
		all[uuid] = Samples{list, loads[uuid]}
	}
	return all, nil
}

func activity(d Driver, window time.Duration) (map[string][]Activity, error) {
	processes, err := d.Processes()
	if err != nil {
		return nil, err
	}
	samples, err := d.Samples(time.Now().Add(-window))
	if err != nil {
		return nil, err
	}
	markVideo(processes, samples)
	active := make(map[string][]Activity, len(processes))
	for uuid, running := range processes {
		measured, known := samples[uuid]
		shares := average(measured, window)
		list := make([]Activity, len(running))
		for k, p := range running {
			list[k].Process = p
			if known {
				share := shares[p.PID]
				list[k].Utilisation = &share
			}
		}
		active[uuid] = list
	}
	return active, nil
}

// average returns each process's part of a window, in percent, from the samples in the window. Some
// drivers return one sample for each period in which a process was active. For these drivers,
// average divides the sum of the samples by all periods of the window. Other drivers return a
// single sample of each process for the recent past. The shortest distance between two samples of
// one process is the period.
func average(samples []Sample, window time.Duration) map[int]float64 {
	byPID := map[int][]Sample{}
	for _, s := range samples {
		if s.Percent <= 100 { // a larger value of some drivers is invalid
			byPID[s.PID] = append(byPID[s.PID], s)
		}
	}
	periods := max(math.Round(float64(window)/float64(period(byPID, window))), 1)
	shares := make(map[int]float64, len(byPID))
	for pid, own := range byPID {
		sum := 0.0
		for _, s := range own {
			sum += float64(s.Percent)
		}
		shares[pid] = min(sum/max(periods, float64(len(own))), 100)
	}
	return shares
}

// period returns the driver's period, or the whole window if no process has two samples.
func period(byPID map[int][]Sample, window time.Duration) time.Duration {
	shortest := window
	for _, own := range byPID {
		for k := 1; k < len(own); k++ {
			if gap := own[k].At.Sub(own[k-1].At).Abs(); gap > 0 {
				shortest = min(shortest, gap)
			}
		}
	}
	return shortest
}
