// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

func TestVolcanosNames(t *testing.T) {
	n, c, _ := populated(t)
	names := c.Legacy(config.LegacyVolcano)
	want := `
# HELP Device_utilization_desc_of_container GPU time that the container used, in percent.
# TYPE Device_utilization_desc_of_container gauge
Device_utilization_desc_of_container{ctrname="main",deviceuuid="` + first + `",podname="other",podnamespace="ns",vdeviceid="0",zone="vGPU"} 10
Device_utilization_desc_of_container{ctrname="main",deviceuuid="` + second + `",podname="other",podnamespace="ns",vdeviceid="1",zone="vGPU"} 50
Device_utilization_desc_of_container{ctrname="main",deviceuuid="` + first + `",podname="own",podnamespace="ns",vdeviceid="0",zone="vGPU"} 20
# HELP HostCoreUtilization GPU time that processes used, in percent.
# TYPE HostCoreUtilization gauge
HostCoreUtilization{deviceidx="1",deviceuuid="` + second + `",zone="vGPU"} 50
# HELP HostGPUMemoryUsage GPU memory that processes hold, in bytes.
# TYPE HostGPUMemoryUsage gauge
HostGPUMemoryUsage{deviceidx="1",deviceuuid="` + second + `",zone="vGPU"} 3.221225472e+09
# HELP vGPU_device_memory_usage_in_bytes GPU memory that the container's processes hold, in bytes.
# TYPE vGPU_device_memory_usage_in_bytes gauge
vGPU_device_memory_usage_in_bytes{ctrname="main",deviceuuid="` + first + `",podname="other",podnamespace="ns",vdeviceid="0",zone="vGPU"} 2.147483648e+09
vGPU_device_memory_usage_in_bytes{ctrname="main",deviceuuid="` + second + `",podname="other",podnamespace="ns",vdeviceid="1",zone="vGPU"} 3.221225472e+09
vGPU_device_memory_usage_in_bytes{ctrname="main",deviceuuid="` + first + `",podname="own",podnamespace="ns",vdeviceid="0",zone="vGPU"} 1.073741824e+09
`
	if err := testutil.CollectAndCompare(names, strings.NewReader(want), "Device_utilization_desc_of_container",
		"HostCoreUtilization", "HostGPUMemoryUsage", "vGPU_device_memory_usage_in_bytes"); err != nil {
		t.Error(err)
	}
	n.err = errors.New("GPU is lost")
	c.current = nil // drop the cached query
	if got := testutil.CollectAndCount(names); got != 4 {
		t.Errorf("without the driver %d series, want the limits of 4", got)
	}
}

func TestMetaGPUsNames(t *testing.T) {
	n, c, pids := populated(t)
	n.rooms = []placement.Room{{UUID: first, Index: 0, MemoryBytes: 16 * gib, FreeMemoryBytes: 4 * gib}}
	names := c.Legacy(config.LegacyMetaGPU)
	// The driver reports neither memory nor time of "side".
	series := func(name, pod, process, uuid, value string) string {
		return name + `{cmdline="python train?[2J.py",node_name="n1",pid="` + strconv.Itoa(pids[process]) + `",pod_name="` + pod +
			`",pod_namespace="ns",resource_name="cnvrg.io/metagpu",uuid="` + uuid + `"} ` + value + "\n"
	}
	want := `
# HELP metagpu_device_memory_share_size Memory of a share, in MiB.
# TYPE metagpu_device_memory_share_size gauge
metagpu_device_memory_share_size{device_index="0",device_uuid="` + first + `",node_name="n1",resource_name="cnvrg.io/metagpu"} 163
# HELP metagpu_device_shares Number of shares of the GPU.
# TYPE metagpu_device_shares gauge
metagpu_device_shares{device_index="0",device_uuid="` + first + `",node_name="n1",resource_name="cnvrg.io/metagpu"} 100
# HELP metagpu_process_metagpu_requests Shares that the pod requests.
# TYPE metagpu_process_metagpu_requests gauge
metagpu_process_metagpu_requests{node_name="n1",pod_name="other",pod_namespace="ns",resource_name="cnvrg.io/metagpu"} 25
metagpu_process_metagpu_requests{node_name="n1",pod_name="own",pod_namespace="ns",resource_name="cnvrg.io/metagpu"} 50
# HELP metagpu_process_max_allowed_metagpu_gpu_utilization Compute limit of the process's container, in percent.
# TYPE metagpu_process_max_allowed_metagpu_gpu_utilization gauge
` + series("metagpu_process_max_allowed_metagpu_gpu_utilization", "other", "other", first, "25") +
		series("metagpu_process_max_allowed_metagpu_gpu_utilization", "other", "second", second, "100") +
		series("metagpu_process_max_allowed_metagpu_gpu_utilization", "own", "main", first, "25") +
		series("metagpu_process_max_allowed_metagpu_gpu_utilization", "own", "side", first, "25") +
		`# HELP metagpu_process_memory_usage GPU memory that the process holds, in MiB.
# TYPE metagpu_process_memory_usage gauge
` + series("metagpu_process_memory_usage", "other", "other", first, "2048") +
		series("metagpu_process_memory_usage", "other", "second", second, "3072") +
		series("metagpu_process_memory_usage", "own", "main", first, "1024") +
		`# HELP metagpu_process_metagpu_relative_gpu_utilization GPU time that the process used, in percent of its container's compute limit.
# TYPE metagpu_process_metagpu_relative_gpu_utilization gauge
` + series("metagpu_process_metagpu_relative_gpu_utilization", "other", "other", first, "40") +
		series("metagpu_process_metagpu_relative_gpu_utilization", "other", "second", second, "50") +
		series("metagpu_process_metagpu_relative_gpu_utilization", "own", "main", first, "80") +
		`# HELP metagpu_process_metagpu_relative_memory_utilization GPU memory that the process holds, in percent of its container's memory limit.
# TYPE metagpu_process_metagpu_relative_memory_utilization gauge
` + series("metagpu_process_metagpu_relative_memory_utilization", "other", "other", first, "50") +
		series("metagpu_process_metagpu_relative_memory_utilization", "other", "second", second, "18.75") +
		series("metagpu_process_metagpu_relative_memory_utilization", "own", "main", first, "25")
	if err := testutil.CollectAndCompare(names, strings.NewReader(want), "metagpu_device_memory_share_size",
		"metagpu_device_shares", "metagpu_process_metagpu_requests", "metagpu_process_max_allowed_metagpu_gpu_utilization",
		"metagpu_process_memory_usage", "metagpu_process_metagpu_relative_gpu_utilization",
		"metagpu_process_metagpu_relative_memory_utilization"); err != nil {
		t.Error(err)
	}
}

// TestMetaGPUsNamesOfHostileProcesses checks the series of a process whose command line cannot be
// read. The series have the process's name, which the process may choose.
func TestMetaGPUsNamesOfHostileProcesses(t *testing.T) {
	n, c, pids := populated(t)
	n.write(filepath.Join(n.proc, strconv.Itoa(pids["main"]), "status"), "Name:\t\xff\x1b[2J\n")
	c.commands.read = func(registry.Process) (string, error) { return "", registry.ErrGone }
	gatherer := prometheus.NewRegistry()
	gatherer.MustRegister(c.Legacy(config.LegacyMetaGPU))
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(families); !strings.Contains(got, `"??[2J"`) {
		t.Errorf("the series are %s", got)
	}
}
