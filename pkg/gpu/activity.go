package gpu

import (
	"context"
	"math"
	"time"
)

// Sample is what the driver measured of a process over one of its periods.
type Sample struct {
	PID int
	// At is the end of the period.
	At time.Time
	// Percent is the part of the period in which the process's kernels ran.
	Percent uint32
	// Encoder and Decoder are its parts of the video engines' time, in percent.
	Encoder, Decoder uint32
}

// Load is what the driver measured of a GPU over one of its periods.
type Load struct {
	// At is the end of the period.
	At time.Time
	// Percent is the part of the period in which kernels ran.
	Percent uint32
}

// Samples are those of one GPU: of its processes, and of the GPU itself.
type Samples struct {
	Processes []Sample
	Loads     []Load
}

// onEngine reports whether the process used a video engine. Drivers are known to
// give samples with values that are no measurement.
func (s Sample) onEngine() bool {
	measured := func(percent uint32) bool { return percent > 0 && percent <= 100 }
	return measured(s.Encoder) || measured(s.Decoder)
}

// Activity is what the driver says of a process that uses a GPU, now and
// in the time just past.
type Activity struct {
	Process
	// Utilisation is the part of the GPU's time that the process had, in
	// percent; nil where the driver does not tell.
	Utilisation *float64
}

// Activity asks the driver which processes use each GPU, by UUID, and how
// much of its time they had in the window just past. GPUs that do not answer are
// missing. It waits no longer than Refresh does, and changes nothing of what is
// known of the GPUs.
func (i *Inventory) Activity(ctx context.Context, window time.Duration) (map[string][]Activity, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	active, err := ask(ctx, i, func() (map[string][]Activity, error) { return activity(i.driver, window) })
	if err != nil {
		return nil, i.explain(err)
	}
	return active, nil
}

// Samples returns what the driver measured after a time, by the GPU's UUID. GPUs of whose
// processes it does not tell are missing. It waits no longer than Refresh does.
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

// average is the part of a window, in percent, that each process had, from the
// samples in it. Drivers differ: some give one sample for each period in which
// a process did something, which are to be held against all periods of the
// window; some give a single one of each process, for the time just past. The
// least distance between two samples of one process tells the period.
func average(samples []Sample, window time.Duration) map[int]float64 {
	byPID := map[int][]Sample{}
	for _, s := range samples {
		if s.Percent <= 100 { // else it is no measurement; drivers are known to give some
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

// period is the driver's, the whole window where no process has two samples.
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
