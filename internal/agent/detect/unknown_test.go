// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// newer writes the next release's version into a page, behind the page's magic.
func (h *house) newer(page string) {
	h.Helper()
	path := filepath.Join(h.dir, page)
	content, err := os.ReadFile(path)
	if err != nil {
		h.Fatal(err)
	}
	binary.LittleEndian.PutUint32(content[8:], binary.LittleEndian.Uint32(content[8:])+1)
	if err := os.WriteFile(path, content, 0o666); err != nil {
		h.Fatal(err)
	}
}

// lease takes a lease on the container's usage page, as root in the container can, until the
// returned function is called.
func (h *house) lease() (release func()) {
	h.Helper()
	f, err := os.Open(filepath.Join(h.dir, limits.UsageFile))
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { f.Close() })
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		h.Fatal(err)
	}
	return func() { f.Close() }
}

// TestPagesOfAnotherReleaseStopNobody checks that an upgrade stops no running process. Pages of
// another release cannot identify processes that bypass the interposer.
func TestPagesOfAnotherReleaseStopNobody(t *testing.T) {
	h := newHouse(t)
	h.restart(config.Detection{Action: config.DetectStop, HostAction: config.DetectReport})
	child := h.process(ours+containerID, 400*mib)
	h.newer(limits.LimitsFile)
	h.newer(limits.UsageFile)
	h.round()
	h.wantTold()
	if h.ended(child) {
		t.Fatal("a process was stopped, as another release wrote its container's pages")
	}
	// The limit comes from the ledger.
	h.processes[gpuA][0].Bytes = 1100 * mib
	h.round()
	h.wantTold("p VGPUUsageForged")
}

// TestAVersionOfTheTenantsIsDamage checks that a tenant cannot hide a finding by writing another
// version to its usage page.
func TestAVersionOfTheTenantsIsDamage(t *testing.T) {
	h := newHouse(t)
	h.restart(config.Detection{Action: config.DetectStop, HostAction: config.DetectReport})
	child := h.process(ours+containerID, 400*mib)
	h.newer(limits.UsageFile)
	h.round()
	if !h.ended(child) {
		t.Error("a process that bypasses the limits was not stopped")
	}
	h.wantTold("p VGPUBypassed", "p VGPUStopped", "p VGPUUsageForged")
}

func TestBroken(t *testing.T) {
	h := newHouse(t)
	for err, want := range map[error]bool{
		limits.ErrForeign:   true,
		limits.ErrTruncated: true,
		limits.ErrCorrupt:   true,
		limits.ErrVersion:   true, // the limits page has this release's version
		unix.EMFILE:         false,
		unix.ENFILE:         false,
		unix.ENOMEM:         false,
		unix.EIO:            false,
		fs.ErrNotExist:      false,
	} {
		if got := broken(h.dir, fmt.Errorf("usage: %w", err)); got != want {
			t.Errorf("%v: got %v", err, got)
		}
	}
	h.newer(limits.LimitsFile)
	if broken(h.dir, limits.ErrVersion) {
		t.Error("both pages are of another release, and the tenant is blamed")
	}
}

// Processes lists the processes while descriptors are available.
func (e exhausted) Processes(ctx context.Context) (map[string][]gpu.Process, error) {
	e.have(e.before)
	return e.house.Processes(ctx)
}

// exhausted is a simulated node whose agent has no free descriptor whenever it opens a page.
type exhausted struct {
	*house
	before uint64
}

func newExhausted(h *house) exhausted {
	h.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		h.Fatal(err)
	}
	e := exhausted{h, limit.Cur}
	h.Cleanup(func() { e.have(e.before) })
	h.detector.GPUs = e
	h.detector.Dir = func(string, string) (string, error) {
		e.have(0)
		return h.dir, nil
	}
	h.detector.Registered = func(registry.Process) bool { // called after the pages were read
		e.have(e.before)
		return false
	}
	return e
}

// have limits the number of descriptors.
func (e exhausted) have(descriptors uint64) {
	e.Helper()
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	limit.Cur = descriptors
	if err = errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)); err != nil {
		e.Fatal(err)
	}
}

// TestAnAgentWithoutDescriptorsStopsNobody checks that an agent without descriptors reads no page,
// and does not blame the tenant.
func TestAnAgentWithoutDescriptorsStopsNobody(t *testing.T) {
	h := newHouse(t)
	h.restart(config.Detection{Action: config.DetectStop, HostAction: config.DetectReport})
	child := h.process(ours+containerID, 400*mib)
	e := newExhausted(h)
	h.round()
	e.have(e.before)
	h.wantTold()
	if h.ended(child) {
		t.Error("a process was stopped, as the agent could not open its container's page")
	}
}

// TestABusyPageHidesNothingForLong checks that the detector reads a busy page again, and that a
// page that stays busy reports no use.
func TestABusyPageHidesNothingForLong(t *testing.T) {
	h := newHouse(t)
	h.process(ours+containerID, 400*mib)
	release := h.lease()
	h.round()
	h.wantTold()
	if got := h.observed(); got != 0 {
		t.Errorf("observed are %d bytes", got)
	}
	h.detector.patience = 0
	h.round()
	h.wantTold("p VGPUBypassed", "p VGPUUsageForged container main prevents", "p VGPUUsageForged container main holds")
	h.round()
	h.wantTold()
	if got := h.observed(); got != 400*mib {
		t.Errorf("observed are %d bytes", got)
	}
	release()
	h.round()
	if len(h.detector.busy) != 0 {
		t.Error("a page that can be read again is still held to be busy")
	}
}

// TestABusyPageUndoesNoFinding checks that the detector finds a tenant that notices the first check
// and then keeps its page busy.
func TestABusyPageUndoesNoFinding(t *testing.T) {
	h := newHouse(t)
	h.process(ours+containerID, 400*mib)
	p, ok := h.detector.look(t.Context())
	if !ok {
		t.Fatal("nothing was seen")
	}
	findings, mismatches := certain(h.detector.judge(p)), h.detector.certain(p.compare())
	h.lease()
	if p, ok = h.detector.look(t.Context()); !ok {
		t.Fatal("nothing was seen")
	}
	findings, mismatches = confirmFindings(findings, h.detector.judge(p)), confirmMismatches(mismatches, p.compare())
	if len(findings) != 1 || findings[0].kind != Bypass || len(mismatches) != 1 {
		t.Errorf("confirmed are %+v and %+v", findings, mismatches)
	}
}

// TestABusyPageTakesNoObservationBack checks that the observation of a container stays while its
// page is busy.
func TestABusyPageTakesNoObservationBack(t *testing.T) {
	h := newHouse(t)
	h.registered = true
	h.process(ours+containerID, 400*mib)
	h.round()
	h.lease()
	h.processes[gpuA][0].Bytes = 500 * mib
	h.round()
	if got := h.observed(); got != 500*mib {
		t.Errorf("observed are %d bytes", got)
	}
}

func TestJudgeOfAnUnknownPage(t *testing.T) {
	a := placement.Device{UUID: "GPU-a", MemoryBytes: 1000 * mib}
	tests := []struct {
		name       string
		uuid       string
		apis       gpu.APIs
		registered bool
		want       Kind // "" for a process that is allowed
	}{
		{"may have a slot", "GPU-a", gpu.Compute, false, unsure},
		{"registered", "GPU-a", gpu.Compute, true, ""},
		{"another GPU", "GPU-b", gpu.Compute, true, Bypass},
		{"draws", "GPU-a", gpu.Graphics, true, Bypass},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &picture{containers: map[string]container{"c": {Allocation: allocation(a), interposed: true, unknown: true}}}
			s := sighting{Process: registry.Process{PID: 1, InnerPID: 7, Place: at("u", "c")}, uuid: tt.uuid, apis: tt.apis}
			kind, ok := p.judge(s, func(registry.Process) bool { return tt.registered }, 0)
			if kind != tt.want || ok != (tt.want == "") {
				t.Errorf("got %q, %v", kind, ok)
			}
		})
	}
	if got := certain([]finding{{kind: unsure}, {kind: Bypass}}); len(got) != 1 || got[0].kind != Bypass {
		t.Errorf("certain are %+v", got)
	}
}

// TestRefusalsOutliveAnUnknownPage checks that the detector does not repeat reported refusals after
// the page was unknown.
func TestRefusalsOutliveAnUnknownPage(t *testing.T) {
	h := newHouse(t)
	c := container{Allocation: h.holders[containerID], made: time.Now(), before: limits.Usage{Devices: []limits.DeviceUsage{{Refusals: 3}}}}
	look := func(c container) {
		h.detector.reportRefusals(&picture{containers: map[string]container{containerID: c}})
	}
	look(c)
	h.wantTold("p VGPUMemoryLimitReached")
	look(container{Allocation: c.Allocation, made: c.made, unknown: true})
	look(container{Allocation: c.Allocation, made: c.made, busy: true})
	look(c)
	h.wantTold()
}
