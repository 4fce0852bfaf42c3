// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/namesakes"
	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

var (
	gpuLabels       = []string{"uuid", "index", "name"}
	containerLabels = []string{"namespace", "pod", "container", "uuid"}

	descBuild = prometheus.NewDesc("nri_vgpu_build_info",
		"Always 1; the agent's version, and its node.", []string{"node", "version", "go_version"}, nil)
	descRegistered = prometheus.NewDesc("nri_vgpu_registered",
		"1 when the container runtime has the plugin.", nil, nil)
	descPodsSynced = prometheus.NewDesc("nri_vgpu_pods_synced",
		"1 when the node's pods are known.", nil, nil)

	descGuard = prometheus.NewDesc("nri_vgpu_guard_loaded",
		"1 when the container runtime has loaded the guard, which it does when it starts; left out where there is to be none.", nil, nil)

	descHealthy = prometheus.NewDesc("nri_vgpu_gpu_healthy",
		"1 when the GPU may be given to new containers.", gpuLabels, nil)
	descXIDs = prometheus.NewDesc("nri_vgpu_gpu_xids_total",
		"Errors (XIDs) that the driver has reported of the GPU, by number; uuid is empty where it did not tell of which.", []string{"uuid", "xid"}, nil)
	descMemory = prometheus.NewDesc("nri_vgpu_gpu_memory_bytes",
		"Memory of the GPU that may be given to containers.", gpuLabels, nil)
	descAllocatedMemory = prometheus.NewDesc("nri_vgpu_gpu_allocated_memory_bytes",
		"Memory of the GPU that was given to containers.", gpuLabels, nil)
	descFreeMemory = prometheus.NewDesc("nri_vgpu_gpu_free_memory_bytes",
		"Memory of the GPU that is given to nobody.", gpuLabels, nil)
	descAllocatedCompute = prometheus.NewDesc("nri_vgpu_gpu_allocated_compute_ratio",
		"Part of the GPU's time that was given to containers, 0 to 1.", gpuLabels, nil)
	descFreeCompute = prometheus.NewDesc("nri_vgpu_gpu_free_compute_ratio",
		"Part of the GPU's time that is given to nobody, 0 to 1.", gpuLabels, nil)
	descContainers = prometheus.NewDesc("nri_vgpu_gpu_containers",
		"Containers that hold a part of the GPU.", gpuLabels, nil)

	descLimitMemory = prometheus.NewDesc("nri_vgpu_container_memory_limit_bytes",
		"Memory of the GPU that the container may use.", containerLabels, nil)
	descLimitCompute = prometheus.NewDesc("nri_vgpu_container_compute_limit_ratio",
		"Part of the GPU's time that the container may use, 0 to 1; 1 without a limit.", containerLabels, nil)
)

// Describe implements prometheus.Collector.
func (h *Heartbeat) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descBuild, descRegistered, descPodsSynced, descGuard,
		descHealthy, descXIDs, descMemory, descAllocatedMemory, descFreeMemory, descAllocatedCompute, descFreeCompute, descContainers,
		descLimitMemory, descLimitCompute,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. Collect asks neither driver nor API server.
func (h *Heartbeat) Collect(ch chan<- prometheus.Metric) {
	namesakes.Merge(ch, h.collect, descLimitCompute)
}

func (h *Heartbeat) collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(descBuild, 1, h.Node, version.Version, runtime.Version())
	gauge(descRegistered, truth(h.Plugin.Registered()))
	gauge(descPodsSynced, truth(h.Pods.HasSynced()))
	if h.Config.Guard.PluginDir != "" {
		_, loaded, err := guardfile.Loaded(h.Config.Paths.RunDir)
		gauge(descGuard, truth(err == nil && loaded))
	}
	names := map[string]string{}
	for _, g := range h.Inventory.GPUs() {
		names[g.UUID] = g.Name
	}
	for _, room := range h.Ledger.Free() {
		labels := []string{room.UUID, strconv.Itoa(room.Index), names[room.UUID]}
		gauge(descHealthy, truth(room.Healthy), labels...)
		gauge(descMemory, float64(room.MemoryBytes), labels...)
		gauge(descAllocatedMemory, float64(room.MemoryBytes-min(room.FreeMemoryBytes, room.MemoryBytes)), labels...)
		gauge(descFreeMemory, float64(room.FreeMemoryBytes), labels...)
		gauge(descAllocatedCompute, ratio(request.Whole-min(room.FreeComputePPM, request.Whole)), labels...)
		gauge(descFreeCompute, ratio(room.FreeComputePPM), labels...)
		gauge(descContainers, float64(room.Holders), labels...)
	}
	for x, n := range h.Inventory.XIDs() {
		ch <- prometheus.MustNewConstMetric(descXIDs, prometheus.CounterValue, float64(n), x.UUID, strconv.FormatUint(x.Number, 10))
	}
	for _, c := range h.Ledger.Allocations() {
		for _, d := range c.Devices {
			labels := []string{c.Namespace, c.Pod, c.Container, d.UUID}
			gauge(descLimitMemory, float64(d.Limit()), labels...)
			limit := d.ComputePPM
			if limit == 0 {
				limit = request.Whole
			}
			gauge(descLimitCompute, ratio(limit), labels...)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func ratio(ppm uint32) float64 { return float64(ppm) / request.Whole }
