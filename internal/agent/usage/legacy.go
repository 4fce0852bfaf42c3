// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/namesakes"
	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Legacy returns the collector's metrics under the names, and in the units, of another system's
// exporter, for dashboards of that exporter.
func (c *Collector) Legacy(exporter string) prometheus.Collector {
	if exporter == config.LegacyVolcano {
		return volcanoNames{c}
	}
	return metaGPUNames{c}
}

const mib = 1 << 20

// everything is an asker that may read the whole node's data.
var everything = registry.Asker{Node: true}

var (
	volcanoZone      = prometheus.Labels{"zone": "vGPU"}
	volcanoGPU       = []string{"deviceidx", "deviceuuid"}
	volcanoContainer = []string{"podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid"}

	descVolcanoGPUMemory = prometheus.NewDesc("HostGPUMemoryUsage",
		"GPU memory that processes hold, in bytes.", volcanoGPU, volcanoZone)
	descVolcanoGPUUtilisation = prometheus.NewDesc("HostCoreUtilization",
		"GPU time that processes used, in percent.", volcanoGPU, volcanoZone)
	descVolcanoMemory = prometheus.NewDesc("vGPU_device_memory_usage_in_bytes",
		"GPU memory that the container's processes hold, in bytes.", volcanoContainer, volcanoZone)
	descVolcanoLimit = prometheus.NewDesc("vGPU_device_memory_limit_in_bytes",
		"GPU memory limit of the container, in bytes.", volcanoContainer, volcanoZone)
	descVolcanoUtilisation = prometheus.NewDesc("Device_utilization_desc_of_container",
		"GPU time that the container used, in percent.", volcanoContainer, volcanoZone)
)

// volcanoNames exports the names of Volcano's exporter, which are HAMi's.
type volcanoNames struct{ *Collector }

// Describe implements prometheus.Collector.
func (v volcanoNames) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descVolcanoGPUMemory, descVolcanoGPUUtilisation, descVolcanoMemory, descVolcanoLimit, descVolcanoUtilisation} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (v volcanoNames) Collect(ch chan<- prometheus.Metric) {
	namesakes.Merge(ch, v.collect, descVolcanoUtilisation)
}

func (v volcanoNames) collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	held := map[place][]sighting{}
	found, err := v.look(ctx)
	if err == nil {
		for _, d := range v.nodeDevices(found) {
			send(ch, descVolcanoGPUMemory, d.MemoryUsedBytes, 1, strconv.Itoa(d.Index), d.UUID)
			send(ch, descVolcanoGPUUtilisation, d.Utilisation, 1, strconv.Itoa(d.Index), d.UUID)
		}
		held = found.byPlace()
	}
	for _, a := range v.Ledger.Allocations() {
		for i, d := range a.Devices {
			labels := []string{a.Namespace, a.Pod, a.Container, strconv.Itoa(i), d.UUID}
			gauge(ch, descVolcanoLimit, float64(d.Limit()), labels...)
			if err != nil || !found.answered(d.UUID) {
				continue
			}
			bytes, percent := sums(held[place{a.PodUID, a.Container, d.UUID}])
			send(ch, descVolcanoMemory, bytes, 1, labels...)
			send(ch, descVolcanoUtilisation, percent, 1, labels...)
		}
	}
}

// send sends the series of a value in a unit, if the value is known.
func send[T uint64 | float64](ch chan<- prometheus.Metric, desc *prometheus.Desc, value *T, unit float64, labels ...string) {
	if value != nil {
		gauge(ch, desc, float64(*value)/unit, labels...)
	}
}

var (
	metaGPUDevice  = []string{"device_uuid", "device_index", "resource_name", "node_name"}
	metaGPUProcess = []string{"uuid", "pid", "cmdline", "pod_name", "pod_namespace", "resource_name", "node_name"}

	descMetaGPUShares = prometheus.NewDesc("metagpu_device_shares",
		"Number of shares of the GPU.", metaGPUDevice, nil)
	descMetaGPUTotal = prometheus.NewDesc("metagpu_device_memory_total",
		"Memory of the GPU, in MiB.", metaGPUDevice, nil)
	descMetaGPUFree = prometheus.NewDesc("metagpu_device_memory_free",
		"GPU memory that no process holds, in MiB.", metaGPUDevice, nil)
	descMetaGPUUsed = prometheus.NewDesc("metagpu_device_memory_used",
		"GPU memory that processes hold, in MiB.", metaGPUDevice, nil)
	descMetaGPUShareSize = prometheus.NewDesc("metagpu_device_memory_share_size",
		"Memory of a share, in MiB.", metaGPUDevice, nil)

	descMetaGPURequests = prometheus.NewDesc("metagpu_process_metagpu_requests",
		"Shares that the pod requests.", []string{"pod_name", "pod_namespace", "resource_name", "node_name"}, nil)
	descMetaGPUUtilisation = prometheus.NewDesc("metagpu_process_absolute_gpu_utilization",
		"GPU time that the process used, in percent.", metaGPUProcess, nil)
	descMetaGPUMaxUtilisation = prometheus.NewDesc("metagpu_process_max_allowed_metagpu_gpu_utilization",
		"Compute limit of the process's container, in percent.", metaGPUProcess, nil)
	descMetaGPURelativeUtilisation = prometheus.NewDesc("metagpu_process_metagpu_relative_gpu_utilization",
		"GPU time that the process used, in percent of its container's compute limit.", metaGPUProcess, nil)
	descMetaGPUMemory = prometheus.NewDesc("metagpu_process_memory_usage",
		"GPU memory that the process holds, in MiB.", metaGPUProcess, nil)
	descMetaGPUMaxMemory = prometheus.NewDesc("metagpu_process_max_allowed_metagpu_memory",
		"Memory limit of the process's container, in MiB.", metaGPUProcess, nil)
	descMetaGPURelativeMemory = prometheus.NewDesc("metagpu_process_metagpu_relative_memory_utilization",
		"GPU memory that the process holds, in percent of its container's memory limit.", metaGPUProcess, nil)
)

// metaGPUNames exports the names of MetaGPU's exporter. Unlike our metrics, that exporter has a
// series for each process.
type metaGPUNames struct{ *Collector }

// Describe implements prometheus.Collector.
func (m metaGPUNames) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descMetaGPUShares, descMetaGPUTotal, descMetaGPUFree, descMetaGPUUsed, descMetaGPUShareSize,
		descMetaGPURequests, descMetaGPUUtilisation, descMetaGPUMaxUtilisation, descMetaGPURelativeUtilisation,
		descMetaGPUMemory, descMetaGPUMaxMemory, descMetaGPURelativeMemory,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m metaGPUNames) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	m.collectRequests(ch)
	found, err := m.look(ctx)
	if err != nil {
		return
	}
	for _, d := range m.nodeDevices(found) {
		m.collectDevice(ch, d)
	}
	processes, err := m.processes(ctx, everything)
	if err != nil {
		return
	}
	for _, p := range processes {
		m.collectProcess(ch, p)
	}
}

// collectRequests sends the requests of pods, summed over their containers.
func (m metaGPUNames) collectRequests(ch chan<- prometheus.Metric) {
	type asked struct{ pod, namespace, resource string }
	sums := map[asked]int64{}
	for _, a := range m.Ledger.Allocations() {
		pod, ok := m.Pods.Cached(pods.Ref{UID: a.PodUID})
		if !ok {
			continue
		}
		amounts := request.Amounts(pod, a.Container, m.Config.Dialects)
		if resource, ok := m.resource(amounts); ok {
			sums[asked{a.Pod, a.Namespace, resource}] += amounts[resource]
		}
	}
	for a, shares := range sums {
		gauge(ch, descMetaGPURequests, float64(shares), a.pod, a.namespace, a.resource, m.Node)
	}
}

func (m metaGPUNames) collectDevice(ch chan<- prometheus.Metric, d agentapi.Device) {
	for _, s := range d.Sharing {
		labels := []string{d.UUID, strconv.Itoa(d.Index), s.Resource, m.Node}
		gauge(ch, descMetaGPUShares, float64(s.PerGPU), labels...)
		gauge(ch, descMetaGPUShareSize, float64(s.ShareBytes/mib), labels...)
		gauge(ch, descMetaGPUTotal, float64(d.MemoryBytes/mib), labels...)
		if d.MemoryUsedBytes != nil {
			gauge(ch, descMetaGPUUsed, float64(*d.MemoryUsedBytes/mib), labels...)
			gauge(ch, descMetaGPUFree, float64((d.MemoryBytes-min(d.MemoryBytes, *d.MemoryUsedBytes))/mib), labels...)
		}
	}
}

// collectProcess sends the metrics of a process whose container requests shares.
func (m metaGPUNames) collectProcess(ch chan<- prometheus.Metric, p agentapi.Process) {
	resource, ok := m.resource(p.Requests)
	if !ok {
		return
	}
	labels := []string{p.UUID, strconv.FormatUint(uint64(p.PID), 10), p.Command, p.Pod, p.Namespace, resource, m.Node}
	limit := 100.0
	if p.ComputeLimitPPM > 0 {
		limit = float64(p.ComputeLimitPPM) * 100 / request.Whole
	}
	gauge(ch, descMetaGPUMaxUtilisation, limit, labels...)
	gauge(ch, descMetaGPUMaxMemory, float64(p.MemoryLimitBytes/mib), labels...)
	send(ch, descMetaGPUUtilisation, p.Utilisation, 1, labels...)
	send(ch, descMetaGPURelativeUtilisation, p.ShareUtilisation, 1, labels...)
	send(ch, descMetaGPUMemory, p.MemoryUsedBytes, mib, labels...)
	if p.MemoryLimitBytes > 0 {
		send(ch, descMetaGPURelativeMemory, p.MemoryUsedBytes, float64(p.MemoryLimitBytes)/100, labels...)
	}
}

// resource returns the name by which a container requests shares.
func (m metaGPUNames) resource(amounts map[string]int64) (string, bool) {
	for _, s := range m.Config.Dialects.MetaGPU.DeviceSharing {
		if amounts[s.ResourceName] > 0 {
			return s.ResourceName, true
		}
	}
	return "", false
}
