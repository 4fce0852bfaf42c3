// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

// TestMetricsOfNamesakes checks the metrics of pods of one name. A pod that was deleted by force
// may still run while its namesake runs.
func TestMetricsOfNamesakes(t *testing.T) {
	n, c, _ := populated(t)
	n.contain(strings.Repeat("d4", 32), "8fa3c2d1-1111-2222-3333-444455556666", "other", "main", limits.Device{UUID: first, MemoryBytes: 4 * gib, ComputePPM: 250_000})
	n.process(cgroup("8fa3c2d1-1111-2222-3333-444455556666", strings.Repeat("d4", 32)), first, gib, some(30.0))
	want := `
# HELP nri_vgpu_container_gpu_processes Processes of the container that use the GPU, as the driver lists them.
# TYPE nri_vgpu_container_gpu_processes gauge
nri_vgpu_container_gpu_processes{container="main",namespace="ns",pod="other",uuid="` + first + `"} 2
nri_vgpu_container_gpu_processes{container="main",namespace="ns",pod="other",uuid="` + second + `"} 1
nri_vgpu_container_gpu_processes{container="main",namespace="ns",pod="own",uuid="` + first + `"} 1
nri_vgpu_container_gpu_processes{container="side",namespace="ns",pod="own",uuid="` + first + `"} 1
# HELP nri_vgpu_container_utilisation_ratio Part of the GPU's time that the container used in the last second, as the driver samples it, 0 to 1.
# TYPE nri_vgpu_container_utilisation_ratio gauge
nri_vgpu_container_utilisation_ratio{container="main",namespace="ns",pod="other",uuid="` + first + `"} 0.3
nri_vgpu_container_utilisation_ratio{container="main",namespace="ns",pod="other",uuid="` + second + `"} 0.5
nri_vgpu_container_utilisation_ratio{container="main",namespace="ns",pod="own",uuid="` + first + `"} 0.2
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), "nri_vgpu_container_gpu_processes", "nri_vgpu_container_utilisation_ratio"); err != nil {
		t.Error(err)
	}
	for _, exporter := range []string{config.LegacyVolcano, config.LegacyMetaGPU} {
		if problems, err := testutil.CollectAndLint(c.Legacy(exporter), "none"); err != nil {
			t.Errorf("%s: %v, %v", exporter, problems, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	n, c, _ := populated(t)
	quarter := limits.Device{UUID: first, MemoryBytes: 4 * gib, ComputePPM: 250_000}
	n.contain(strings.Repeat("d4", 32), otherPod, "other", "new", quarter)
	// For one process on the first GPU the driver does not report the memory.
	want := `
# HELP nri_vgpu_container_gpu_processes Processes of the container that use the GPU, as the driver lists them.
# TYPE nri_vgpu_container_gpu_processes gauge
nri_vgpu_container_gpu_processes{container="main",namespace="ns",pod="other",uuid="` + first + `"} 1
nri_vgpu_container_gpu_processes{container="main",namespace="ns",pod="other",uuid="` + second + `"} 1
nri_vgpu_container_gpu_processes{container="main",namespace="ns",pod="own",uuid="` + first + `"} 1
nri_vgpu_container_gpu_processes{container="new",namespace="ns",pod="other",uuid="` + first + `"} 0
nri_vgpu_container_gpu_processes{container="side",namespace="ns",pod="own",uuid="` + first + `"} 1
# HELP nri_vgpu_container_used_memory_bytes GPU memory that the container's processes hold, as the driver reports it.
# TYPE nri_vgpu_container_used_memory_bytes gauge
nri_vgpu_container_used_memory_bytes{container="main",namespace="ns",pod="other",uuid="` + first + `"} 2.147483648e+09
nri_vgpu_container_used_memory_bytes{container="main",namespace="ns",pod="other",uuid="` + second + `"} 3.221225472e+09
nri_vgpu_container_used_memory_bytes{container="main",namespace="ns",pod="own",uuid="` + first + `"} 1.073741824e+09
nri_vgpu_container_used_memory_bytes{container="new",namespace="ns",pod="other",uuid="` + first + `"} 0
# HELP nri_vgpu_container_utilisation_ratio Part of the GPU's time that the container used in the last second, as the driver samples it, 0 to 1.
# TYPE nri_vgpu_container_utilisation_ratio gauge
nri_vgpu_container_utilisation_ratio{container="main",namespace="ns",pod="other",uuid="` + first + `"} 0.1
nri_vgpu_container_utilisation_ratio{container="main",namespace="ns",pod="other",uuid="` + second + `"} 0.5
nri_vgpu_container_utilisation_ratio{container="main",namespace="ns",pod="own",uuid="` + first + `"} 0.2
nri_vgpu_container_utilisation_ratio{container="new",namespace="ns",pod="other",uuid="` + first + `"} 0
# HELP nri_vgpu_gpu_used_memory_bytes GPU memory that processes hold, as the driver reports it.
# TYPE nri_vgpu_gpu_used_memory_bytes gauge
nri_vgpu_gpu_used_memory_bytes{uuid="` + second + `"} 3.221225472e+09
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want),
		"nri_vgpu_container_gpu_processes", "nri_vgpu_container_used_memory_bytes", "nri_vgpu_container_utilisation_ratio", "nri_vgpu_gpu_used_memory_bytes"); err != nil {
		t.Error(err)
	}
	// The node has four containers, and one container has two GPUs.
	for _, name := range []string{"gpu_seconds_total", "throttled_seconds_total", "launches_total", "accounted_memory_bytes", "peak_memory_bytes", "gpu_processes", "clock_drift_ratio", "slice_seconds"} {
		if got := testutil.CollectAndCount(c, "nri_vgpu_container_"+name); got != 5 {
			t.Errorf("%s has %d series, want 5", name, got)
		}
	}
	ways := limits.WayCount - 1
	if got := testutil.CollectAndCount(c, "nri_vgpu_container_refused_allocations_total"); got != 5*ways {
		t.Errorf("refused allocations have %d series, want 5 for each of %d ways", got, ways)
	}
	if got := testutil.CollectAndCount(c, "nri_vgpu_container_distrusted_probes_total"); got != 5*2 {
		t.Errorf("distrusted probes have %d series, want 5 for each of 2 causes", got)
	}
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) != 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

func TestMetricsWithoutTheDriver(t *testing.T) {
	n, c, _ := populated(t)
	n.err = errors.New("GPU is lost")
	if got := testutil.CollectAndCount(c, "nri_vgpu_container_used_memory_bytes"); got != 0 {
		t.Errorf("the memory of %d containers is reported without the driver", got)
	}
	if got := testutil.CollectAndCount(c, "nri_vgpu_container_gpu_seconds_total"); got != 4 {
		t.Errorf("the accounts of %d containers are reported, want 4", got)
	}
}

// TestMetricsWhileTheDriverHangs checks that a scrape waits a second for the driver, and then sends
// only the containers' accounts.
func TestMetricsWhileTheDriverHangs(t *testing.T) {
	documented.Bound(t, "waits for the driver", documented.Time(scrapePatience)+" for metrics")
	n, c, _ := populated(t)
	synctest.Test(t, func(t *testing.T) {
		n.hang = make(chan struct{})
		begin := time.Now()
		if got := testutil.CollectAndCount(c, "nri_vgpu_container_gpu_seconds_total"); got != 4 {
			t.Errorf("the accounts of %d containers are reported, want 4", got)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it took %v", took)
		}
		time.Sleep(patience) // all waits for the driver have ended
	})
}

func TestCommandBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "a process's name, command line and entries in procfs",
		documented.Time(commandPatience)+" for all", documented.Count(mostReading)+" command lines at a time")
}
