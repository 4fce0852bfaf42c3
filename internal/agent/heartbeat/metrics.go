// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/namesakes"
	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

var (
	gpuLabels       = []string{"uuid", "index", "name"}
	containerLabels = []string{"namespace", "pod", "container", "uuid"}

	descBuild = prometheus.NewDesc("nri_vgpu_build_info",
		"Always 1; labels state the agent's version and node.", []string{"node", "version", "go_version"}, nil)
	descRegistered = prometheus.NewDesc("nri_vgpu_registered",
		"1 if the agent is registered with the container runtime.", nil, nil)
	descPodsSynced = prometheus.NewDesc("nri_vgpu_pods_synced",
		"1 if the agent knows the node's pods.", nil, nil)

	descGuard = prometheus.NewDesc("nri_vgpu_guard_loaded",
		"1 if the container runtime has loaded the guard, as it does at its start; missing if no guard is configured.", nil, nil)

	descHealthy = prometheus.NewDesc("nri_vgpu_gpu_healthy",
		"1 if the GPU accepts new containers.", gpuLabels, nil)
	descXIDs = prometheus.NewDesc("nri_vgpu_gpu_xids_total",
		"Errors (XIDs) that the driver reported for the physical GPU, by number; uuid is empty if the driver did not name the GPU.", []string{"uuid", "xid"}, nil)
	descOfferedTwice = prometheus.NewDesc("nri_vgpu_gpu_offered_twice",
		"1 if another device plugin offers the GPU, too: the GPU then accepts no new containers.", gpuLabels, nil)
	descLeftOut = prometheus.NewDesc("nri_vgpu_gpus_left_out",
		"GPUs that the node does not offer: node.gpus leaves them out, or they are in MIG mode without MIG devices.", nil, nil)
	descForeign = prometheus.NewDesc("nri_vgpu_foreign_containers",
		"Containers of the node's pods that request a resource of another device plugin; resource is the matching element of node.foreign_resources.", []string{"resource"}, nil)
	descMIG = prometheus.NewDesc("nri_vgpu_gpu_mig_info",
		"Always 1 for each MIG device; labels state its physical GPU, its profile and the ids of its instances.", []string{"uuid", "parent", "profile", "gpu_instance", "compute_instance"}, nil)
	descMemory = prometheus.NewDesc("nri_vgpu_gpu_memory_bytes",
		"GPU memory that can be allocated to containers.", gpuLabels, nil)
	descAllocatedMemory = prometheus.NewDesc("nri_vgpu_gpu_allocated_memory_bytes",
		"GPU memory that is allocated to containers.", gpuLabels, nil)
	descFreeMemory = prometheus.NewDesc("nri_vgpu_gpu_free_memory_bytes",
		"GPU memory that is not allocated.", gpuLabels, nil)
	descAllocatedCompute = prometheus.NewDesc("nri_vgpu_gpu_allocated_compute_ratio",
		"Part of the GPU's time that is allocated to containers, 0 to 1.", gpuLabels, nil)
	descFreeCompute = prometheus.NewDesc("nri_vgpu_gpu_free_compute_ratio",
		"Part of the GPU's time that is not allocated, 0 to 1.", gpuLabels, nil)
	descContainers = prometheus.NewDesc("nri_vgpu_gpu_containers",
		"Containers with a part of the GPU.", gpuLabels, nil)

	descLimitMemory = prometheus.NewDesc("nri_vgpu_container_memory_limit_bytes",
		"GPU memory limit of the container, in bytes.", containerLabels, nil)
	descLimitCompute = prometheus.NewDesc("nri_vgpu_container_compute_limit_ratio",
		"Compute limit of the container as a part of the GPU's time, 0 to 1; 1 without a limit.", containerLabels, nil)
)

// Describe implements prometheus.Collector.
func (h *Heartbeat) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descBuild, descRegistered, descPodsSynced, descGuard,
		descHealthy, descOfferedTwice, descLeftOut, descForeign, descXIDs, descMIG, descMemory, descAllocatedMemory, descFreeMemory, descAllocatedCompute, descFreeCompute, descContainers,
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
	names, twice := map[string]string{}, map[string]bool{}
	for _, g := range h.Inventory.GPUs() {
		names[g.UUID], twice[g.UUID] = g.Name, g.Foreign
		if m := g.MIG; m != (gpu.MIG{}) {
			gauge(descMIG, 1, g.UUID, m.Parent, g.Profile(), strconv.Itoa(m.Instance), strconv.Itoa(m.Compute))
		}
	}
	gauge(descLeftOut, float64(len(h.Inventory.LeftOut())))
	for pattern, n := range h.foreignByPattern() {
		gauge(descForeign, float64(n), pattern)
	}
	for _, room := range h.Ledger.Free() {
		labels := []string{room.UUID, room.Number(), names[room.UUID]}
		gauge(descHealthy, truth(room.Healthy), labels...)
		gauge(descOfferedTwice, truth(twice[room.UUID]), labels...)
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
