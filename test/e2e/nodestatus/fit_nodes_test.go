// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// TestFitPolicyAdmitsWhatNodesPlace checks random pods on random nodes. If the labels of a node fulfil the
// conditions of a pod, the node's ledger has GPUs for the pod. Pods that fit no empty node are omitted.
func TestFitPolicyAdmitsWhatNodesPlace(t *testing.T) {
	for _, amounts := range []string{config.AmountsPerGPU, config.AmountsTotal} {
		t.Run(amounts, func(t *testing.T) {
			fitPolicy(t, "config.dialects.native.amounts="+amounts)
			cfg := config.Default()
			cfg.Dialects.Native.Amounts, cfg.Node.SlotsPerGPU = amounts, 1000
			r := rand.New(rand.NewPCG(1, 2))
			bound, several := 0, 0
			for range 300 {
				pod := admitted(t, randomPod(r, amounts))
				asked, err := request.Read(pod, cfg)
				if err != nil {
					t.Fatal(err)
				}
				if !nodeWith(t, cfg, func() (uint64, uint32) { return 0, 0 }).Fits(asked) {
					continue
				}
				for range 30 {
					l := nodeWith(t, cfg, func() (uint64, uint32) { return 512 * r.Uint64N(33), uint32(r.IntN(11)) })
					if !request.RoomsOf(cards(), l.Left(nil), cfg).FitsShape(request.ShapeOf(pod)) {
						continue
					}
					if bound++; len(pod.Spec.InitContainers) > 0 && len(pod.Spec.Containers) > 1 {
						several++
					}
					if !l.Fits(asked) {
						t.Fatalf("the policy allows the node with the GPUs %v for a pod of the shape %s, which the node refuses: %+v", l.Free(), request.ShapeOf(pod), asked.Containers)
					}
				}
			}
			t.Logf("%d bindings, %d of pods with an init container and several app containers", bound, several)
			if several < 50 {
				t.Error("too few pods have several containers")
			}
		})
	}
}

// TestFitPolicyCountsAsNodes checks random pods whose containers each request MiB and time of one GPU. A
// node with one GPU fulfils the conditions of a pod exactly if the node's ledger has room for the pod.
func TestFitPolicyCountsAsNodes(t *testing.T) {
	fitPolicy(t)
	cfg := config.Default()
	cfg.Node.SlotsPerGPU = 1000
	r := rand.New(rand.NewPCG(3, 4))
	random := func(name string) corev1.Container {
		return containerAsking(name, asks{"nri-vgpu.io/vgpu-memory": fmt.Sprint(512 * (1 + r.IntN(20))), "nri-vgpu.io/vgpu-cores": fmt.Sprint(10 * (1 + r.IntN(6)))})
	}
	verdicts := map[bool]int{}
	for range 300 {
		pod := podAsking()
		for i := range 1 + r.IntN(2) {
			pod.Spec.Containers = append(pod.Spec.Containers, random(fmt.Sprint("app", i)))
		}
		for i := range r.IntN(5) {
			c := random(fmt.Sprint("init", i))
			if always := corev1.ContainerRestartPolicyAlways; r.IntN(3) == 0 {
				c.RestartPolicy = &always
			}
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		}
		pod = admitted(t, pod)
		asked, err := request.Read(pod, cfg)
		if err != nil {
			t.Fatal(err)
		}
		l := placement.New(cards()[:1], cfg)
		fits := request.RoomsOf(cards()[:1], l.Left(nil), cfg).FitsShape(request.ShapeOf(pod))
		if want := l.Fits(asked); fits != want {
			t.Fatalf("a pod of the shape %s fulfils the conditions: %t, and fits: %t: %+v", request.ShapeOf(pod), fits, want, asked.Containers)
		}
		verdicts[fits]++
	}
	if verdicts[true] < 50 || verdicts[false] < 50 {
		t.Errorf("too few verdicts of a kind: %v", verdicts)
	}
}

// TestFitPolicyRoundsParts checks pods that request equal parts of a GPU, for numbers of parts that do not
// divide 100. If a GPU that holds other parts fulfils the conditions of a pod, the GPU has room for the pod.
// With at most 100 parts, no pod waits for more room than it needs.
func TestFitPolicyRoundsParts(t *testing.T) {
	const metagpu = "config.dialects.metagpu.device_sharing[0]."
	fitPolicy(t, "config.dialects.aws.slots_per_gpu=7", metagpu+"resource_name=cnvrg.io/metagpu", metagpu+"shares_per_gpu=300",
		metagpu+"auto_reshare=false", metagpu+"uuids[0]=*")
	cfg := config.Default()
	cfg.Node.SlotsPerGPU, cfg.Dialects.AWS.SlotsPerGPU = 1000, 7
	cfg.Dialects.MetaGPU.DeviceSharing[0].SharesPerGPU, cfg.Dialects.MetaGPU.DeviceSharing[0].AutoReshare = 300, false
	for resourceName, parts := range map[string][]int{"k8s.amazonaws.com/vgpu": {1, 2, 3, 4, 5, 6, 7}, "cnvrg.io/metagpu": {1, 2, 3, 100, 101, 200, 299, 300}} {
		pods := map[int]*corev1.Pod{}
		for _, n := range parts {
			pods[n] = admitted(t, podAsking(asks{resourceName: fmt.Sprint(n)}))
		}
		for _, held := range parts {
			l := placement.New(cards()[:1], cfg)
			other, err := request.Read(podAsking(asks{resourceName: fmt.Sprint(held)}), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if other.UID = "other"; held < parts[len(parts)-1] {
				if _, err := l.Place(other, "app0"); err != nil {
					t.Fatal(err)
				}
			}
			rooms := request.RoomsOf(cards()[:1], l.Left(nil), cfg)
			for n, pod := range pods {
				asked, err := request.Read(pod, cfg)
				if err != nil {
					t.Fatal(err)
				}
				fulfils, fits := rooms.FitsShape(request.ShapeOf(pod)), l.Fits(asked)
				if fulfils && !fits || !fulfils && fits && len(parts) == 7 {
					t.Errorf("%d of %s beside %d: the GPU fulfils the conditions: %t, and has room: %t", n, resourceName, held, fulfils, fits)
				}
			}
		}
	}
}

// TestFitPolicySpreadsParts checks pods whose parts may be spread over GPUs. Only the whole GPUs of a request
// need room on single GPUs.
func TestFitPolicySpreadsParts(t *testing.T) {
	fitPolicy(t, "config.dialects.metagpu.allow_spread=true")
	cfg := config.Default()
	cfg.Dialects.MetaGPU.AllowSpread = true
	for parts, want := range map[string][]need{"150": {{"1", 0, 100, 100, 0}}, "300": {{"4", 0, 100, 100, 3}}} {
		pod := admitted(t, podAsking(asks{"cnvrg.io/metagpu": parts}))
		if diff := cmp.Diff(terms("", want...), termsOf(pod)); diff != "" {
			t.Errorf("%s parts: terms (-want +got):\n%s", parts, diff)
		}
		asked, err := request.Read(pod, cfg)
		if err != nil {
			t.Fatal(err)
		}
		l := nodeWith(t, cfg, func() (uint64, uint32) { return 1 << 10, 1 })
		if fulfils, fits := request.RoomsOf(cards(), l.Left(nil), cfg).FitsShape(request.ShapeOf(pod)), l.Fits(asked); fulfils || fits {
			t.Errorf("%s parts on a node without an empty GPU: the labels fulfil the conditions: %t, and the GPUs have room: %t", parts, fulfils, fits)
		}
	}
}

// randomPod returns a pod with init containers, a sidecar and app containers.
func randomPod(r *rand.Rand, amounts string) *corev1.Pod {
	random := func() asks {
		number, mib, cores := int64(1+r.IntN(8)/6), 512*(1+r.Int64N(16)), 10*r.Int64N(5)
		if amounts == config.AmountsTotal {
			mib, cores = mib*number, cores*number
		}
		a := asks{"nri-vgpu.io/vgpu-number": fmt.Sprint(number), "nri-vgpu.io/vgpu-memory": fmt.Sprint(mib)}
		switch r.IntN(9) {
		case 0: // of 16 GiB
			delete(a, "nri-vgpu.io/vgpu-memory")
			a["nri-vgpu.io/vgpu-memory-percentage"] = fmt.Sprint(100 * mib / (16 << 10))
		case 1:
			return asks{"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": fmt.Sprint(mib), "volcano.sh/vgpu-cores": "100"}
		case 2:
			return asks{"k8s.amazonaws.com/vgpu": fmt.Sprint(1 + r.IntN(12))}
		}
		if cores > 0 {
			a["nri-vgpu.io/vgpu-cores"] = fmt.Sprint(cores)
		}
		return a
	}
	if r.IntN(20) == 0 {
		return podAsking(asks{"alnair/vgpu-compute": "20"})
	}
	pod := podAsking(random())
	for i := range r.IntN(3) {
		pod.Spec.Containers = append(pod.Spec.Containers, containerAsking(fmt.Sprint("more", i), random()))
	}
	for i := range r.IntN(3) {
		c := containerAsking(fmt.Sprint("init", i), random())
		if always := corev1.ContainerRestartPolicyAlways; r.IntN(4) == 0 {
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	return pod
}

// cards returns four GPUs of 16 GiB.
func cards() (all []gpu.GPU) {
	for i := range 4 {
		all = append(all, gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, MemoryBytes: 16 << 30, Healthy: true})
	}
	return all
}

// nodeWith returns the ledger of a node with four GPUs. taken returns the MiB and the tenths of the time
// that other pods hold of a GPU.
func nodeWith(t *testing.T, cfg config.Config, taken func() (mib uint64, tenths uint32)) *placement.Ledger {
	t.Helper()
	l := placement.New(cards(), cfg)
	for _, g := range cards() {
		mib, tenths := taken()
		if mib == 0 && tenths == 0 {
			continue // an empty GPU
		}
		share := request.Share{Memory: request.Memory{Bytes: mib * request.MiB}, ComputePPM: tenths * request.Whole / 10, Slots: 1, GPUs: []string{g.UUID}}
		if err := l.Hold(request.Pod{UID: g.UUID, Containers: []request.Container{{Name: "c", Kind: request.App, Shares: []request.Share{share}}}}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}
