// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestOvercommit(t *testing.T) {
	const (
		ours    = "nri-vgpu.io/vgpu-memory"
		metagpu = "cnvrg.io/metagpu"
		alnair  = "alnair/vgpu-memory"
		volcano = "volcano.sh/vgpu-memory"
		percent = "volcano.sh/vgpu-memory-percentage"
		aws     = "k8s.amazonaws.com/vgpu"
	)
	ppm := func(n uint32) Memory { return Memory{PPM: n} }
	for _, tt := range []struct {
		name            string
		allowed         int
		asks            asks
		resource, value string
		want            []Memory // limits of the shares
		err             string
	}{
		{"MetaGPU", 100, asks{metagpu: "30"}, metagpu, "60", []Memory{ppm(600_000)}, ""},
		{"a part beside a whole GPU", 100, asks{metagpu: "150"}, metagpu, "180", []Memory{ppm(Whole), ppm(800_000)}, ""},
		{"AWS", 50, asks{aws: "2"}, aws, "3", []Memory{ppm(300_000)}, ""},
		{"Alnair", 100, asks{alnair: "2", "alnair/vgpu-compute": "50"}, alnair, "4", []Memory{{GiB: 4}}, ""},
		{"ours, on two GPUs", 100, asks{ours: "1000", "nri-vgpu.io/vgpu-number": "2"}, ours, "1500",
			[]Memory{{Bytes: 1500 * MiB}, {Bytes: 1500 * MiB}}, ""},
		{"as much as is allowed", 50, asks{ours: "1000"}, ours, "1500", []Memory{{Bytes: 1500 * MiB}}, ""},
		{"Volcano", 100, asks{volcano: "1000"}, volcano, "2000", []Memory{{Bytes: 2000 * MiB}}, ""},
		{"Volcano's percent", 100, asks{percent: "20"}, percent, "40", []Memory{ppm(400_000)}, ""},
		{"no more than requested", 100, asks{metagpu: "30"}, metagpu, "30", []Memory{ppm(300_000)}, ""},
		{"not requesting GPUs", 0, asks{}, metagpu, "60", nil, ""},

		{"not allowed", 0, asks{metagpu: "30"}, metagpu, "30", nil, "memory.overcommit_percent"},
		{"too much", 50, asks{metagpu: "30"}, metagpu, "46", nil, `"46"; allowed: 30 to 45 for container "c", which requests 30`},
		{"too much by one", 50, asks{ours: "1000"}, ours, "1501", nil, "allowed: 1000 to 1500 for"},
		{"less than requested", 50, asks{metagpu: "30"}, metagpu, "29", nil, "allowed: 30 to 45"},
		{"nothing", 50, asks{metagpu: "30"}, metagpu, "0", nil, "allowed: 30 to 45"},
		{"the largest number", 50, asks{metagpu: "30"}, metagpu, "16777216", nil, "allowed: 30 to 45"},
		{"a larger one", 50, asks{metagpu: "30"}, metagpu, "16777217", nil, "a whole number, up to 16777216"},
		{"more than a GPU", 1000, asks{metagpu: "30"}, metagpu, "101", nil, "no more than the same 1 GPUs have"},
		{"no number", 100, asks{metagpu: "30"}, metagpu, "60%", nil, "a whole number"},
		{"another resource", 100, asks{metagpu: "30"}, aws, "2", nil, "that a container requests"},
		{"not of memory", 100, asks{ours: "1000", "nri-vgpu.io/vgpu-cores": "20"}, "nri-vgpu.io/vgpu-cores", "40", nil, "a resource of memory"},
		{"percent where MiB go before them", 100, asks{volcano: "1000", percent: "20"}, percent, "40", nil, "a resource of memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config.Default()
			cfg.Memory.OvercommitPercent = tt.allowed
			pod := podOf(container("c", tt.asks))
			pod.Annotations = map[string]string{"gpu-mem-limit." + tt.resource: tt.value, "other": "x"}
			got, err := Read(pod, cfg)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("got %v, want an error with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			plain, err := FromPod(pod, cfg.Dialects)
			if err != nil {
				t.Fatal(err)
			}
			for i := range plain.Containers[0].Shares {
				plain.Containers[0].Shares[i].Limit = tt.want[i]
			}
			if diff := cmp.Diff(plain, got); diff != "" {
				t.Errorf("the annotation changes more than the limits (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOvercommitOfSomeContainers checks that an annotation applies only to the containers that
// request its resource.
func TestOvercommitOfSomeContainers(t *testing.T) {
	cfg := config.Default()
	cfg.Memory.OvercommitPercent = 100
	pod := podOf(container("a", asks{"cnvrg.io/metagpu": "30"}), container("b", asks{"k8s.amazonaws.com/vgpu": "1"}),
		container("c", asks{}), container("d", asks{"cnvrg.io/metagpu": "40"}))
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, container("i", asks{"cnvrg.io/metagpu": "35"}))
	pod.Annotations = map[string]string{"gpu-mem-limit.cnvrg.io/metagpu": "60"}
	got, err := Read(pod, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range got.Containers {
		for _, s := range c.Shares {
			if raised := s.Limit == (Memory{PPM: 600_000}); raised != (c.Dialect == DialectMetaGPU) {
				t.Errorf("container %s has the limit %+v", c.Name, s.Limit)
			}
		}
	}
}

func TestAnnotationsAreBounded(t *testing.T) {
	resources := len(Names(config.Default().Dialects))
	for count, want := range map[int]bool{resources: false, resources + 1: true, 5000: true} {
		pod := podOf(container("main", asks{"nri-vgpu.io/vgpu-memory": "1024"}))
		pod.Annotations = map[string]string{}
		for i := range count {
			pod.Annotations[fmt.Sprint(LimitAnnotation, "x", i)] = "1"
		}
		_, err := Read(pod, config.Default())
		if err == nil || strings.Contains(err.Error(), "one for each resource") != want || want && len(err.Error()) > 300 {
			t.Errorf("%d annotations: %.300v", count, err)
		}
	}
}

// TestReads checks which annotations Reads accepts: the cache of pods drops all other annotations.
func TestReads(t *testing.T) {
	for annotation, want := range map[string]bool{
		PolicyAnnotation: true, MaximumAnnotation + "cnvrg.io/metagpu": true, LimitAnnotation + "cnvrg.io/metagpu": true,
		"nri-vgpu.io/compute-policies": false, "kubectl.kubernetes.io/last-applied-configuration": false,
	} {
		if got := Reads(annotation); got != want {
			t.Errorf("%s: %v", annotation, got)
		}
	}
}
