// SPDX-License-Identifier: Apache-2.0

package helm

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// memory and cores are the limits of the working pod. over is the number of points by which the pod
// may exceed its part of the time.
const (
	memory = 4096 // MiB
	cores  = 30
	over   = 4
)

// work consists of pods under load. One pod holds memory, one pod wants all of the GPU's time, and
// one pod restarts in the end.
type work struct {
	*suite
	steady, spins, again *corev1.Pod
	pids                 []int
	had, at              time.Duration
	given                map[string]string // the allocation of each pod
	watch                *watch            // watches the Node
}

// startWork starts pods under load, whose names end in suffix.
func (s *suite) startWork(suffix string) *work {
	s.Helper()
	fill := func(mib int64) corev1.Container {
		return testbed.Container("main", testbed.Limits{testbed.Memory: mib}, "fill", "--hold", "3600")
	}
	spin := testbed.Container("main", testbed.Limits{testbed.Memory: 1024, testbed.Cores: cores},
		"spin", "--kernel-us", "500", "--duration", "3600")
	spin.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	for name, container := range map[string]corev1.Container{"steady": fill(memory), "again": fill(memory / 2), "spins": spin} {
		pod := testbed.Pod(name+suffix, container)
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		_, err := s.bed.Create(s.Context(), pod)
		s.must(err)
	}
	w := &work{suite: s}
	w.steady, w.spins, w.again = w.running("steady"+suffix), w.running("spins"+suffix), w.running("again"+suffix)
	eventually.Holds(s, patience, "the pods hold their memory, and compute", func() bool {
		w.look()
		return w.held(w.steady) == memory<<20 && w.held(w.again) == memory<<20/2 && w.had > 0
	})
	w.pids, w.given, w.watch = w.processes(), w.assignments(), s.watchNode()
	w.look()
	return w
}

func (w *work) pods() []*corev1.Pod { return []*corev1.Pod{w.steady, w.spins, w.again} }

func (w *work) running(name string) *corev1.Pod {
	w.Helper()
	pod, err := w.bed.WaitRunning(w.Context(), name, patience)
	w.must(err)
	return pod
}

func (w *work) held(pod *corev1.Pod) uint64 {
	held, err := w.bed.Held(pod)
	w.must(err)
	var sum uint64
	for bytes := range maps.Values(held) {
		sum += bytes
	}
	return sum
}

func (w *work) processes() []int {
	var all []int
	for _, pod := range w.pods() {
		pids, err := w.bed.Pids(pod)
		w.must(err)
		all = append(all, pids...)
	}
	slices.Sort(all)
	return all
}

// look records the pod's GPU time so far.
func (w *work) look() {
	var err error
	w.had, w.at, err = w.bed.GPUTime(w.spins)
	w.must(err)
}

// check checks by the oracle that nothing has disturbed the pods since the last check. The same
// processes kept all of their memory, and continuously had GPU time within their limit.
func (w *work) check() {
	w.Helper()
	before, from := w.had, w.at
	w.look()
	share := 100 * float64(w.had-before) / float64(w.at-from)
	w.say("the pod that runs had %.1f %% of the GPU's time, of %d", share, cores)
	// On a busy machine the share may be small, but must be at least one percent.
	if share > cores+over || share < 1 {
		w.Errorf("the pod that runs had %.1f %% of the GPU's time, want %d", share, cores)
	}
	if pids := w.processes(); !slices.Equal(pids, w.pids) {
		w.Errorf("the pod's processes are %v, and were %v", pids, w.pids)
	}
	for _, pod := range w.pods() {
		now := w.running(pod.Name)
		if status := now.Status.ContainerStatuses[0]; status.RestartCount != pod.Status.ContainerStatuses[0].RestartCount || status.ContainerID != pod.Status.ContainerStatuses[0].ContainerID {
			w.Errorf("%s was restarted: %s", pod.Name, describe(now))
		}
	}
	for pod, want := range map[*corev1.Pod]uint64{w.steady: memory << 20, w.again: memory << 20 / 2} {
		if held := w.held(pod); held != want {
			w.Errorf("%s holds %d bytes, want %d", pod.Name, held, want)
		}
	}
	w.checkFull()
	w.checkKept()
}

// checkFull checks that a new process in the full container is refused.
func (w *work) checkFull() {
	w.Helper()
	stdout, stderr, err := w.bed.ExecOutput(w.Context(), w.steady.Name, "fill")
	if err == nil || !strings.Contains(stdout, "CUDA_ERROR_OUT_OF_MEMORY") || !strings.Contains(stderr, "nri-vgpu: refused") {
		w.Errorf("a second process in a full container printed %q and %q, want it to be refused: %v", stdout, stderr, err)
	}
}

// checkClosed restarts a container after nri-vgpu was removed. The container would run without
// limits, so the guard refuses it.
func (w *work) checkClosed() {
	w.Helper()
	w.must(w.bed.KillContainer(w.again))
	nudge := w.bed.Nudger(w.again.Name)
	_, err := w.bed.WaitPod(w.Context(), w.again.Name, "refused by the guard", patience, func(pod *corev1.Pod) bool {
		nudge(w.Context())
		status := pod.Status.ContainerStatuses
		return len(status) == 1 && status[0].State.Waiting != nil && strings.Contains(status[0].State.Waiting.Message, "nri-vgpu was removed from this node")
	})
	w.must(err)
	if held := w.held(w.again); held != 0 {
		w.Errorf("a container that starts again holds %d bytes of a GPU", held)
	}
	w.checkFull()
}

// end deletes the pods.
func (w *work) end() {
	w.Helper()
	w.must(w.bed.DeleteAll(w.Context(), w.steady.Name, w.spins.Name, w.again.Name))
}

// files returns the directories of the pods' containers, and the mount points of their usage pages.
// All paths are paths on the node.
func (w *work) files() []string {
	var all []string
	for _, pod := range w.pods() {
		dir := strings.TrimPrefix(filepath.Dir(w.bed.ContainerFiles(pod, "main")), w.bed.Cluster.Root())
		all = append(all, dir, strings.Replace(dir, "/containers/", "/usage/", 1))
	}
	return all
}
