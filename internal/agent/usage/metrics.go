// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/namesakes"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// scrapePatience is the time for which a scrape waits for the driver. After scrapePatience a scrape
// omits the driver's metrics and sends the rest.
const scrapePatience = time.Second

var (
	gpuLabels       = []string{"uuid"}
	containerLabels = []string{"namespace", "pod", "container", "uuid"}

	descGPUUsed = prometheus.NewDesc("nri_vgpu_gpu_used_memory_bytes",
		"GPU memory that processes hold, as the driver reports it.", gpuLabels, nil)
	descGPUUtilisation = prometheus.NewDesc("nri_vgpu_gpu_utilisation_ratio",
		"Part of the GPU's time that processes used in the last second, as the driver samples it, 0 to 1.", gpuLabels, nil)

	descGPUProcesses = prometheus.NewDesc("nri_vgpu_gpu_processes",
		"Processes that use the GPU, as the driver lists them.", gpuLabels, nil)

	descUsed = prometheus.NewDesc("nri_vgpu_container_used_memory_bytes",
		"GPU memory that the container's processes hold, as the driver reports it.", containerLabels, nil)
	descUtilisation = prometheus.NewDesc("nri_vgpu_container_utilisation_ratio",
		"Part of the GPU's time that the container used in the last second, as the driver samples it, 0 to 1.", containerLabels, nil)

	descContainerProcesses = prometheus.NewDesc("nri_vgpu_container_gpu_processes",
		"Processes of the container that use the GPU, as the driver lists them.", containerLabels, nil)

	descAccounted = prometheus.NewDesc("nri_vgpu_container_accounted_memory_bytes",
		"Memory charged against the container's limit, as its usage page reports it.", containerLabels, nil)
	descPeak = prometheus.NewDesc("nri_vgpu_container_peak_memory_bytes",
		"Highest memory charged against the container's limit, as its usage page reports it.", containerLabels, nil)
	descBusy = prometheus.NewDesc("nri_vgpu_container_gpu_seconds_total",
		"GPU time charged against the container's compute limit, as its usage page reports it; 0 without a compute limit.", containerLabels, nil)
	descThrottled = prometheus.NewDesc("nri_vgpu_container_throttled_seconds_total",
		"Total time that the container's threads waited because of its compute limit, as its usage page reports it.", containerLabels, nil)
	descLaunches = prometheus.NewDesc("nri_vgpu_container_launches_total",
		"Kernels, graphs and copies that the container launched, as its usage page reports it.", containerLabels, nil)
	descDistrusted = prometheus.NewDesc("nri_vgpu_container_distrusted_probes_total",
		"Measurements of other containers' GPU time that the interposer rejected, as the usage page reports them, by cause: uncharged, the others were charged less; aliased, the probes were queued behind the container's work.", append(slices.Clone(containerLabels), "cause"), nil)
	descDrift = prometheus.NewDesc("nri_vgpu_container_clock_drift_ratio",
		"Ratio by which the GPU's clock is faster than the host's, as the container's interposer measured it; 0 if not measured.", containerLabels, nil)
	descSlice = prometheus.NewDesc("nri_vgpu_container_slice_seconds",
		"Length of the container's time slice beside other containers, as its interposer measured it; 0 if not measured.", containerLabels, nil)
	descRefused = prometheus.NewDesc("nri_vgpu_container_refused_allocations_total",
		"Allocations that the memory limit refused, as the usage page reports them, by way of allocating.", append(slices.Clone(containerLabels), "way"), nil)
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descGPUUsed, descGPUUtilisation, descGPUProcesses, descUsed, descUtilisation, descContainerProcesses,
		descAccounted, descPeak, descBusy, descThrottled, descLaunches, descRefused,
		descDistrusted, descDrift, descSlice,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. A container has series from the allocation of its GPUs
// until their release.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	namesakes.Merge(ch, c.collect, descUtilisation, descPeak, descDrift, descSlice)
}

func (c *Collector) collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	allocations := c.Ledger.Allocations()
	// If the driver does not answer, the containers' accounts are still available.
	if found, err := c.look(ctx); err == nil {
		collectSightings(ch, found, allocations)
	}
	for _, a := range allocations {
		c.collectAccount(ch, a)
	}
}

func gauge(ch chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// place is a container on a GPU.
type place struct{ podUID, container, uuid string }

// collectSightings sends the driver's measurements of each GPU that answered, and of each container
// that has a GPU.
func collectSightings(ch chan<- prometheus.Metric, found *look, allocations []placement.Allocation) {
	for uuid, list := range found.sightings {
		sendSums(ch, list, descGPUUsed, descGPUUtilisation, uuid)
		gauge(ch, descGPUProcesses, float64(len(list)), uuid)
	}
	byPlace := found.byPlace()
	for _, a := range allocations {
		for _, d := range a.Devices {
			if found.answered(d.UUID) {
				list, labels := byPlace[place{a.PodUID, a.Container, d.UUID}], []string{a.Namespace, a.Pod, a.Container, d.UUID}
				sendSums(ch, list, descUsed, descUtilisation, labels...)
				gauge(ch, descContainerProcesses, float64(len(list)), labels...)
			}
		}
	}
}

// byPlace returns the sightings by container and GPU.
func (l *look) byPlace() map[place][]sighting {
	all := map[place][]sighting{}
	for uuid, list := range l.sightings {
		for _, s := range list {
			held := l.holders[s.Container]
			p := place{held.PodUID, held.Container, uuid}
			all[p] = append(all[p], s)
		}
	}
	return all
}

// answered reports whether the driver listed the GPU's processes.
func (l *look) answered(uuid string) bool {
	_, ok := l.sightings[uuid]
	return ok
}

func sendSums(ch chan<- prometheus.Metric, list []sighting, used, utilisation *prometheus.Desc, labels ...string) {
	bytes, percent := sums(list)
	if bytes != nil {
		gauge(ch, used, float64(*bytes), labels...)
	}
	if percent != nil {
		gauge(ch, utilisation, *percent/100, labels...)
	}
}

// collectAccount sends the values on a container's usage page. A container without limits has no
// usage page.
func (c *Collector) collectAccount(ch chan<- prometheus.Metric, a placement.Allocation) {
	dir, err := c.Dir(a.PodUID, a.Container)
	if err != nil {
		return
	}
	usage, err := limits.ReadUsage(filepath.Join(dir, limits.UsageFile))
	if err != nil || len(usage.Devices) != len(a.Devices) {
		return
	}
	for i, d := range a.Devices {
		u, labels := usage.Devices[i], []string{a.Namespace, a.Pod, a.Container, d.UUID}
		counter := func(desc *prometheus.Desc, value float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, slices.Concat(labels, more)...)
		}
		gauge(ch, descAccounted, float64(u.UsedBytes), labels...)
		gauge(ch, descPeak, float64(u.PeakBytes), labels...)
		counter(descBusy, u.GPUTime.Seconds())
		counter(descThrottled, u.Wait.Seconds())
		counter(descLaunches, float64(u.Launches))
		counter(descDistrusted, float64(u.Distrust.Uncharged), "uncharged")
		counter(descDistrusted, float64(u.Distrust.Aliased), "aliased")
		gauge(ch, descDrift, u.Distrust.DriftPPM/1e6, labels...)
		gauge(ch, descSlice, u.Distrust.Slice.Seconds(), labels...)
		for way, count := range u.RefusalsByWay {
			if way != int(limits.WayNone) || count > 0 {
				counter(descRefused, float64(count), limits.Way(way).String())
			}
		}
	}
}
