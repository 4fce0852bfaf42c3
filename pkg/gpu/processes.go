// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"context"
	"strings"
	"time"
)

// APIs is a set of the kinds of API by which a process uses a GPU.
type APIs uint8

// These constants are the kinds of API.
const (
	// Compute is CUDA and OpenCL.
	Compute APIs = 1 << iota
	// Graphics is Vulkan and OpenGL.
	Graphics
	// Video is the GPU's encoder and decoder.
	Video
)

// Kinds lists the kinds of API with their names.
var Kinds = []struct {
	API  APIs
	Name string
}{{Compute, "compute"}, {Graphics, "graphics"}, {Video, "video"}}

// Has reports whether the set contains every kind of another set.
func (a APIs) Has(other APIs) bool { return a&other == other }

// Names returns the names of the kinds in the set, joined by " and ".
func (a APIs) Names() string { return a.join(" and ", func(name string) string { return name }) }

// Type returns the set in nvidia-smi's form of a process type: "C", "G" or
// "C+G". Type adds "V" for video, which nvidia-smi does not show.
func (a APIs) Type() string {
	return a.join("+", func(name string) string { return strings.ToUpper(name[:1]) })
}

func (a APIs) join(separator string, format func(string) string) string {
	var parts []string
	for _, kind := range Kinds {
		if a.Has(kind.API) {
			parts = append(parts, format(kind.Name))
		}
	}
	return strings.Join(parts, separator)
}

// Process is a process that uses a GPU, as the driver reports it.
type Process struct {
	// PID is the process id in the agent's pid namespace, which is the host's.
	PID int
	// Bytes is the physical memory that the process holds on the GPU, contexts
	// included. Bytes is 0 if the driver does not report the memory.
	Bytes uint64
	// APIs are the kinds of API by which the process uses the GPU.
	APIs APIs
}

// videoWindow is the time for which a process counts as a user after its last use of the video
// engines. The driver lists sessions of the encoder, but only samples of the decoder.
const videoWindow = 2 * time.Second

// Processes returns the processes that use each GPU, by UUID. Processes omits
// GPUs that do not answer. Processes waits as long as Refresh, and does not
// change the inventory.
func (i *Inventory) Processes(ctx context.Context) (map[string][]Process, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	processes, err := ask(ctx, i, func() (map[string][]Process, error) { return users(i.driver) })
	if err != nil {
		return nil, i.explain(err)
	}
	return processes, nil
}

// ask calls the driver when it is the caller's turn.
func ask[T any](ctx context.Context, i *Inventory, call func() (T, error)) (T, error) {
	var none T
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
		return Do(ctx, &i.calls, call)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// users lists the processes, and marks the processes that the driver measured on a video
// engine.
func users(d Driver) (map[string][]Process, error) {
	processes, err := d.Processes()
	if err != nil {
		return nil, err
	}
	samples, err := d.Samples(time.Now().Add(-videoWindow))
	if err != nil {
		return nil, err
	}
	markVideo(processes, samples)
	return processes, nil
}

// markVideo adds Video to the processes whose samples show use of a video
// engine. markVideo ignores samples of unlisted processes, which have ended.
func markVideo(processes map[string][]Process, samples map[string][]Sample) {
	for uuid, running := range processes {
		onEngine := map[int]bool{}
		for _, s := range samples[uuid] {
			if s.onEngine() {
				onEngine[s.PID] = true
			}
		}
		for k := range running {
			if onEngine[running[k].PID] {
				running[k].APIs |= Video
			}
		}
	}
}
