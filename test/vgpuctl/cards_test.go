// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// profileDir contains the simulator's profiles of drivers and cards.
const profileDir = "../../gpusim/profiles"

// newMachineOf makes a machine with two GPUs of these profiles.
func newMachineOf(t testing.TB, profiles ...string) *machine {
	t.Helper()
	m := newMachine(t)
	gpusim := filepath.Join(m.build, "gpusim/gpusim")
	m.run(gpusim, "destroy", m.state)
	m.run(gpusim, "create", "--profile", strings.Join(profiles, ":"), "--gpus", "2", "--memory", "16GiB", m.state)
	return m
}

// newMachineWith makes a machine of these profiles with additional settings.
func newMachineWith(t testing.TB, settings string, profiles ...string) *machine {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.conf")
	if err := os.WriteFile(path, []byte(settings+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return newMachineOf(t, append(slices.Clone(profiles), path)...)
}

// cards returns the files of all cards, by name.
func cards(t testing.TB) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(profileDir, "cards", "*.conf"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("find the cards: %q, %v", paths, err)
	}
	named := map[string]string{}
	for _, path := range paths {
		named[strings.TrimSuffix(filepath.Base(path), ".conf")] = path
	}
	return named
}

// competition is a set of tenants that share a GPU.
type competition struct {
	name    string
	tenants []tenant
	env     string
}

var (
	alone    = competition{"alone", []tenant{{30, "async", "20000"}}, ""}
	short    = competition{"short", []tenant{{30, "async", "2000"}}, ""}
	waiting  = competition{"waiting", []tenant{{30, "sync", "20000"}}, ""}
	pair     = competition{"pair", []tenant{{30, "async", "20000"}, {60, "async", "200"}}, ""}
	longPair = competition{"long pair", []tenant{{30, "async", "20000"}, {50, "async", "20000"}}, ""}
	oneQueue = competition{"one queue by the environment", short.tenants, "CUDA_DEVICE_MAX_CONNECTIONS=1"}
)

// oddities lists cards for which TestComputeSharesOnCards needs exceptions.
var oddities = map[string]struct {
	driver string        // profile of a driver
	more   []competition // additional competitions
	safe   bool          // tenants that share the GPU may have less than their limits
}{
	"h200":            {driver: "r580-h200", more: []competition{waiting}},
	"fast-clock":      {more: []competition{short, waiting}},
	"one-queue":       {more: []competition{short}, safe: true},
	"eight-queues":    {more: []competition{oneQueue}},
	"stamped-at-once": {safe: true},
}

// TestComputeSharesOnCards checks that limits hold for every clock, slice length and number of
// queues of a card.
func TestComputeSharesOnCards(t *testing.T) {
	t.Parallel()
	for name, card := range cards(t) {
		odd := oddities[name]
		profiles := []string{card}
		if odd.driver != "" {
			profiles = []string{filepath.Join(profileDir, odd.driver+".conf"), card}
		}
		for _, c := range append([]competition{alone, pair, longPair}, odd.more...) {
			t.Run(name+", "+c.name, timed.Test(func(t testing.TB) {
				m := newMachineOf(t, profiles...)
				if c.env != "" {
					m.env = append(m.env, c.env)
				}
				shares := m.shares("cap", c.tenants)
				if odd.safe && len(c.tenants) > 1 {
					wantNoMore(t, c.tenants, shares)
				} else {
					wantLimits(t, c.tenants, shares)
				}
			}))
		}
	}
}

// wantNoMore checks that tenants had no more than their limits, and at least a third of their
// limits.
func wantNoMore(t testing.TB, tenants []tenant, shares []float64) {
	t.Helper()
	for i, share := range shares {
		t.Logf("limit %d: %.1f", tenants[i].limit, share)
		limit := float64(tenants[i].limit)
		wantShare(t, tenants[i], share, limit/3, limit+over)
	}
}

// TestOddCardsExist checks that every card with an exception exists.
func TestOddCardsExist(t *testing.T) {
	t.Parallel()
	all := cards(t)
	for name := range oddities {
		if all[name] == "" {
			t.Errorf("there is no card %s", name)
		}
	}
}

// TestClockVaries checks that a limit holds for a program that waits for each kernel, while the
// GPU's clock varies. The interposer measures such a program in samples, until the samples show that
// the length of the kernels varies.
func TestClockVaries(t *testing.T) {
	timed.Test(func(t testing.TB) {
		m := newMachineOf(t, filepath.Join(profileDir, "r580-h200.conf"), cards(t)["power-limited"])
		tenants := []tenant{{30, "sync", "200"}}
		pids := m.compete("cap", tenants)
		time.Sleep(3 * time.Second)
		wantLimits(t, tenants, m.sharesOf(pids, 8*time.Second))
	})(t)
}
