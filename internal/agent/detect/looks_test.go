// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// TestHowOftenADriverIsAsked checks that the detector checks a node without problems once, and a
// node with a problem three times.
func TestHowOftenADriverIsAsked(t *testing.T) {
	h := newHouse(t)
	asked := 0
	h.ask = func(context.Context) (map[string][]gpu.Process, error) { asked++; return h.processes, nil }
	h.round()
	if asked != 1 {
		t.Errorf("with nothing amiss it was asked %d times, want once", asked)
	}
	h.process("/system.slice", mib)
	h.round()
	if asked != 1+looks {
		t.Errorf("with a finding it was asked %d times, want %d", asked-1, looks)
	}
}

func TestADriverThatDoesNotAnswerIsLoggedOnce(t *testing.T) {
	h := newHouse(t)
	var log bytes.Buffer
	h.detector.Log = slog.New(slog.NewTextHandler(&log, nil))
	for i, step := range []struct {
		err   error
		lines int
	}{{nil, 0}, {errors.New("hangs"), 1}, {errors.New("hangs"), 1}, {errors.New("is lost"), 2}, {nil, 2}, {errors.New("is lost"), 3}} {
		h.err = step.err
		h.round()
		if lines := strings.Count(log.String(), "\n"); lines != step.lines {
			t.Errorf("step %d: %d lines were logged, want %d:\n%s", i, lines, step.lines, &log)
		}
	}
}

// TestPagesOfSeenContainersAreReadAgain checks that the detector reads the pages again after the
// query of the driver. A process may take its slot during the query.
func TestPagesOfSeenContainersAreReadAgain(t *testing.T) {
	h := newHouse(t)
	p := &picture{
		containers: map[string]container{"seen": h.detector.open(t.Context(), h.holders[containerID]), "idle": h.detector.open(t.Context(), h.holders[containerID])},
		sightings:  []sighting{{Process: registry.Process{Place: registry.Place{Container: "seen"}}}},
	}
	h.detector.lookAgain(t.Context(), p)
	if len(p.containers["seen"].after.Devices) != 1 {
		t.Error("the page of a container that was seen was not read again")
	}
	if len(p.containers["idle"].after.Devices) != 0 {
		t.Error("the page of a container that was not seen was read again")
	}
	h.ask = func(context.Context) (map[string][]gpu.Process, error) { return h.processes, nil }
	h.process(ours+containerID, mib)
	p, ok := h.detector.look(t.Context())
	if !ok || len(p.containers[containerID].after.Devices) != 1 {
		t.Error("a look does not read it again")
	}
}

func TestContainersThatHaveGoneAreForgotten(t *testing.T) {
	h := newHouse(t)
	h.round()
	if !h.detector.seen[containerID] || len(h.detector.observed) != 1 {
		t.Errorf("seen are %v, observed %v", h.detector.seen, h.detector.observed)
	}
	h.holders = map[string]placement.Allocation{}
	h.round()
	if len(h.detector.seen) != 0 || len(h.detector.observed) != 0 {
		t.Errorf("still known are %v and %v", h.detector.seen, h.detector.observed)
	}
}

// TestRefusalsBesideBusyPages checks that a container with an unreadable page does not delay the
// report of another container's refusals.
func TestRefusalsBesideBusyPages(t *testing.T) {
	h := newHouse(t)
	page := func(refusals uint64) limits.Usage {
		return limits.Usage{Devices: []limits.DeviceUsage{{Refusals: refusals}}}
	}
	all := map[string]container{"one": {Allocation: h.holders[containerID], before: page(0)}}
	for i := range 20 {
		all[fmt.Sprint("busy", i)] = container{Allocation: h.holders[containerID], before: page(5), busy: i%2 == 0, unknown: i%2 == 1}
	}
	h.detector.reportRefusals(&picture{containers: all})
	for refusals := range uint64(5) {
		all["one"] = container{Allocation: h.holders[containerID], before: page(refusals + 1)}
		h.detector.reportRefusals(&picture{containers: all})
		h.wantTold("p VGPUMemoryLimitReached")
	}
	if got := h.detector.refused["busy0"]; len(got) != 1 || got[0] != 5 {
		t.Errorf("a busy page has the use %v, want the use from the last read", got)
	}
}

func TestRefusalsOnTheSecondGPU(t *testing.T) {
	h := newHouse(t)
	held := h.holders[containerID]
	held.Devices = append(held.Devices, placement.Device{UUID: "GPU-2", MemoryBytes: 2000 * mib})
	for _, refusals := range []uint64{0, 3} {
		usage := limits.Usage{Devices: []limits.DeviceUsage{{}, {Refusals: refusals}}}
		h.detector.reportRefusals(&picture{containers: map[string]container{"one": {Allocation: held, before: usage}}})
	}
	h.wantTold(`p VGPUMemoryLimitReached container "main" reached its memory limit of 2000 MiB on GPU-2`)
}

func TestFindingsDescribeTheProcess(t *testing.T) {
	base := sighting{Process: registry.Process{PID: 7, Name: "train"}, uuid: gpuA, bytes: 3 << 20, apis: gpu.Compute}
	graphic := base
	graphic.apis = gpu.Graphics
	for name, tt := range map[string]struct {
		finding finding
		want    []string
	}{
		"around the interposer":           {finding{sighting: base, kind: Bypass}, []string{`process 7 ("train") holds 3 MiB of ` + gpuA, "bypasses its container's limits"}},
		"by graphics":                     {finding{sighting: graphic, kind: Bypass}, []string{"which the limits of its container do not cover"}},
		"without our files":               {finding{sighting: base, kind: Bypass, displaced: errors.New("gone")}, []string{"files were removed", ": gone: delete the pod"}},
		"given no GPU":                    {finding{sighting: base, kind: Pod}, []string{"nri-vgpu assigned its pod no GPU"}},
		"given no GPU, without our files": {finding{sighting: base, kind: Pod, displaced: errors.New("gone")}, []string{"nri-vgpu assigned its pod no GPU"}},
		"on the host":                     {finding{sighting: base, kind: Host}, []string{"outside of all pods"}},
		"on the host, by graphics":        {finding{sighting: graphic, kind: Host}, []string{"outside of all pods"}},
	} {
		for _, want := range tt.want {
			if line := tt.finding.line(); !strings.Contains(line, want) {
				t.Errorf("%s: %q lacks %q", name, line, want)
			}
		}
	}
}
