// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

func TestCapacity(t *testing.T) {
	small := gpu.GPU{UUID: "GPU-1", MemoryBytes: 16160 * MiB, Healthy: true} // 15.78 GiB
	large := gpu.GPU{UUID: "GPU-2", MemoryBytes: 81920 * MiB, Healthy: true}
	broken := gpu.GPU{UUID: "GPU-3", MemoryBytes: 81920 * MiB}

	reserve := func(c *config.Config) { c.Node.ReservedMemoryMiB = 512 }
	few := func(c *config.Config) { c.Node.SlotsPerGPU, c.Dialects.Native.Enabled = 4, false }
	names := func(c *config.Config) {
		c.Dialects = config.Dialects{MetaGPU: config.MetaGPU{Enabled: true, DeviceSharing: []config.DeviceSharing{
			{ResourceName: "a/one", SharesPerGPU: 4, UUIDs: []string{"GPU-1"}},
			{ResourceName: "a/all", SharesPerGPU: 10, UUIDs: []string{"*"}},
			{ResourceName: "a/none", SharesPerGPU: 10, UUIDs: []string{"GPU-9"}},
		}}}
	}
	tests := []struct {
		name   string
		gpus   []gpu.GPU
		change func(*config.Config)
		want   map[string]int64
	}{
		{"unequal GPUs, one of them broken", []gpu.GPU{small, large, broken}, func(*config.Config) {}, map[string]int64{
			"nri-vgpu.io/vgpu-number": 20, "nri-vgpu.io/vgpu-memory": 98080,
			"nri-vgpu.io/vgpu-memory-percentage": 200, "nri-vgpu.io/vgpu-cores": 200,
			"alnair/vgpu-memory": 96, "alnair/vgpu-compute": 200,
			"k8s.amazonaws.com/vgpu": 20,
			"volcano.sh/vgpu-number": 20, "volcano.sh/vgpu-memory": 98080,
			"volcano.sh/vgpu-memory-percentage": 200, "volcano.sh/vgpu-cores": 200,
			"cnvrg.io/metagpu": 200,
		}},
		{"reserved memory is off", []gpu.GPU{small}, reserve, map[string]int64{
			"nri-vgpu.io/vgpu-number": 10, "nri-vgpu.io/vgpu-memory": 15648,
			"nri-vgpu.io/vgpu-memory-percentage": 100, "nri-vgpu.io/vgpu-cores": 100,
			"alnair/vgpu-memory": 15, "alnair/vgpu-compute": 100,
			"k8s.amazonaws.com/vgpu": 10,
			"volcano.sh/vgpu-number": 10, "volcano.sh/vgpu-memory": 15648,
			"volcano.sh/vgpu-memory-percentage": 100, "volcano.sh/vgpu-cores": 100,
			"cnvrg.io/metagpu": 100,
		}},
		{"fewer slots, a dialect off", []gpu.GPU{small}, few, map[string]int64{
			"alnair/vgpu-memory": 16, "alnair/vgpu-compute": 100,
			"k8s.amazonaws.com/vgpu": 10,
			"volcano.sh/vgpu-number": 4, "volcano.sh/vgpu-memory": 16160,
			"volcano.sh/vgpu-memory-percentage": 100, "volcano.sh/vgpu-cores": 100,
			"cnvrg.io/metagpu": 100,
		}},
		{"names for some GPUs", []gpu.GPU{small, large}, names, map[string]int64{"a/one": 4, "a/all": 20}},
		{"nothing rather than 0", []gpu.GPU{broken}, func(*config.Config) {}, map[string]int64{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config.Default()
			tt.change(&cfg)
			if diff := cmp.Diff(tt.want, Capacity(tt.gpus, cfg)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUsable(t *testing.T) {
	g := gpu.GPU{MemoryBytes: 100 * MiB}
	if got := Usable(g, config.Config{Node: config.Node{ReservedMemoryMiB: 101}}); got != 0 {
		t.Errorf("got %d with more reserved than there is, want 0", got)
	}
	shared := config.Config{Node: config.Node{ReservedMemoryMiB: 10}, Sharing: config.Sharing{
		Method: config.ShareByMPS, MPSGPUs: []string{"GPU-b"}, MPS: config.MPS{ReservedMemoryMiB: 30}}}
	for uuid, want := range map[string]uint64{"GPU-a": 90 * MiB, "GPU-b": 60 * MiB} {
		g.UUID = uuid
		if got := Usable(g, shared); got != want {
			t.Errorf("%s: got %d with memory kept for the server of GPU-b, want %d", uuid, got, want)
		}
	}
}

func TestFree(t *testing.T) {
	const (
		number, memory, part, cores       = "nri-vgpu.io/vgpu-number", "nri-vgpu.io/vgpu-memory", "nri-vgpu.io/vgpu-memory-percentage", "nri-vgpu.io/vgpu-cores"
		gib, compute                      = "alnair/vgpu-memory", "alnair/vgpu-compute"
		slots, shares                     = "k8s.amazonaws.com/vgpu", "cnvrg.io/metagpu"
		vNumber, vMemory, vPart, vPercent = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
	)
	const total = 81920 * MiB
	tests := []struct {
		name string
		left Left
		want map[string]int64
	}{
		{"nothing", Left{}, map[string]int64{}},
		{"a little", Left{Memory: 1000 * MiB, ComputePPM: 305_000, SlotsTaken: 3, Held: true}, map[string]int64{
			number: 7, memory: 1000, part: 1, cores: 30,
			vNumber: 7, vMemory: 1000, vPart: 1, vPercent: 30,
			shares: 1,
		}},
		{"memory, and no time", Left{Memory: total}, map[string]int64{
			number: 10, memory: 81920, part: 100,
			gib:     80,
			vNumber: 10, vMemory: 81920, vPart: 100,
		}},
		{"time, and no memory", Left{ComputePPM: Whole}, map[string]int64{}},
		{"time, and memory in common", Left{ComputePPM: Whole, Held: true, Common: true}, map[string]int64{compute: 100}},
		{"memory for a quarter", Left{Memory: total / 4, ComputePPM: Whole}, map[string]int64{
			number: 10, memory: 20480, part: 25, cores: 100,
			gib: 20, compute: 100,
			slots:   2,
			vNumber: 10, vMemory: 20480, vPart: 25, vPercent: 100,
			shares: 25,
		}},
		{"all, of a GPU that somebody is on", Left{Memory: total, ComputePPM: Whole, Held: true}, map[string]int64{
			number: 10, memory: 81920, part: 100, cores: 100,
			gib: 80, compute: 100,
			slots:   10,
			vNumber: 10, vMemory: 81920, vPart: 100, vPercent: 99, // 100 requests an unused GPU
			shares: 100,
		}},
		{"no slots", Left{Memory: total, ComputePPM: 10_000, SlotsTaken: 10, Held: true}, map[string]int64{
			gib: 80, compute: 1,
			shares: 1,
		}},
		{"fewer slots than none", Left{Memory: total, ComputePPM: 9999, SlotsTaken: 11, Held: true}, map[string]int64{gib: 80}},
		{"fewer MiB than slots", Left{Memory: 2*MiB - 1, ComputePPM: Whole}, map[string]int64{
			number: 1, memory: 1, cores: 100,
			vNumber: 1, vMemory: 1, vPercent: 100,
		}},
		{"few clients", Left{Memory: 2 * MiB, ComputePPM: 20_000, Held: true, Bounded: true, Containers: 1}, map[string]int64{
			number: 1, memory: 2, cores: 2,
			vNumber: 1, vMemory: 2, vPercent: 2,
		}},
		{"more clients than slots", Left{Memory: 2 * MiB, SlotsTaken: 9, Bounded: true, Containers: 5}, map[string]int64{
			number: 1, memory: 2,
			vNumber: 1, vMemory: 2,
		}},
	}
	gone := gpu.GPU{UUID: "GPU-0", MemoryBytes: total, Healthy: true}
	here := gpu.GPU{UUID: "GPU-1", MemoryBytes: total, Healthy: true}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Free([]gpu.GPU{gone, here}, map[string]Left{here.UUID: tt.left}, config.Default())
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFreeAddsGPUsUp(t *testing.T) {
	cfg := config.Default()
	cfg.Dialects = config.Dialects{Native: cfg.Dialects.Native}
	gpus := []gpu.GPU{{UUID: "GPU-1", MemoryBytes: 100 * MiB}, {UUID: "GPU-2", MemoryBytes: 100 * MiB}}
	got := Free(gpus, map[string]Left{
		"GPU-1": {Memory: 20 * MiB, ComputePPM: 100_000, SlotsTaken: 9},
		"GPU-2": {Memory: 30 * MiB, ComputePPM: 500_000, SlotsTaken: 8},
	}, cfg)
	want := map[string]int64{"nri-vgpu.io/vgpu-number": 3, "nri-vgpu.io/vgpu-memory": 50, "nri-vgpu.io/vgpu-memory-percentage": 50, "nri-vgpu.io/vgpu-cores": 60}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAsking(t *testing.T) {
	ours, other := asks{"cnvrg.io/metagpu": "10"}, asks{"nvidia.com/gpu": "1"}
	named := func(name string, phase corev1.PodPhase, containers ...corev1.Container) *corev1.Pod {
		pod := podOf(containers...)
		pod.Name, pod.Status.Phase = name, phase
		return pod
	}
	initialized := named("by its init container", corev1.PodPending, container("c", nil))
	initialized.Spec.InitContainers = []corev1.Container{container("i", ours)}
	pods := []*corev1.Pod{
		named("not at all", corev1.PodRunning, container("c", nil)),
		named("another plugin", corev1.PodRunning, container("c", other)),
		named("at last", corev1.PodRunning, container("a", nil), container("b", other), container("c", ours)),
		named("in vain", corev1.PodRunning, container("c", asks{"cnvrg.io/metagpu": "0"})),
		initialized,
		named("in the past", corev1.PodSucceeded, container("c", ours)),
		named("until it failed", corev1.PodFailed, container("c", ours)),
	}
	var got []string
	for _, pod := range Asking(pods, config.Default().Dialects) {
		got = append(got, pod.Name)
	}
	if diff := cmp.Diff([]string{"at last", "in vain", "by its init container"}, got); diff != "" {
		t.Error(diff)
	}
	if got := Asking(pods, config.Dialects{}); got != nil {
		t.Errorf("%d pods ask in a dialect that is not enabled", len(got))
	}
}

func TestUsedByOnePod(t *testing.T) {
	const memory = "nri-vgpu.io/vgpu-memory"
	const most = "9E"
	always := corev1.ContainerRestartPolicyAlways
	plain := func(n string) corev1.Container { return container("c", asks{memory: n}) }
	sidecar := func(n string) corev1.Container {
		c := plain(n)
		c.RestartPolicy = &always
		return c
	}
	tests := []struct {
		name string
		init []corev1.Container
		apps []corev1.Container
		want int64
	}{
		{"apps add up", nil, []corev1.Container{plain("1"), plain("2")}, 3},
		{"a larger init container", []corev1.Container{plain("5")}, []corev1.Container{plain("1"), plain("2")}, 5},
		{"init containers run one by one", []corev1.Container{plain("2"), plain("2")}, []corev1.Container{plain("3")}, 3},
		{"a sidecar stays", []corev1.Container{sidecar("2")}, []corev1.Container{plain("3")}, 5},
		{"an init container beside a sidecar", []corev1.Container{sidecar("2"), plain("4")}, []corev1.Container{plain("3")}, 6},
		{"an init container before a sidecar", []corev1.Container{plain("4"), sidecar("2")}, []corev1.Container{plain("1")}, 4},
		{"no sum of apps wraps around", nil, []corev1.Container{plain(most), plain(most)}, math.MaxInt64},
		{"no init container's sum wraps around", []corev1.Container{sidecar(most), plain(most)}, []corev1.Container{plain("3")}, math.MaxInt64},
		{"malformed counts for nothing", nil, []corev1.Container{plain("500m"), plain("2")}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod := podOf(tt.apps...)
			pod.Spec.InitContainers = tt.init
			got := Used([]*corev1.Pod{pod}, config.Default().Dialects)
			if diff := cmp.Diff(map[string]int64{memory: tt.want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestUsedAsKubernetesCounts compares the use of random pods with Kubernetes' own sum.
func TestUsedAsKubernetesCounts(t *testing.T) {
	const memory = "nri-vgpu.io/vgpu-memory"
	always := corev1.ContainerRestartPolicyAlways
	r := rand.New(rand.NewPCG(1, 2))
	random := func() corev1.Container {
		c := container("c", asks{memory: fmt.Sprint(1 + r.IntN(9))})
		c.Resources.Requests = c.Resources.Limits
		return c
	}
	for range 1000 {
		pod := podOf(random())
		for range r.IntN(3) {
			pod.Spec.Containers = append(pod.Spec.Containers, random())
		}
		for range r.IntN(6) {
			c := random()
			if r.IntN(2) == 0 {
				c.RestartPolicy = &always
			}
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		}
		want := resource.PodRequests(pod, resource.PodResourcesOptions{})[memory]
		if got := Used([]*corev1.Pod{pod}, config.Default().Dialects)[memory]; got != want.Value() {
			t.Fatalf("got %d, want %d: %+v", got, want.Value(), pod.Spec)
		}
	}
}

func TestUsedByManyPods(t *testing.T) {
	pods := []*corev1.Pod{
		podOf(container("c", asks{"cnvrg.io/metagpu": "10"})),
		podOf(container("c", asks{"cnvrg.io/metagpu": "5"}), container("d", asks{"alnair/vgpu-memory": "2"})),
	}
	want := map[string]int64{"cnvrg.io/metagpu": 15, "alnair/vgpu-memory": 2}
	if diff := cmp.Diff(want, Used(pods, config.Default().Dialects)); diff != "" {
		t.Error(diff)
	}
}

func TestUsedByManyPodsDoesNotWrapAround(t *testing.T) {
	huge := podOf(container("c", asks{"cnvrg.io/metagpu": "9E"}))
	want := map[string]int64{"cnvrg.io/metagpu": math.MaxInt64}
	if diff := cmp.Diff(want, Used([]*corev1.Pod{huge, huge, huge}, config.Default().Dialects)); diff != "" {
		t.Error(diff)
	}
}

func TestUsedCountsPodsThatHaveNotEnded(t *testing.T) {
	var pods []*corev1.Pod
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodUnknown, corev1.PodSucceeded, corev1.PodFailed} {
		pod := podOf(container("c", asks{"cnvrg.io/metagpu": "10", "nvidia.com/gpu": "1"}))
		pod.Status.Phase = phase
		pods = append(pods, pod)
	}
	want := map[string]int64{"cnvrg.io/metagpu": 30}
	if diff := cmp.Diff(want, Used(pods, config.Default().Dialects)); diff != "" {
		t.Error(diff)
	}
}
