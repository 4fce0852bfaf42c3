// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// TestEqualPartsOfAGPU draws histories of pods that request equal parts of GPUs, for numbers of parts
// that do not divide 100. The parts of a GPU must never exceed the GPU. All parts of a GPU that no pod
// holds must stay available, although each part is rounded.
func TestEqualPartsOfAGPU(t *testing.T) {
	for _, spread := range []bool{false, true} {
		for _, perGPU := range []int{2, 3, 6, 7, 9, 11, 12, 13, 15, 17, 19, 48} {
			t.Run(fmt.Sprintf("%d parts, spread %t", perGPU, spread), func(t *testing.T) {
				for seed := range 20 {
					w := newWorld(seed)
					w.useParts(t, perGPU, spread)
				}
			})
		}
	}
}

// useParts places and releases pods on a node whose GPUs each have a number of equal parts. With spread,
// a pod may have parts of several GPUs.
func (w world) useParts(t *testing.T, perGPU int, spread bool) {
	t.Helper()
	cfg := config.Default()
	cfg.Node.SlotsPerGPU = perGPU
	name := cfg.Dialects.AWS.Slots
	cfg.Dialects.AWS.SlotsPerGPU = perGPU
	if spread {
		sharing := &cfg.Dialects.MetaGPU.DeviceSharing[0]
		sharing.SharesPerGPU, sharing.AutoReshare, cfg.Dialects.MetaGPU.AllowSpread = perGPU, false, true
		name = sharing.ResourceName
	}
	cards := gpus(make([]uint64, 1+w.IntN(4))...)
	for i := range cards {
		cards[i].MemoryBytes = gib + w.Uint64N(80*gib)
	}
	l := New(cards, cfg)
	held := map[string]int{}
	for i := range 60 {
		uid, parts := fmt.Sprint("pod", i), 1+w.IntN(perGPU)
		taken, largest := partsOf(l, cards, cfg, name)
		fits := largest >= parts || spread && parts < perGPU && len(cards)*perGPU-taken >= parts
		p := partsPod(t, uid, name, parts, cfg)
		if got := l.Fits(p); got != fits {
			t.Fatalf("a pod with %d parts fits: %t, want %t; on %v", parts, got, fits, l.Free())
		}
		if fits {
			placeAll(l, p)
			held[uid] = parts
		}
		checkBooks(t, l)
		sum := 0
		for _, n := range held {
			sum += n
		}
		if taken, _ = partsOf(l, cards, cfg, name); taken != sum {
			t.Fatalf("the pods hold %d parts, and the node lacks %d: %v", sum, taken, l.Free())
		}
		if gone := fmt.Sprint("pod", w.IntN(i+1)); w.IntN(3) == 0 {
			l.Release(gone)
			delete(held, gone)
		}
	}
}

// partsOf returns the number of parts that the node's GPUs lack, and the largest number of free parts
// of a GPU.
func partsOf(l *Ledger, cards []gpu.GPU, cfg config.Config, name string) (taken, largest int) {
	left := l.Left(nil)
	for _, g := range cards {
		one := request.Free([]gpu.GPU{g}, left, cfg)[name]
		taken += int(request.Capacity([]gpu.GPU{g}, cfg)[name] - one)
		largest = max(largest, int(one))
	}
	return taken, largest
}

func partsPod(t *testing.T, uid, name string, parts int, cfg config.Config) request.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	pod.UID = types.UID(uid)
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceName(name): *resource.NewQuantity(int64(parts), resource.DecimalSI)},
	}}}
	asked, err := request.FromPod(pod, cfg.Dialects)
	if err != nil || !slices.ContainsFunc(asked.Containers, request.Container.Asks) {
		t.Fatalf("%d parts: %v, %v", parts, asked, err)
	}
	return asked
}
