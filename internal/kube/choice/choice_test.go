// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

// These are resources of dialects.
const (
	inNative  = "nri-vgpu.io/vgpu-memory"
	inVolcano = "volcano.sh/vgpu-memory"
	inAlnair  = "alnair/vgpu-memory"
	inHAMi    = "nvidia.com/gpumem"
	ofFirst   = "cnvrg.io/first" // a resource of GPU-1 alone
)

// notes are the annotations of a pod.
type notes map[string]string

// pod returns a pod with a container for each resource, which requests one unit.
func pod(annotations notes, resources ...corev1.ResourceName) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "uid", Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: "here"},
	}
	for _, name := range resources {
		limits := corev1.ResourceList{name: resource.MustParse("1")}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: string(name), Resources: corev1.ResourceRequirements{Limits: limits}})
	}
	return p
}

func cfg() config.Config {
	c := config.Default()
	c.Dialects.HAMi.Enabled = true
	c.Sharing.Method, c.Sharing.MPSGPUs = config.ShareByMPS, []string{"GPU-2"}
	c.Dialects.MetaGPU.DeviceSharing = append(c.Dialects.MetaGPU.DeviceSharing,
		config.DeviceSharing{ResourceName: ofFirst, SharesPerGPU: 10, UUIDs: []string{"GPU-1"}})
	return c
}

func gpus() []gpu.GPU {
	return []gpu.GPU{
		{UUID: "GPU-1", Index: 0, Name: "NVIDIA H200", MemoryBytes: 16 << 30, Healthy: true},
		{UUID: "GPU-2", Index: 1, Name: "Tesla V100-PCIE-32GB", MemoryBytes: 32 << 30, Healthy: true},
	}
}

// obey returns the GPUs that the shares of each container with shares accept, separated by "|".
func obey(t *testing.T, p *corev1.Pod) (map[string]string, error) {
	t.Helper()
	asked, err := request.FromPod(p, cfg().Dialects)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Obey(asked, p, gpus(), cfg())
	accepted := map[string]string{}
	for _, c := range got.Containers {
		if c.Asks() {
			accepted[c.Name] = strings.Join(c.Shares[0].GPUs, "|")
		}
	}
	for _, c := range asked.Containers {
		if c.Name != ofFirst && c.Asks() && len(c.Shares[0].GPUs) > 0 {
			t.Errorf("Obey changes the request, which other code may share: %v", c.Shares[0].GPUs)
		}
	}
	return accepted, err
}

func assigned(ids string, more notes) notes {
	all := notes{volcano.Node: "here", volcano.IDs: ids, volcano.BindTime: "1700000000"}
	for key, value := range more {
		all[key] = value
	}
	return all
}

func TestObey(t *testing.T) {
	type want = map[string]string
	tests := []struct {
		name string
		pod  *corev1.Pod
		want want
	}{
		{"no annotation", pod(nil, inNative), want{inNative: ""}},
		{"another annotation", pod(notes{"nri-vgpu.io/compute-policy": "cap"}, inNative), want{inNative: ""}},
		{"an empty list", pod(notes{UseType: " , "}, inNative), want{inNative: "GPU-1|GPU-2"}},
		{"nothing", pod(notes{UseType: " "}, inNative), want{inNative: ""}},

		{"a type, in any case", pod(notes{UseType: "A100, v100"}, inNative), want{inNative: "GPU-2"}},
		{"not a type", pod(notes{NoUseType: "v100"}, inNative), want{inNative: "GPU-1"}},
		{"both types", pod(notes{UseType: "V100,H200", NoUseType: "Tesla"}, inNative), want{inNative: "GPU-1"}},
		{"a UUID", pod(notes{UseUUID: "GPU-7, GPU-1"}, inNative), want{inNative: "GPU-1"}},
		{"not a UUID", pod(notes{NoUseUUID: "GPU-1"}, inNative), want{inNative: "GPU-2"}},
		{"a type and not a UUID", pod(notes{UseType: "H,V", NoUseUUID: "GPU-2"}, inNative), want{inNative: "GPU-1"}},
		{"our own annotations are for every dialect", pod(notes{UseUUID: "GPU-1"}, inNative, inAlnair, inVolcano),
			want{inNative: "GPU-1", inAlnair: "GPU-1", inVolcano: "GPU-1"}},
		{"a resource of the accepted GPU", pod(notes{UseUUID: "GPU-1,GPU-2"}, ofFirst), want{ofFirst: "GPU-1"}},

		{"Volcano: a type", pod(notes{"nvidia.com/use-gputype": "A100,v100"}, inVolcano), want{inVolcano: "GPU-2"}},
		{"Volcano: not a type", pod(notes{"nvidia.com/nouse-gputype": "v100"}, inVolcano), want{inVolcano: "GPU-1"}},
		{"Volcano: use goes before nouse", pod(notes{"nvidia.com/use-gputype": "V100", "nvidia.com/nouse-gputype": "Tesla"}, inVolcano),
			want{inVolcano: "GPU-2"}},
		{"Volcano: a UUID", pod(notes{"volcano.sh/vgpu-use-gpuuuid": "GPU-7, GPU-1"}, inVolcano), want{inVolcano: "GPU-1"}},
		{"Volcano: not a UUID", pod(notes{"volcano.sh/vgpu-nouse-gpuuuid": "GPU-1"}, inVolcano), want{inVolcano: "GPU-2"}},
		{"Volcano: our mode", pod(notes{"volcano.sh/vgpu-mode": "hami-core"}, inVolcano), want{inVolcano: "GPU-1|GPU-2"}},
		{"Volcano: MPS", pod(notes{"volcano.sh/vgpu-mode": "mps"}, inVolcano), want{inVolcano: "GPU-2"}},
		{"Volcano's annotations are for Volcano's containers", pod(notes{"volcano.sh/vgpu-use-gpuuuid": "GPU-1"}, inNative, inVolcano),
			want{inNative: "", inVolcano: "GPU-1"}},
		{"Volcano's annotations and our own", pod(notes{"volcano.sh/vgpu-use-gpuuuid": "GPU-1,GPU-2", NoUseUUID: "GPU-1"}, inVolcano),
			want{inVolcano: "GPU-2"}},
		{"HAMi: a type", pod(notes{"nvidia.com/use-gputype": "A100, v100"}, inHAMi), want{inHAMi: "GPU-2"}},
		{"HAMi: not a type", pod(notes{"nvidia.com/nouse-gputype": "1080,v100"}, inHAMi), want{inHAMi: "GPU-1"}},
		{"HAMi: a type and not a type", pod(notes{"nvidia.com/use-gputype": "NVIDIA", "nvidia.com/nouse-gputype": "Tesla"}, inHAMi), want{inHAMi: "GPU-1"}},
		{"HAMi: a UUID", pod(notes{"nvidia.com/use-gpuuuid": "GPU-7,GPU-1"}, inHAMi), want{inHAMi: "GPU-1"}},
		{"HAMi: not a UUID", pod(notes{"nvidia.com/nouse-gpuuuid": "GPU-1"}, inHAMi), want{inHAMi: "GPU-2"}},
		{"HAMi: a UUID beside a refused one", pod(notes{"nvidia.com/use-gpuuuid": "GPU-1,GPU-2", "nvidia.com/nouse-gpuuuid": "GPU-1"}, inHAMi), want{inHAMi: "GPU-2"}},
		{"HAMi: a mode", pod(notes{"nvidia.com/vgpu-mode": "hami-core"}, inHAMi), want{inHAMi: "GPU-1|GPU-2"}},
		{"HAMi: nothing", pod(notes{"nvidia.com/use-gpuuuid": ""}, inHAMi), want{inHAMi: ""}},
		{"HAMi's annotations are for HAMi's containers", pod(notes{"nvidia.com/use-gpuuuid": "GPU-1"}, inVolcano, inHAMi), want{inVolcano: "", inHAMi: "GPU-1"}},
		{"a container without GPUs first", pod(notes{UseUUID: "GPU-2"}, "cpu", inNative), want{inNative: "GPU-2"}},
		{"a long list without GPUs", pod(notes{UseUUID: strings.Repeat("x", mostBytes+1)}, "cpu"), want{}},
		{"assigned as wished", pod(assigned("GPU-2,NVIDIA,1,0:", notes{"nvidia.com/use-gputype": "v100"}), inVolcano), want{inVolcano: "GPU-2"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := obey(t, tt.pod)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestMIGDevices chooses among a MIG device of GPU-9 and two other GPUs.
func TestMIGDevices(t *testing.T) {
	node := append(gpus(), gpu.GPU{UUID: "MIG-1", Index: 2, Name: "NVIDIA H100 MIG 1g.10gb", MemoryBytes: 10 << 30, Healthy: true, MIG: gpu.MIG{Parent: "GPU-9"}})
	mps := cfg()
	mps.Sharing.MPSGPUs = []string{config.AllGPUs}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"Volcano's mode":       {pod(notes{"volcano.sh/vgpu-mode": "mig"}, inVolcano), "MIG-1"},
		"HAMi's mode":          {pod(notes{"nvidia.com/vgpu-mode": "mig"}, inHAMi), "MIG-1"},
		"another mode":         {pod(notes{"nvidia.com/vgpu-mode": "hami-core"}, inHAMi), "GPU-1|GPU-2|MIG-1"},
		"the mode of MPS":      {pod(notes{"nvidia.com/vgpu-mode": "mps"}, inHAMi), "GPU-1|GPU-2"},
		"the profile":          {pod(notes{UseType: "MIG 1g.10gb"}, inNative), "MIG-1"},
		"no MIG devices":       {pod(notes{NoUseType: "MIG"}, inNative), "GPU-1|GPU-2"},
		"its UUID":             {pod(notes{UseUUID: "MIG-1"}, inNative), "MIG-1"},
		"its GPU's UUID":       {pod(notes{UseUUID: "GPU-9"}, inNative), "MIG-1"},
		"nothing of its GPU":   {pod(notes{NoUseUUID: "GPU-9"}, inNative), "GPU-1|GPU-2"},
		"HAMi: its GPU's UUID": {pod(notes{"nvidia.com/use-gpuuuid": "GPU-9"}, inHAMi), "MIG-1"},
	} {
		asked, err := request.FromPod(tt.pod, mps.Dialects)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Obey(asked, tt.pod, node, mps)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if accepted := strings.Join(got.Containers[0].Shares[0].GPUs, "|"); accepted != tt.want {
			t.Errorf("%s: %s, want %s", name, accepted, tt.want)
		}
	}
}

func TestObeyNot(t *testing.T) {
	tests := []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"no such type", pod(notes{UseType: "A100"}, inNative), "pod ns/pod: the pod's annotations (nri-vgpu.io/use-gpu-type) allow no GPU of the node"},
		{"no GPU that is not excluded", pod(notes{NoUseType: "nvidia"}, inNative), "(nri-vgpu.io/nouse-gpu-type) allow"},
		{"not the GPU of the resource", pod(notes{UseUUID: "GPU-2"}, ofFirst), "no GPU of the node"},
		{"another mode", pod(notes{"volcano.sh/vgpu-mode": "slices"}, inVolcano), "no GPU of the node"},
		{"Volcano: MIG without MIG devices", pod(notes{"volcano.sh/vgpu-mode": "mig"}, inVolcano), "(volcano.sh/vgpu-mode) allow"},
		{"HAMi: MIG without MIG devices", pod(notes{"nvidia.com/vgpu-mode": "mig"}, inHAMi), "(nvidia.com/vgpu-mode) allow"},
		{"an unknown policy", pod(notes{Policy: "pack"}, inNative), `pod ns/pod: annotation nri-vgpu.io/placement-policy is "pack"; allowed: binpack, spread`},
		{"assigned against the wish", pod(assigned("GPU-1,NVIDIA,1,0:", notes{UseUUID: "GPU-2"}), inVolcano), "allow GPU-2 only"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got, err := obey(t, tt.pod); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, %v; want an error with %q", got, err, tt.want)
			}
		})
	}
}

func TestPolicy(t *testing.T) {
	const hamis = "hami.io/gpu-scheduler-policy"
	tests := []struct {
		name string
		pod  *corev1.Pod
		want string
	}{
		{"none", pod(nil, inNative), ""},
		{"binpack", pod(notes{Policy: "binpack"}, inNative), config.PlaceBinpack},
		{"spread", pod(notes{Policy: "spread"}, inAlnair), config.PlaceSpread},
		{"beside wishes", pod(notes{Policy: "spread", UseUUID: "GPU-1"}, inNative), config.PlaceSpread},
		{"HAMi: spread", pod(notes{hamis: "spread"}, inHAMi), config.PlaceSpread},
		{"HAMi: a list", pod(notes{hamis: "numa, binpack,spread"}, inHAMi), config.PlaceBinpack},
		{"HAMi: another policy", pod(notes{hamis: "mutex"}, inHAMi), ""},
		{"HAMi: the longest list", pod(notes{hamis: strings.Repeat(",", mostBytes-len("spread")) + "spread"}, inHAMi), config.PlaceSpread},
		{"HAMi: a long list", pod(notes{hamis: strings.Repeat(",", mostBytes) + "spread"}, inHAMi), ""},
		{"HAMi's annotation is for HAMi's containers", pod(notes{hamis: "spread"}, inVolcano), ""},
		{"our own annotation wins", pod(notes{hamis: "spread", Policy: "binpack"}, inHAMi), config.PlaceBinpack},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			asked, err := request.FromPod(tt.pod, cfg().Dialects)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := Obey(asked, tt.pod, gpus(), cfg()); err != nil || got.Policy != tt.want {
				t.Errorf("got %q, %v; want %q", got.Policy, err, tt.want)
			}
			for key := range tt.pod.Annotations {
				if !Reads(key) {
					t.Errorf("the package does not read %s", key)
				}
			}
		})
	}
}

// TestWishesAreBounded checks that Obey refuses long lists soon. While Obey compares lists with GPUs, the
// runtime waits, and starts no other container.
func TestWishesAreBounded(t *testing.T) {
	documented.Bound(t, "annotations that choose GPUs", documented.Bytes(mostBytes)+" each")
	timed.Run(t, func(t testing.TB) {
		var node []gpu.GPU
		for range request.MaxGPUs {
			node = append(node, gpu.GPU{UUID: "GPU-1", Name: "NVIDIA H100 80GB HBM3", MemoryBytes: 80 << 30, Healthy: true})
		}
		for dialect, w := range map[corev1.ResourceName]wishes{inNative: own, inVolcano: others[request.DialectVolcano], inHAMi: others[request.DialectHAMi]} {
			for _, key := range w.keys() {
				for length, ok := range map[int]bool{mostBytes: true, mostBytes + 1: false, 256<<10 - 64: false} {
					p := pod(notes{key: strings.Repeat("x,", length)[:length]}, dialect)
					asked, err := request.FromPod(p, cfg().Dialects)
					if err != nil {
						t.Fatal(err)
					}
					begin := time.Now()
					_, err = Obey(asked, p, node, config.Default())
					took := time.Since(begin)
					if refused := err != nil && strings.Contains(err.Error(), "allowed: 16384"); refused == ok {
						t.Errorf("%s of %d bytes: %.200v", key, length, err)
					}
					if took > 200*time.Millisecond {
						t.Errorf("%s of %d bytes took %v", key, length, took)
					}
				}
			}
		}
	})
}

// TestReads checks which annotations this package reads. The agent's cache drops annotations that no
// package reads.
func TestReads(t *testing.T) {
	for _, annotation := range []string{
		"nri-vgpu.io/use-gpu-type", "nri-vgpu.io/nouse-gpu-type", "nri-vgpu.io/use-gpu-uuid", "nri-vgpu.io/nouse-gpu-uuid",
		"nvidia.com/use-gputype", "nvidia.com/nouse-gputype",
		"nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid", "nvidia.com/vgpu-mode",
		"volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid", "volcano.sh/vgpu-mode", volcano.IDs,
	} {
		if !Reads(annotation) {
			t.Errorf("%s is not read", annotation)
		}
	}
	for _, annotation := range []string{"", "volcano.sh/other", "nri-vgpu.io/other"} {
		if Reads(annotation) {
			t.Errorf("%q, which nothing reads, is read", annotation)
		}
	}
}
