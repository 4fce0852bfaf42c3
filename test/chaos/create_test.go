// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// crowd is the largest number of subjects beside the steady subjects.
const crowd = 10

// createPods repeatedly creates and deletes pods of all kinds.
func (w *world) createPods(ctx context.Context, r *rand.Rand) {
	var lives sync.WaitGroup
	room := make(chan struct{}, crowd)
	for loop.Sleep(ctx, between(r, 50*time.Millisecond, 500*time.Millisecond)) {
		room <- struct{}{}
		d, make := w.plan(r, w.subjects.next())
		w.subjects.add(d.subject)
		w.count.add("subjects", d.kind)
		if err := make(w, d); err != nil {
			// The subject may exist if only the answer was lost.
			w.count.add("creations failed", reason(err))
		}
		lives.Go(func() {
			loop.Sleep(ctx, d.life)
			w.remove(ctx, d.subject)
			<-room
		})
	}
	lives.Wait()
}

// remove ends a subject, and retries while the API server does not answer.
func (w *world) remove(ctx context.Context, one *subject) {
	one.ordered.Store(true)
	for one.end() != nil && loop.Sleep(ctx, time.Second) {
	}
}

// makeSteady creates the pods that no failure may disturb. These are one pod of every kind that
// holds GPU resources, and one pod that requests no GPU.
func (w *world) makeSteady() {
	w.Helper()
	r := w.random(1 << 32)
	for _, make := range []struct {
		name string
		pod  func(*draft)
		make func(*world, *draft) error
	}{
		{"steady-one", func(d *draft) {
			d.pod.Spec.Containers = []corev1.Container{d.hold("main", askMemory(4096), r)}
		}, (*world).makePod},
		{"steady-three", func(d *draft) {
			d.pod.Spec.InitContainers = []corev1.Container{d.brief("init", askMemory(1000), r)}
			d.pod.Spec.Containers = []corev1.Container{d.hold("a", askMemory(1000), r), d.hold("b", askMemory(2000), r), d.idle("c", true)}
			d.pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		}, (*world).makePod},
		{"steady-static", func(d *draft) {
			d.pod.Spec.Containers = []corev1.Container{d.hold("main", askMemory(3000), r)}
		}, (*world).makeStatic},
		{"steady-job", func(d *draft) {
			d.pod.Spec.Containers = []corev1.Container{d.hold("main", askMemory(1500), r)}
		}, (*world).makeJob},
		{"steady-whole", func(d *draft) {
			d.pod.Spec.Containers = []corev1.Container{d.hold("main", askMemory(gpuMemory/mib), r)}
		}, (*world).makePod},
		{"steady-idle", func(d *draft) {
			d.pod.Spec.Containers = []corev1.Container{d.idle("main", true)}
		}, (*world).makePod},
	} {
		d := newDraft(make.name, "steady", r)
		d.steady = true
		// Kubelet treats static pods as critical. If a static pod arrives and the node has no room
		// for its request, kubelet ends pods that are not critical.
		d.pod.Spec.PriorityClassName = "system-node-critical"
		make.pod(d)
		w.subjects.add(d.subject)
		if err := make.make(w, d); err != nil {
			w.Fatal(err)
		}
	}
	if err := eventually.Check(w.Context(), patience, w.scanner.steadyRuns); err != nil {
		w.Fatalf("before anything was broken: %v", err)
	}
}
