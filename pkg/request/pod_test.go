// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// asks are the limits of a container, by resource name.
type asks map[string]string

func container(name string, a asks) corev1.Container {
	limits := corev1.ResourceList{"cpu": resource.MustParse("100m")}
	for res, q := range a {
		limits[corev1.ResourceName(res)] = resource.MustParse(q)
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: limits, Requests: limits}}
}

func podOf(containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-1"},
		Spec:       corev1.PodSpec{Containers: containers},
	}
}

// test is one request in one dialect, with the expected shares or a part of the expected error.
type test struct {
	name string
	asks asks
	want []Share
	err  string
}

func run(t *testing.T, dialect string, cfg config.Dialects, tests []test) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pod, err := FromPod(podOf(container("c", tt.asks)), cfg)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got error %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := Container{Name: "c", Kind: App, Dialect: dialect, Shares: tt.want}
			if len(tt.want) == 0 {
				want.Dialect = ""
			}
			if diff := cmp.Diff(want, pod.Containers[0]); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFromPodKinds(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	sidecar := container("side", asks{"nri-vgpu.io/vgpu-memory": "1"})
	sidecar.RestartPolicy = &always
	pod := podOf(container("app", asks{"alnair/vgpu-memory": "1"}), container("none", nil))
	pod.Spec.InitContainers = []corev1.Container{container("init", asks{"k8s.amazonaws.com/vgpu": "1"}), sidecar}
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{
		EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"},
	}}

	got, err := FromPod(pod, config.Default().Dialects)
	if err != nil {
		t.Fatal(err)
	}
	want := Pod{UID: "uid-1", Namespace: "ns", Name: "p", Containers: []Container{
		{Name: "init", Kind: Init, Dialect: DialectAWS, Shares: []Share{{Memory: Memory{PPM: 100_000}, ComputePPM: 100_000}}},
		{Name: "side", Kind: Sidecar, Dialect: DialectNative, Shares: []Share{{Memory: Memory{Bytes: MiB}, Slots: 1}}},
		{Name: "app", Kind: App, Dialect: DialectAlnair, Shares: []Share{{Memory: Memory{GiB: 1}}}},
		{Name: "none", Kind: App},
		{Name: "debug", Kind: Ephemeral},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFromPodOfASingleLimit(t *testing.T) {
	c := container("c", asks{"cnvrg.io/metagpu": "100"})
	delete(c.Resources.Limits, "cpu")
	got, err := FromPod(podOf(c), config.Default().Dialects)
	if err != nil || len(got.Containers[0].Shares) != 1 {
		t.Errorf("%+v, %v, want a share", got, err)
	}
}

func TestFromPodKeepsTheVersion(t *testing.T) {
	pod := podOf(container("c", nil))
	pod.ResourceVersion = "17"
	if got, err := FromPod(pod, config.Default().Dialects); err != nil || got.Version != "17" {
		t.Errorf("got %+v, %v, want version 17", got, err)
	}
}

func TestAmounts(t *testing.T) {
	pod := podOf(
		container("a", asks{"alnair/vgpu-memory": "1"}),
		container("b", asks{"nri-vgpu.io/vgpu-memory": "5", "cnvrg.io/metagpu": "7", "nri-vgpu.io/vgpu-cores": "0", "nvidia.com/gpu": "1"}),
	)
	pod.Spec.InitContainers = []corev1.Container{container("i", asks{"k8s.amazonaws.com/vgpu": "3", "nri-vgpu.io/vgpu-memory": "500m"})}
	for name, want := range map[string]map[string]int64{
		"a":    {"alnair/vgpu-memory": 1},
		"b":    {"nri-vgpu.io/vgpu-memory": 5, "cnvrg.io/metagpu": 7},
		"i":    {"k8s.amazonaws.com/vgpu": 3},
		"none": {},
	} {
		if diff := cmp.Diff(want, Amounts(pod, name, config.Default().Dialects)); diff != "" {
			t.Errorf("container %s: %s", name, diff)
		}
	}
}

func TestFromPodRefuses(t *testing.T) {
	run(t, "", config.Default().Dialects, []test{
		{"two dialects", asks{"nri-vgpu.io/vgpu-memory": "1", "alnair/vgpu-compute": "5"}, nil,
			`pod ns/p: container "c": requests GPUs in two dialects, native (nri-vgpu.io/vgpu-memory) and alnair (alnair/vgpu-compute)`},
		{"a fraction", asks{"nri-vgpu.io/vgpu-number": "500m"}, nil,
			"nri-vgpu.io/vgpu-number is 500m; allowed: a whole number"},
		{"a negative amount", asks{"cnvrg.io/metagpu": "-1"}, nil, "cnvrg.io/metagpu is -1; allowed: a whole number"},
		{"beyond 63 bits", asks{"nri-vgpu.io/vgpu-memory": "9223372036854775808"}, nil, "of at most 63 bits"},
	})
}

func TestFromPodReportsEveryContainer(t *testing.T) {
	_, err := FromPod(podOf(
		container("a", asks{"nri-vgpu.io/vgpu-cores": "101"}),
		container("b", asks{"alnair/vgpu-compute": "101"}),
	), config.Default().Dialects)
	if err == nil || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), `"b"`) {
		t.Errorf("got %v, want both containers named", err)
	}
}

func TestFromPodBoundsHowManyAsk(t *testing.T) {
	for name, memory := range map[string]string{"in range": "1", "out of range": "-1"} {
		for asking, want := range map[int]bool{MostAsking: false, MostAsking + 1: true} {
			pod := podOf(container("idle", nil))
			for i := range asking {
				pod.Spec.InitContainers = append(pod.Spec.InitContainers,
					container(fmt.Sprintf("init-%d", i), asks{"nri-vgpu.io/vgpu-memory": memory}))
			}
			_, err := FromPod(pod, config.Default().Dialects)
			if got := err != nil && strings.Contains(err.Error(), "allowed: 64"); got != want {
				t.Errorf("%s: %d of %d containers ask: %.200v", name, asking, asking+1, err)
			}
			if err != nil && want && len(err.Error()) > 200 {
				t.Errorf("%s: the error has %d bytes", name, len(err.Error()))
			}
		}
	}
}

func TestFromPodLeavesOthersAlone(t *testing.T) {
	disabled := config.Default().Dialects
	disabled.AWS.Enabled = false
	run(t, "", disabled, []test{
		{"nothing", nil, nil, ""},
		{"another plugin's resource", asks{"nvidia.com/gpu": "1"}, nil, ""},
		{"a disabled dialect", asks{"k8s.amazonaws.com/vgpu": "1"}, nil, ""},
		{"zero requests nothing", asks{"nri-vgpu.io/vgpu-number": "0", "nri-vgpu.io/vgpu-memory": "0"}, nil, ""},
	})
	run(t, DialectNative, disabled, []test{
		{"zero of another dialect is no mixture", asks{"nri-vgpu.io/vgpu-memory": "1", "cnvrg.io/metagpu": "0"},
			[]Share{{Memory: Memory{Bytes: MiB}, Slots: 1}}, ""},
	})
}

func TestMemoryOn(t *testing.T) {
	const total = 16160 * MiB // a V100 of "16 GB": 15.78 GiB, advertised as 16
	tests := []struct {
		name   string
		memory Memory
		total  uint64
		want   uint64
	}{
		{"bytes", Memory{Bytes: 5}, total, 5},
		{"half", Memory{PPM: Whole / 2}, total, total / 2},
		{"whole", Memory{PPM: Whole}, 143_771 * MiB, 143_771 * MiB},
		{"in common", Memory{Common: true}, total, total},
		{"GiB, rounded down", Memory{GiB: 2}, 22_700 * MiB, 2 * GiB},
		{"GiB, rounded up", Memory{GiB: 8}, total, total / 2},
		{"all GiB, rounded up", Memory{GiB: 16}, total, total},
		{"GiB on a GPU smaller than half of one", Memory{GiB: 1}, 100 * MiB, GiB},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.memory.On(tt.total); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}
