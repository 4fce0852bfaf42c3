// SPDX-License-Identifier: Apache-2.0

package request

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// cores is the resource of a part of a GPU's time.
const cores = "nri-vgpu.io/vgpu-cores"

func TestPolicy(t *testing.T) {
	for _, test := range []struct {
		node   string
		choice bool
		chosen string
		want   uint32
		err    string
	}{
		{config.ComputeCap, false, "", 0, ""},
		{config.ComputeShare, false, "", Whole, ""},
		{config.ComputeCap, true, "share", Whole, ""},
		{config.ComputeShare, true, "cap", 0, ""},
		{config.ComputeShare, false, "share", Whole, ""},
		{config.ComputeCap, false, "share", 0, `pod ns/p: annotation nri-vgpu.io/compute-policy is "share"; allowed: cap, as this node leaves pods no choice`},
		{config.ComputeShare, false, "cap", 0, `is "cap"; allowed: share, as`},
		{config.ComputeCap, true, "Share", 0, `is "Share"; allowed: cap, share`},
	} {
		pod := podOf(container("c", asks{cores: "30"}))
		if test.chosen != "" {
			pod.Annotations = map[string]string{PolicyAnnotation: test.chosen}
		}
		cfg := config.Default()
		cfg.Compute = config.Compute{Policy: test.node, PodsMayChoose: test.choice}
		got, err := Read(pod, cfg)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%+v: %v", test, err)
			}
		} else if err != nil || got.Containers[0].Shares[0].MaximumPPM != test.want {
			t.Errorf("%+v: got %+v, %v", test, got, err)
		}
	}
}

func TestMaximum(t *testing.T) {
	const (
		metagpu = "cnvrg.io/metagpu"
		alnair  = "alnair/vgpu-compute"
		volcano = "volcano.sh/vgpu-cores"
		aws     = "k8s.amazonaws.com/vgpu"
	)
	for _, tt := range []struct {
		name            string
		asks            asks
		resource, value string
		want            []uint32 // maxima of the shares
		err             string
	}{
		{"ours", asks{cores: "20"}, cores, "50", []uint32{500_000}, ""},
		{"all", asks{cores: "20"}, cores, "100", []uint32{Whole}, ""},
		{"the guarantee: a cap", asks{cores: "20"}, cores, "20", []uint32{0}, ""},
		{"on two GPUs", asks{cores: "20", "nri-vgpu.io/vgpu-number": "2"}, cores, "50", []uint32{500_000, 500_000}, ""},
		{"Alnair", asks{alnair: "20"}, alnair, "50", []uint32{500_000}, ""},
		{"AWS, in slots", asks{aws: "2"}, aws, "5", []uint32{500_000}, ""},
		{"Volcano", asks{volcano: "20", "volcano.sh/vgpu-memory": "1000"}, volcano, "50", []uint32{500_000}, ""},
		{"MetaGPU, in shares", asks{metagpu: "20"}, metagpu, "50", []uint32{500_000}, ""},
		{"a part beside a whole GPU", asks{metagpu: "150"}, metagpu, "180", []uint32{0, 800_000}, ""},
		{"a whole GPU", asks{cores: "100"}, cores, "100", []uint32{0}, ""},
		{"not requesting GPUs", asks{}, cores, "50", nil, ""},

		{"below the guarantee", asks{cores: "20"}, cores, "19", nil,
			`annotation gpu-compute-limit.nri-vgpu.io/vgpu-cores is "19"; allowed: 20 to 100 for container "c", which requests 20: the maximum is at least the guarantee`},
		{"over all", asks{cores: "20"}, cores, "101", nil, `is "101"; allowed: 20 to 100 for container "c"`},
		{"over all slots", asks{aws: "2"}, aws, "11", nil, "allowed: 2 to 10 for"},
		{"more than a whole GPU", asks{metagpu: "100"}, metagpu, "120", nil, "allowed: 100 to 100 for"},
		{"no number", asks{cores: "20"}, cores, "50%", nil, "a whole number"},
		{"negative", asks{cores: "20"}, cores, "-50", nil, "a whole number"},
		{"without a guarantee", asks{"nri-vgpu.io/vgpu-memory": "1024"}, cores, "50", nil, "none requests " + cores},
		{"a whole GPU that requests no time", asks{"nri-vgpu.io/vgpu-number": "1"}, "nri-vgpu.io/vgpu-number", "1", nil, "a resource of GPU time"},
		{"not of time", asks{cores: "20", "nri-vgpu.io/vgpu-memory": "1024"}, "nri-vgpu.io/vgpu-memory", "1024", nil, "a resource of GPU time"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, policy := range []string{config.ComputeCap, config.ComputeShare} {
				cfg := config.Default()
				cfg.Compute = config.Compute{Policy: policy, PodsMayChoose: true}
				pod := podOf(container("c", tt.asks))
				pod.Annotations = map[string]string{MaximumAnnotation + tt.resource: tt.value}
				got, err := Read(pod, cfg)
				if tt.err != "" {
					if err == nil || !strings.Contains(err.Error(), tt.err) {
						t.Fatalf("got %v, want an error with %q", err, tt.err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				plain, err := FromPod(pod, cfg.Dialects)
				if err != nil {
					t.Fatal(err)
				}
				for i := range plain.Containers[0].Shares {
					plain.Containers[0].Shares[i].MaximumPPM = tt.want[i]
				}
				if diff := cmp.Diff(plain, got); diff != "" {
					t.Errorf("policy %s: the annotation changes more than the maxima (-want +got):\n%s", policy, diff)
				}
			}
		})
	}
}

// TestMaximumOfFewSlots checks that isTime recognizes a resource of time by the neighbours of an
// amount, even if one neighbour is invalid.
func TestMaximumOfFewSlots(t *testing.T) {
	const slots = "k8s.amazonaws.com/vgpu"
	cfg := config.Default()
	cfg.Compute.PodsMayChoose = true
	cfg.Dialects.AWS.SlotsPerGPU = 2
	for asked, want := range map[string]uint32{"1": Whole, "2": 0} {
		pod := podOf(container("c", asks{slots: asked}))
		pod.Annotations = map[string]string{MaximumAnnotation + slots: "2"}
		got, err := Read(pod, cfg)
		if err != nil || got.Containers[0].Shares[0].MaximumPPM != want {
			t.Errorf("%s of 2 slots: %+v, %v, want the maximum %d", asked, got, err, want)
		}
	}
}

// TestPolicyOfSharesWithoutTime checks that a container that requests no part of the time has no
// maximum.
func TestPolicyOfSharesWithoutTime(t *testing.T) {
	cfg := config.Default()
	cfg.Compute.Policy = config.ComputeShare
	got, err := Read(podOf(container("c", asks{"nri-vgpu.io/vgpu-memory": "1024"})), cfg)
	if err != nil || got.Containers[0].Shares[0].MaximumPPM != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestMaximumOfSomeContainers checks that an annotation applies only to the containers that request
// its resource, and that the other containers get the policy's maximum.
func TestMaximumOfSomeContainers(t *testing.T) {
	cfg := config.Default()
	cfg.Compute.PodsMayChoose = true
	pod := podOf(container("a", asks{cores: "30"}), container("b", asks{"k8s.amazonaws.com/vgpu": "1"}), container("c", asks{}))
	pod.Annotations = map[string]string{MaximumAnnotation + cores: "60", PolicyAnnotation: config.ComputeShare}
	got, err := Read(pod, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := got.Containers[0].Shares[0].MaximumPPM, got.Containers[1].Shares[0].MaximumPPM; a != 600_000 || b != Whole {
		t.Errorf("the maxima are %d and %d", a, b)
	}
}
