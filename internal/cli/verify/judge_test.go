// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/driverlib"
	"github.com/nri-vgpu/nri-vgpu/interposer/symbols"
)

func TestJudgeShares(t *testing.T) {
	const full = 100.0
	for _, c := range []struct {
		name    string
		tenants []measured
		want    Verdict
	}{
		{"exact", []measured{{limit: 30, got: 30, reach: full, sum: full}}, Holds},
		{"at the upper bound", []measured{{limit: 30, got: 32, reach: full, sum: full}}, Holds},
		{"more than the limit", []measured{{limit: 30, got: 32.1, reach: full, sum: full}}, DoesNotHold},
		{"at the lower bound", []measured{{limit: 30, got: 28, reach: full, sum: full}}, Holds},
		{"less than the limit", []measured{{limit: 30, got: 27.9, reach: full, sum: full}}, DoesNotHold},
		{"no more can be had without limits", []measured{{limit: 80, got: 60, reach: 61, sum: full}}, Holds},
		{"less than can be had without limits", []measured{{limit: 80, got: 50, reach: 61, sum: full}}, DoesNotHold},
		{"more, with a launch that is cut", []measured{{limit: 30, got: 33, reach: full, sum: full, cut: 1}}, Holds},
		{"time lost at switches", []measured{{limit: 60, got: 53, reach: full, sum: 90}}, Holds},
		{"more than is lost at switches", []measured{{limit: 60, got: 51, reach: full, sum: 90}}, DoesNotHold},
		{"a sum beyond all raises nothing", []measured{{limit: 60, got: 60, reach: full, sum: 110}}, Holds},
		{"one of two", []measured{
			{limit: 30, got: 30, reach: full, sum: full}, {limit: 60, got: 66, reach: full, sum: full},
		}, DoesNotHold},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, bound, figure := judgeShares(c.tenants); got != c.want {
				t.Errorf("%s, bound %s, figure %s; want %s", got, bound, figure, c.want)
			}
		})
	}
}

func TestJudgeMemory(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct {
		name string
		f    filled
		want Verdict
	}{
		{"all but the context", filled{limit: gib, granted: gib - 512*mib, context: 512 * mib, held: gib, err: 2}, Holds},
		{"a byte too many by its own count", filled{limit: gib, granted: gib - 512*mib + 1, context: 512 * mib, held: gib, err: 2}, DoesNotHold},
		{"a byte too many by NVML", filled{limit: gib, granted: gib / 4, context: 512 * mib, held: gib + 1, err: 2}, DoesNotHold},
		{"another error", filled{limit: gib, granted: gib - 512*mib, context: 512 * mib, held: gib, err: 999}, DoesNotHold},
		{"no refusal", filled{limit: gib, granted: gib / 2, context: gib / 2, held: gib}, DoesNotHold},
		{"less than 1 % left", filled{limit: gib, granted: gib - 8*mib, held: gib - 8*mib, err: 2}, Holds},
		{"more than 1 % left", filled{limit: gib, granted: gib - 12*mib, held: gib - 12*mib, err: 2}, DoesNotHold},
		{"contexts are not known", filled{limit: gib, granted: gib - 300*mib, context: 100 * mib, err: 2, vague: true}, Holds},
		{"more than two contexts left", filled{limit: gib, granted: gib - 301*mib, context: 100 * mib, err: 2, vague: true}, DoesNotHold},
		{"no room for a piece", filled{limit: gib, granted: gib - 511*mib, held: gib - 511*mib, piece: 512 * mib, err: 2}, Holds},
		{"room for a piece", filled{limit: gib, granted: gib - 512*mib, held: gib - 512*mib, piece: 512 * mib, err: 2}, DoesNotHold},
		{"a way that does not reach so far", filled{limit: gib, granted: 10 * mib, held: 10 * mib, err: 2, short: true}, Holds},
		{"such a way beyond the limit", filled{limit: gib, granted: 2 * gib, held: 2 * gib, err: 2, short: true}, DoesNotHold},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, bound, figure := judgeMemory(c.f); got != c.want {
				t.Errorf("%s, bound %s, figure %s; want %s", got, bound, figure, c.want)
			}
		})
	}
}

func TestJudgeScene(t *testing.T) {
	native := played{took: time.Second, broken: 1}
	for _, c := range []struct {
		name    string
		limited played
		want    Verdict
	}{
		{"in proportion", played{took: 2 * time.Second, broken: 1}, Holds},
		{"too slow", played{took: 2500 * time.Millisecond}, DoesNotHold},
		{"hangs", played{hangs: true}, DoesNotHold},
		{"fails", played{took: time.Second, err: "cuLaunchKernel"}, DoesNotHold},
		{"breaks more", played{took: time.Second, broken: 2}, DoesNotHold},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, bound, figure := judgeScene(native, c.limited, 50); got != c.want {
				t.Errorf("%s, bound %s, figure %s; want %s", got, bound, figure, c.want)
			}
		})
	}
}

func TestJudgeLatency(t *testing.T) {
	native := waiting{P50: 2.2, P99: 3.3}
	for p99, want := range map[float64]Verdict{1.5: Holds, 3.39: Holds, 3.41: DoesNotHold} {
		if got, _, figure := judgeLatency(native, waiting{P99: p99}); got != want {
			t.Errorf("%s: %s, want %s", figure, got, want)
		}
	}
}

func TestRegime(t *testing.T) {
	const uuid, pid, none = "GPU-a", 42, 1<<64 - 1
	seen := func(processes ...process) view {
		var v view
		v.NVML.Devices = []device{{UUID: "GPU-b"}, {UUID: uuid, Processes: processes}}
		return v
	}
	absent := seen()
	absent.NVML.Message = "libnvidia-ml.so.1: cannot open"
	for _, c := range []struct {
		want          string
		before, after view
	}{
		{regimeBytes, seen(), seen(process{7, 3}, process{pid, 512 << 20})},
		{regimeZero, seen(), seen(process{pid, 0})},
		{regimeNone, seen(), seen(process{pid, none})},
		{regimeHost, seen(process{7, 3}), seen(process{7, 3}, process{90001, 512 << 20})},
		{regimeHidden, seen(process{7, 3}), seen(process{7, 3})},
		{regimeAbsent, absent, absent},
		{regimeAbsent, view{}, view{}},
	} {
		s := start{PID: pid, UUID: uuid, Before: c.before, After: c.after}
		if got := s.regime(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if err := (start{UUID: uuid, Before: seen(process{7, 3})}).busy(); err == nil || !strings.Contains(err.Error(), "1 processes") {
		t.Errorf("a GPU that is used: %v", err)
	}
	if err := (start{UUID: uuid, Before: seen()}).busy(); err != nil {
		t.Errorf("a GPU that is free: %v", err)
	}
}

func TestJudgeDriver(t *testing.T) {
	pass, refuse := driverlib.Unknown{Name: "cuGetNew", Treatment: symbols.Pass}, driverlib.Unknown{Name: "cuMemAllocNew", Treatment: symbols.Refuse}
	for _, c := range []struct {
		got  Row
		want Verdict
		why  string
	}{
		{start{Lookups: 88}.lookupsRow(), Holds, ""},
		{start{Lookups: 88, LookupsDiffer: []string{"cuInit"}}.lookupsRow(), DoesNotHold, "cuInit"},
		{start{}.lookupsRow(), DoesNotHold, ""}, // no look-up succeeded
		{judgeNames(nil), Holds, ""},
		{judgeNames([]driverlib.Unknown{pass}), Holds, ""},
		{judgeNames([]driverlib.Unknown{pass, refuse}), DoesNotHold, "cuMemAllocNew"},
	} {
		if c.got.Verdict != c.want || c.got.Why != c.why {
			t.Errorf("got %+v, want %s because of %q", c.got, c.want, c.why)
		}
	}
}

func TestFacts(t *testing.T) {
	for want, got := range map[string]Fact{
		"2.00 ms, a switch 200 µs":       turns{Switches: 9, OursMS: 2, OthersMS: 2.4}.fact(),
		"no switches seen":               turns{Switches: 1, OursMS: 2}.fact(),
		"8 for a context":                queues{Connections: 8, Streams: 40}.fact(),
		"no two of 40 streams share one": queues{Streams: 40}.fact(),
		"+49.9 ppm over 60 s":            drift{Seconds: 60.01, PPM: 49.91}.fact(),
	} {
		if got.Value != want {
			t.Errorf("%s is %q, want %q", got.Name, got.Value, want)
		}
	}
}
