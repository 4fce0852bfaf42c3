// SPDX-License-Identifier: Apache-2.0

package limits_test

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// These constants are offsets of the usage page, as declared in internal/layout.
const (
	highWaterOffset = 24
	slotsOffset     = 4096
	slotSize        = 2112
	slotDevice0     = 64

	device0      = 64
	peakOffset   = 88
	refusals0    = 64 + 16*128
	wayCountSize = 8
	distrust0    = refusals0 + 16*13*wayCountSize
)

// usagePage is a page on which the test simulates the processes.
type usagePage struct {
	t    *testing.T
	path string
}

func newUsagePage(t *testing.T, devices ...limits.Device) usagePage {
	t.Helper()
	dir := t.TempDir()
	if err := limits.Create(dir, devices); err != nil {
		t.Fatal(err)
	}
	return usagePage{t, filepath.Join(dir, limits.UsageFile)}
}

func (p usagePage) put(offset int64, content []byte) {
	p.t.Helper()
	f, err := os.OpenFile(p.path, os.O_WRONLY, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(content, offset); err != nil {
		p.t.Fatal(err)
	}
}

func (p usagePage) putWords(offset int64, words ...uint64) {
	p.t.Helper()
	var raw []byte
	for _, w := range words {
		raw = binary.LittleEndian.AppendUint64(raw, w)
	}
	p.put(offset, raw)
}

// hold locks slot i as its process would, until the test ends.
func (p usagePage) hold(i int64) {
	p.t.Helper()
	f, err := os.OpenFile(p.path, os.O_RDWR, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { f.Close() })
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: slotsOffset + i*slotSize, Len: slotSize}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		p.t.Fatal(err)
	}
}

func (p usagePage) read() limits.Usage {
	p.t.Helper()
	usage, err := limits.ReadUsage(p.path)
	if err != nil {
		p.t.Fatal(err)
	}
	return usage
}

func TestReadUsageCountsTheLiving(t *testing.T) {
	p := newUsagePage(t, device(gpuA, 1<<30, 1))
	p.put(highWaterOffset, []byte{3})
	for i := range int64(3) {
		slot := slotsOffset + i*slotSize
		p.putWords(slot, 100+uint64(i), uint64(7*time.Second))
		p.put(slot+16, []byte("train\x1b[31m"))
		p.putWords(slot+slotDevice0, 1000, 10, 3000, 512, 1e9, 2e9, 5, 1, uint64(limits.WayPitch)<<56|4096)
	}
	p.putWords(device0+16, 3e9, 4e9, 6) // of ended processes
	p.hold(0)
	p.hold(2)

	got := p.read()
	perProcess := limits.DeviceUsage{
		UsedBytes: 1000, PendingBytes: 10, ContextBytes: 512, PeakBytes: 3000, GPUTime: time.Second, Wait: 2 * time.Second,
		Launches: 5, Refusals: 1, LastRefusal: limits.Refusal{Way: limits.WayPitch, Bytes: 4096},
	}
	process := func(pid uint32) limits.ProcessUsage {
		return limits.ProcessUsage{
			PID: pid, Name: "train?[31m", Attached: 7 * time.Second,
			Devices: []limits.ProcessDeviceUsage{{DeviceUsage: perProcess}},
		}
	}
	want := limits.Usage{
		Devices: []limits.DeviceUsage{{
			UsedBytes: 2000, PendingBytes: 20, ContextBytes: 1024, PeakBytes: 3000,
			GPUTime: 5 * time.Second, Wait: 8 * time.Second, Launches: 16,
		}},
		Processes: []limits.ProcessUsage{process(100), process(102)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestReadUsageOfPeaks checks that a container's peak is the largest of its claim, the peak of any
// process, and the current sum of all processes.
func TestReadUsageOfPeaks(t *testing.T) {
	for _, c := range []struct {
		name                        string
		used, process, whole, claim uint64
	}{
		{"the container's", 100, 200, 5000, 5000},
		{"a process's", 100, 300, 250, 300},
		{"sum of all processes", 400, 300, 200, 800},
		{"out of bounds", 100, 200, math.MaxUint64, 1 << 50},
	} {
		p := newUsagePage(t, device(gpuA, 1<<30, 1))
		p.put(highWaterOffset, []byte{2})
		p.putWords(device0+peakOffset, c.whole)
		for i := range int64(2) {
			p.putWords(slotsOffset+i*slotSize+slotDevice0, c.used, 0, c.process/uint64(i+1))
			p.hold(i)
		}
		if got := p.read().Devices[0].PeakBytes; got != c.claim {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.claim)
		}
	}
}

// TestReadUsageOfNames checks that names are safe for a terminal: a tenant may write any bytes as a
// name.
func TestReadUsageOfNames(t *testing.T) {
	p := newUsagePage(t)
	p.put(highWaterOffset, []byte{1})
	p.hold(0)
	for written, want := range map[string]string{
		"python3\x00old rest": "python3", "sixteen bytes lo": "sixteen bytes lo", "a\xffb": "a?b", "\xe4\xb8\xad": "\u4e2d", "\x00": "",
	} {
		p.put(slotsOffset+16, append([]byte(written), make([]byte, 16-len(written))...))
		if got := p.read().Processes[0].Name; got != want {
			t.Errorf("%q is read as %q, want %q", written, got, want)
		}
	}
}

// TestReadUsageOfTheContainer checks the counts of refusals by way, and a container's peak that
// exceeds the peak of each process.
func TestReadUsageOfTheContainer(t *testing.T) {
	p := newUsagePage(t, device(gpuA, 1<<30, 1), device(migA, 1<<30, 1))
	p.putWords(device0, 7, uint64(limits.WayVMM)<<56|512)
	p.putWords(device0+peakOffset, 5000)
	p.putWords(refusals0+wayCountSize*int64(limits.WayAlloc), 2)
	p.putWords(refusals0+wayCountSize*int64(limits.WayVMM), 4)
	p.putWords(refusals0+wayCountSize*limits.WayCount+wayCountSize*int64(limits.WayPool), math.MaxUint64)

	got := p.read().Devices
	want := [limits.WayCount]uint64{limits.WayAlloc: 2, limits.WayVMM: 4, limits.WayNone: 1} // refusals without a way
	if got[0].Refusals != 7 || got[0].RefusalsByWay != want || got[0].PeakBytes != 5000 {
		t.Errorf("%+v", got[0])
	}
	if got[1].RefusalsByWay[limits.WayPool] > math.MaxInt64 || got[1].PeakBytes != 0 {
		t.Errorf("%+v", got[1])
	}
}

func TestReadUsageBoundsClaims(t *testing.T) {
	p := newUsagePage(t, device(gpuA, 1<<30, 1))
	p.put(highWaterOffset, []byte{2})
	for i := range int64(2) {
		words := make([]uint64, 9)
		for j := range words {
			words[j] = math.MaxUint64
		}
		p.putWords(slotsOffset+i*slotSize+slotDevice0, words...)
		p.hold(i)
	}
	got := p.read().Devices[0]
	if got.UsedBytes != 2<<50 || got.PendingBytes != 2<<50 || got.GPUTime != math.MaxInt64 || got.Wait != math.MaxInt64 {
		t.Errorf("hostile claims are not clamped: %+v", got)
	}
	if want := uint64(2 * (math.MaxInt64 / 2048)); got.Launches != want { // the sum of 1024 such claims does not overflow
		t.Errorf("%d launches, want %d", got.Launches, want)
	}
}

func TestWayNames(t *testing.T) {
	for way := limits.WayNone; way <= limits.WayModule; way++ {
		if name := way.String(); name == "" || name == "unknown" {
			t.Errorf("way %d has no name", way)
		}
	}
	for _, way := range []limits.Way{limits.WayCount, 200} {
		if name := way.String(); name != "unknown" {
			t.Errorf("way %d is called %q", way, name)
		}
	}
}

func TestReadUsageBoundsMeasurements(t *testing.T) {
	for _, c := range []struct {
		name    string
		written [4]uint32
		want    limits.Distrust
	}{
		{"an interposer of before", [4]uint32{}, limits.Distrust{}},
		{"a card", [4]uint32{3, 4, 50_000, 2_000_000}, limits.Distrust{Uncharged: 3, Aliased: 4, DriftPPM: 50, Slice: 2 * time.Millisecond}},
		{"a slow clock", [4]uint32{0, 0, math.MaxUint32 - 99_999, 0}, limits.Distrust{DriftPPM: -100}},
		{"the worst clock", [4]uint32{0, 0, 1_000_000, 0}, limits.Distrust{DriftPPM: 1000}},
		{"no clock", [4]uint32{0, 0, 1_000_001, 0}, limits.Distrust{}},
		{"no clock, slow", [4]uint32{0, 0, 1 << 31, 0}, limits.Distrust{}},
		{"the longest slice", [4]uint32{0, 0, 0, 1_000_000_000}, limits.Distrust{Slice: time.Second}},
		{"no slice", [4]uint32{0, 0, 0, 1_000_000_001}, limits.Distrust{}},
		{"all ones", [4]uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32}, limits.Distrust{Uncharged: math.MaxUint32, Aliased: math.MaxUint32, DriftPPM: -0.001}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newUsagePage(t, device(gpuA, 1<<30, 1), device(gpuB, 1<<30, 1))
			var raw []byte
			for _, word := range c.written {
				raw = binary.LittleEndian.AppendUint32(raw, word)
			}
			p.put(distrust0+16, raw)
			got := p.read()
			if got.Devices[1].Distrust != c.want || got.Devices[0].Distrust != (limits.Distrust{}) {
				t.Errorf("read %+v, want none and %+v", got.Devices, c.want)
			}
		})
	}
}
