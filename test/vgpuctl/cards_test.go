package vgpuctl

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// newMachineOf makes a machine whose GPUs are as these lines of a configuration say.
func newMachineOf(t testing.TB, card string) *machine {
	t.Helper()
	m := newMachine(t)
	config := filepath.Join(t.TempDir(), "card.conf")
	if err := os.WriteFile(config, []byte("memory = 16GiB\n"+card+"\n[gpu]\n[gpu]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.run(filepath.Join(m.build, "gpusim/gpusim"), "destroy", m.state)
	m.run(filepath.Join(m.build, "gpusim/gpusim"), "create", "--config", config, m.state)
	return m
}

// TestComputeSharesOnCards: limits hold whatever the card's clock, slices and queues are like.
func TestComputeSharesOnCards(t *testing.T) {
	alone := []tenant{{30, "async", "20000"}}
	short := []tenant{{30, "async", "2000"}}
	waiting := []tenant{{30, "sync", "20000"}}
	pair := []tenant{{30, "async", "20000"}, {60, "async", "200"}}
	long := []tenant{{30, "async", "20000"}, {50, "async", "20000"}}
	for _, c := range []struct {
		name, card string
		env        string
		tenants    []tenant
		safe       bool // it may have less than its limit
	}{
		{"fast clock, alone", "clock_drift = 50ppm", "", alone, false},
		{"faster clock, waiting", "clock_drift = 100ppm", "", waiting, false},
		{"fast clock, short", "clock_drift = 100ppm", "", short, false},
		{"slow clock, alone", "clock_drift = -100ppm", "", alone, false},
		{"slewed clock, alone", "clock_slew = 500ppm\nclock_slew_period = 2s", "", alone, false},
		{"fast clock, pair", "clock_drift = 100ppm", "", pair, false},
		{"slow clock, pair", "clock_drift = -100ppm", "", pair, false},
		{"one queue, alone", "connections = 1", "", alone, false},
		{"one queue, short", "connections = 1", "", short, false},
		{"one queue by the environment", "", "CUDA_DEVICE_MAX_CONNECTIONS=1", short, false},
		{"stamped at once, alone", "idle_stamp = yes", "", alone, false},
		{"one queue, pair", "connections = 1", "", pair, true},
		{"stamped at once, pair", "idle_stamp = yes", "", pair, true},
		{"one queue, long pair", "connections = 1", "", long, true},
		{"stamped at once, long pair", "idle_stamp = yes", "", long, true},
		{"slices of an H200, pair", "slice = 2ms\nswitch = 200us", "", pair, false},
		{"slices of an H200, long pair", "slice = 2ms\nswitch = 200us", "", long, false},
		{"longest slices, pair", "slice = 30ms\nswitch = 200us", "", pair, false},
		{"longest slices, long pair", "slice = 30ms\nswitch = 200us", "", long, false},
		{"long pair", "", "", long, false},
		{"fast clock, long pair", "clock_drift = 100ppm", "", long, false},
		{"long slices, pair", "slice = 10ms\nswitch = 200us", "", pair, false},
	} {
		t.Run(c.name, timed.Test(func(t testing.TB) {
			m := newMachineOf(t, c.card)
			if c.env != "" {
				m.env = append(m.env, c.env)
			}
			shares := m.shares("cap", c.tenants)
			if !c.safe {
				wantLimits(t, c.tenants, shares)
				return
			}
			for i, share := range shares {
				t.Logf("limit %d: %.1f", c.tenants[i].limit, share)
				if limit := float64(c.tenants[i].limit); share > limit+over || share < limit/3 {
					t.Errorf("%+v had %.1f %% of the GPU's time", c.tenants[i], share)
				}
			}
		}))
	}
}
