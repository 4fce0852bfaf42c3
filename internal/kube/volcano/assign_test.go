// SPDX-License-Identifier: Apache-2.0

package volcano

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const oneID = "GPU-1,NVIDIA,1000,0:"

// limits are a container's limits, by Volcano's resource names without the domain.
type limits map[string]int64

func container(name string, l limits) corev1.Container {
	list := corev1.ResourceList{}
	for word, units := range l {
		if !strings.Contains(word, "/") {
			word = "volcano.sh/vgpu-" + word
		}
		list[corev1.ResourceName(word)] = *resource.NewQuantity(units, resource.DecimalSI)
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: list}}
}

func pod(annotations map[string]string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "uid", Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: "here", Containers: containers},
	}
}

// assigned returns the annotations of a pod with an assignment on this node.
func assigned(ids string) map[string]string {
	return map[string]string{
		Node: "here", IDs: ids, ToAllocate: ids, Phase: Allocating, Time: "1700000000", BindTime: "1700000000",
	}
}

func gpus() []gpu.GPU {
	return []gpu.GPU{
		{UUID: "GPU-1", Index: 0, Name: "NVIDIA H200", MemoryBytes: 16384*mib + 7, Healthy: true},
		{UUID: "GPU-2", Index: 1, Name: "Tesla V100-PCIE-32GB", MemoryBytes: 32768 * mib, Healthy: true},
	}
}

func obey(t *testing.T, p *corev1.Pod) (request.Pod, error) {
	t.Helper()
	cfg := config.Default()
	cfg.Sharing.Method, cfg.Sharing.MPSGPUs = config.ShareByMPS, []string{"GPU-2"}
	asked, err := request.FromPod(p, cfg.Dialects)
	if err != nil {
		t.Fatal(err)
	}
	return Obey(asked, p, gpus(), cfg)
}

// places returns the GPUs to which the shares of each container are bound.
func places(p request.Pod) map[string][]string {
	all := map[string][]string{}
	for _, c := range p.Containers {
		for _, s := range c.Shares {
			all[c.Name] = append(all[c.Name], strings.Join(s.GPUs, "|"))
		}
	}
	return all
}

func TestObey(t *testing.T) {
	tests := []struct {
		name string
		pod  *corev1.Pod
		want map[string][]string
	}{
		{"no assignment", pod(nil, container("a", limits{"memory": 1000})), map[string][]string{"a": {""}}},
		{"one GPU", pod(assigned("GPU-2,NVIDIA,1000,0:"), container("a", limits{"memory": 1000})), map[string][]string{"a": {"GPU-2"}}},
		{"two GPUs, in the scheduler's order", pod(assigned("GPU-2,NVIDIA,1000,20:GPU-1,NVIDIA,1000,20:"),
			container("a", limits{"number": 2, "memory": 1000, "cores": 20})), map[string][]string{"a": {"GPU-2", "GPU-1"}}},
		{"the first container requests nothing", pod(assigned("GPU-1,NVIDIA,1000,0:"),
			container("idle", nil), container("a", limits{"memory": 1000})), map[string][]string{"a": {"GPU-1"}}},
		{"the second of three requests nothing", pod(assigned("GPU-1,NVIDIA,1000,0:;GPU-2,NVIDIA,2000,0:"),
			container("a", limits{"memory": 1000}), container("idle", nil), container("b", limits{"number": 1, "memory": 2000})),
			map[string][]string{"a": {"GPU-1"}, "b": {"GPU-2"}}},
		{"a container with number 0 has an empty entry", pod(assigned(";GPU-2,NVIDIA,1000,0:"),
			container("none", limits{"number": 0}), container("a", limits{"memory": 1000})), map[string][]string{"a": {"GPU-2"}}},
		{"a container that asks in another language has none", pod(assigned("GPU-2,NVIDIA,1000,0:"),
			container("ours", limits{"nri-vgpu.io/vgpu-memory": 1}), container("a", limits{"memory": 1000})),
			map[string][]string{"ours": {""}, "a": {"GPU-2"}}},
		{"all of the memory", pod(assigned("GPU-1,NVIDIA,16384,100:"), container("a", limits{"number": 1, "cores": 100})),
			map[string][]string{"a": {"GPU-1"}}},
		{"percent, as the scheduler rounds", pod(assigned("GPU-1,NVIDIA,5406,0:"), container("a", limits{"number": 1, "memory-percentage": 33})),
			map[string][]string{"a": {"GPU-1"}}},
		{"percent, of which the scheduler knows nothing", pod(assigned("GPU-1,NVIDIA,16384,0:"), container("a", limits{"number": 1, "memory-percentage": 33})),
			map[string][]string{"a": {"GPU-1"}}},
		{"another node's assignment is none", pod(map[string]string{Node: "there", IDs: "GPU-9,NVIDIA,1,0:", BindTime: "1"},
			container("a", limits{"memory": 1000})), map[string][]string{"a": {""}}},
		{"a pod in another language has no assignment", pod(assigned("GPU-9,NVIDIA,1,0:"),
			container("a", limits{"nri-vgpu.io/vgpu-memory": 1})), map[string][]string{"a": {""}}},
		{"time alone is not assigned by the scheduler", pod(assigned(""), container("a", limits{"cores": 10})), map[string][]string{"a": {""}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := obey(t, tt.pod)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, places(got)); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
		})
	}
}

func with(annotations map[string]string, key, value string) map[string]string {
	annotations[key] = value
	return annotations
}

func TestObeyNot(t *testing.T) {
	one := container("a", limits{"memory": 1000, "cores": 20})
	tests := []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"more memory than requested", pod(assigned("GPU-1,NVIDIA,1001,20:"), one), "requests 1000 MiB"},
		{"less memory than requested", pod(assigned("GPU-1,NVIDIA,999,20:"), one), "requests 1000 MiB"},
		{"less than the percent requested", pod(assigned("GPU-1,NVIDIA,5405,0:"), container("a", limits{"number": 1, "memory-percentage": 33})), "requests 5406 MiB"},
		{"more time", pod(assigned("GPU-1,NVIDIA,1000,100:"), one), "requests 20 %"},
		{"a GPU of another node", pod(assigned("GPU-9,NVIDIA,1000,20:"), one), "GPU-9 is not in this node"},
		{"one GPU too many", pod(assigned("GPU-1,NVIDIA,1000,20:GPU-2,NVIDIA,1000,20:"), one), "the annotation has 2 GPUs"},
		{"no GPU", pod(assigned(""), one), "the annotation has 0 GPUs"},
		{"the same GPU twice", pod(assigned("GPU-1,NVIDIA,1000,0:GPU-1,NVIDIA,1000,0:"), container("a", limits{"number": 2, "memory": 1000})), "twice"},
		{"an entry too many", pod(assigned("GPU-1,NVIDIA,1000,20:;GPU-1,NVIDIA,1000,20:"), one), "for 2 containers, and 1 containers request GPUs"},
		{"an entry for a container without GPUs", pod(assigned("GPU-1,NVIDIA,1000,20:;GPU-1,NVIDIA,1,0:"), one, container("none", limits{"number": 0})), "the annotation has 1 GPUs"},
		{"nonsense", pod(assigned("GPU-1"), one), "colon"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := obey(t, tt.pod)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, %v; want an error with %q", places(got), err, tt.want)
			}
		})
	}
}

// TestObeyWithinTheAllowedGPUs checks that the scheduler assigns only GPUs that the pod's annotations
// allow.
func TestObeyWithinTheAllowedGPUs(t *testing.T) {
	cfg := config.Default()
	p := pod(assigned("GPU-1,NVIDIA,1000,0:"), container("a", limits{"memory": 1000}))
	for _, tt := range []struct {
		allowed []string
		err     string
	}{
		{nil, ""}, {[]string{"GPU-1"}, ""}, {[]string{"GPU-2", "GPU-1"}, ""},
		{[]string{"GPU-2", "GPU-3"}, "GPU GPU-1: the pod's annotations allow GPU-2, GPU-3 only"},
	} {
		asked, err := request.FromPod(p, cfg.Dialects)
		if err != nil {
			t.Fatal(err)
		}
		asked.Containers[0].Shares[0].GPUs = tt.allowed
		got, err := Obey(asked, p, gpus(), cfg)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q allowed: %v, want %q", tt.allowed, err, tt.err)
			}
			continue
		}
		if diff := cmp.Diff(map[string][]string{"a": {"GPU-1"}}, places(got)); err != nil || diff != "" {
			t.Errorf("%q allowed: %v, %s", tt.allowed, err, diff)
		}
	}
}

func TestMissed(t *testing.T) {
	sent := map[string]string{Group: "g"}
	asks, idle := container("a", limits{"memory": 1000}), container("a", nil)
	tests := []struct {
		name string
		pod  *corev1.Pod
		want bool
	}{
		{"sent here without GPUs", pod(sent, asks), true},
		{"it requests none", pod(sent, idle), false},
		{"by another scheduler", pod(nil, asks), false},
		{"with GPUs", pod(with(assigned(oneID), Group, "g"), asks), false},
		{"with another node's GPUs", pod(map[string]string{Group: "g", IDs: oneID, BindTime: "1", Node: "there"}, asks), true},
		{"they were given since", pod(map[string]string{Group: "g", Phase: Success}, asks), false},
		{"it was refused since", pod(map[string]string{Group: "g", Phase: Failed}, asks), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Missed(tt.pod, config.Default().Dialects.Volcano); got != tt.want {
				t.Errorf("Missed() = %t", got)
			}
		})
	}
}

// TestObeyChangesNothingOfWhatWasAskedFor checks that Obey does not change the request, which other
// code may share.
func TestObeyChangesNothingOfWhatWasAskedFor(t *testing.T) {
	p := pod(assigned("GPU-1,NVIDIA,1000,0:"), container("a", limits{"memory": 1000}))
	asked, err := request.FromPod(p, config.Default().Dialects)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Obey(asked, p, gpus(), config.Default()); err != nil {
		t.Fatal(err)
	}
	if got := asked.Containers[0].Shares[0].GPUs; got != nil {
		t.Errorf("it is bound to %v", got)
	}
}

// TestEntriesAreInTheOrderOfTheSpec checks that a container without a parsed request still has an
// entry.
func TestEntriesAreInTheOrderOfTheSpec(t *testing.T) {
	p := pod(assigned("GPU-1,NVIDIA,1000,0:;GPU-2,NVIDIA,1000,0:"), container("unread", limits{"memory": 1000}), container("a", limits{"memory": 1000}))
	asked, err := request.FromPod(p, config.Default().Dialects)
	if err != nil {
		t.Fatal(err)
	}
	read := asked.Containers[1:]
	if err := assign(read, p, gpus(), config.Default()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"GPU-2"}, read[0].Shares[0].GPUs); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

// TestPercentAreTheSchedulersMiB checks that this node, like the scheduler, counts 33 % in whole
// MiB. If this node counted more, the scheduler's sums would be wrong.
func TestPercentAreTheSchedulersMiB(t *testing.T) {
	for _, ids := range []string{"GPU-1,NVIDIA,5406,0:", "GPU-1,NVIDIA,16384,0:"} {
		got, err := obey(t, pod(assigned(ids), container("a", limits{"number": 1, "memory-percentage": 33})))
		if err != nil {
			t.Fatal(err)
		}
		if have := got.Containers[0].Shares[0].Memory; have != (request.Memory{Bytes: 5406 * mib}) {
			t.Errorf("assigned %s it has %+v, want 5406 MiB", ids, have)
		}
	}
	got, err := obey(t, pod(assigned("GPU-1,NVIDIA,16384,0:"), container("a", limits{"number": 1})))
	if err != nil {
		t.Fatal(err)
	}
	if have := got.Containers[0].Shares[0].Memory; have != (request.Memory{PPM: request.Whole}) {
		t.Errorf("memory %+v, want all of it", have)
	}
}

// TestInitContainersAreNotAssigned checks that init containers get no entry. Init containers use
// the pod's GPUs.
func TestInitContainersAreNotAssigned(t *testing.T) {
	p := pod(assigned("GPU-2,NVIDIA,1000,0:"), container("a", limits{"memory": 1000}))
	p.Spec.InitContainers = []corev1.Container{container("first", limits{"memory": 500})}
	got, err := obey(t, p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]string{"first": {""}, "a": {"GPU-2"}}, places(got)); diff != "" {
		t.Errorf("GPUs (-want +got):\n%s", diff)
	}
}

// TestReads checks which annotations this package reads. The cache drops annotations that no
// package reads.
func TestReads(t *testing.T) {
	read := []string{
		"volcano.sh/vgpu-node", "volcano.sh/vgpu-time", "volcano.sh/bind-time", "volcano.sh/bind-phase", "volcano.sh/vgpu-ids-new",
		"scheduling.k8s.io/group-name", "volcano.sh/devices-to-allocate",
	}
	for _, annotation := range read {
		if !Reads(annotation) {
			t.Errorf("%s is not read", annotation)
		}
	}
	if Reads("volcano.sh/other") {
		t.Error("an unused annotation is read")
	}
}
