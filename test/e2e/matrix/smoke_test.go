// SPDX-License-Identifier: Apache-2.0

package matrix

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	gpus      = 2
	gpuMemory = 16 << 30
	gib       = 1 << 30

	patience = 2 * time.Minute
)

// These are the limits of the lasting pods, and the allowed deviation from the pods' part of the
// time, in points. A busy machine can keep a pod from using its part, but never increases the part.
const (
	stayMemory = 4096 // MiB
	stayCores  = 30
	over       = 4
	under      = 15
)

// suite is the smoke test on one node.
type suite struct {
	*testing.T
	bed *testbed.Bed
	// stays and spins are pods under limits that nothing may disturb.
	stays, spins *corev1.Pod
	method       string
}

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// create makes a pod. If the test fails, create logs the pod's state.
func (s *suite) create(pod *corev1.Pod) *corev1.Pod {
	s.Helper()
	created, err := s.bed.Create(s.Context(), pod)
	s.must(err)
	s.Cleanup(func() {
		if s.Failed() {
			messages, err := s.bed.Messages(context.Background(), pod.Name)
			s.Logf("events of %s (%v):\n  %s", pod.Name, err, strings.Join(messages, "\n  "))
		}
	})
	return created
}

// fills makes a pod that fills its memory until the interposer refuses memory. fills checks by the
// oracle that the pod holds its limit and not a byte more.
func (s *suite) fills(name string, mib int64) {
	s.Helper()
	s.create(testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: mib}, "fill", "--hold", "3600")))
	pod := s.running(name)
	var fill testbed.Fill
	s.must(s.bed.WaitResult(s.Context(), name, "main", patience, &fill))
	s.checkHeld(pod, uint64(mib)<<20)
	if fill.Error != "CUDA_ERROR_OUT_OF_MEMORY" || fill.TotalBytes != uint64(mib)<<20 {
		s.Errorf("%s saw %d bytes and was refused with %q", name, fill.TotalBytes, fill.Error)
	}
}

func (s *suite) running(name string) *corev1.Pod {
	s.Helper()
	pod, err := s.bed.WaitRunning(s.Context(), name, patience)
	s.must(err)
	return pod
}

func (s *suite) checkHeld(pod *corev1.Pod, want uint64) {
	s.Helper()
	held, err := s.bed.Held(pod)
	s.must(err)
	var sum uint64
	for _, bytes := range held {
		sum += bytes
	}
	if len(held) != 1 || sum != want {
		s.Errorf("%s holds %v by the oracle, want %d bytes of one GPU", pod.Name, held, want)
	}
}

// held runs a pod for each of the limits.
func (s *suite) held() {
	s.fills("stays", stayMemory)
	s.stays = s.running("stays")
	container := testbed.Container("main", testbed.Limits{testbed.Memory: 1024, testbed.Cores: stayCores},
		"spin", "--kernel-us", "500", "--duration", "3600")
	container.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}
	s.create(testbed.Pod("spins", container))
	s.spins = s.running("spins")
	s.checkTime()
	environment, _, err := s.bed.ExecOutput(s.Context(), "stays", "env")
	s.must(err)
	// With CDI devices the agent sets the variable that makes NVIDIA's runtime add no GPUs.
	s.method = config.InjectEnv
	if strings.Contains(environment, "NVIDIA_VISIBLE_DEVICES=void") {
		s.method = config.InjectCDI
	}
}

// checkTime measures the pod's part of the GPU's time, and repeats the measurement if the machine
// was too busy.
func (s *suite) checkTime() {
	s.Helper()
	share := 0.0
	eventually.Holds(s, patience, "the pod has its part of the time", func() bool {
		had, from, err := s.bed.GPUTime(s.spins)
		s.must(err)
		time.Sleep(3 * time.Second)
		has, to, err := s.bed.GPUTime(s.spins)
		s.must(err)
		share = 100 * float64(has-had) / float64(to-from)
		if share > stayCores+over {
			s.Fatalf("by the oracle the pod had %.1f %% of the GPU's time, want %d", share, stayCores)
		}
		return share > stayCores-under
	})
	s.Logf("the pod had %.1f %% of the GPU's time", share)
}

// checkStays checks that the pod was not disturbed.
func (s *suite) checkStays() {
	s.Helper()
	for _, pod := range []*corev1.Pod{s.stays, s.spins} {
		before, after := pod.Status.ContainerStatuses[0], s.running(pod.Name).Status.ContainerStatuses[0]
		if after.ContainerID != before.ContainerID || after.RestartCount != 0 {
			s.Errorf("%s was disturbed: the pod was %+v and is %+v", pod.Name, before, after)
		}
	}
	s.checkHeld(s.stays, stayMemory<<20)
	s.checkTime()
}

// cuda returns a pod whose image requests all GPUs, and whose spec requests no GPU.
func cuda(name string) *corev1.Pod {
	container := testbed.Container("main", nil, "info")
	container.Image = testbed.CUDAImage
	return testbed.Pod(name, container)
}

func (s *suite) checkSeesNone(name string) {
	s.Helper()
	_, err := s.bed.WaitSucceeded(s.Context(), name, patience)
	s.must(err)
	var info testbed.Info
	s.must(s.bed.WaitResult(s.Context(), name, "main", patience, &info))
	if len(info.CUDA.Devices) != 0 {
		s.Errorf("%s requests no GPU and sees %d", name, len(info.CUDA.Devices))
	}
}

func (s *suite) hidden() {
	s.create(cuda("asks-not"))
	s.checkSeesNone("asks-not")
}

// refused requests memory that both GPUs have together, and no single GPU has.
func (s *suite) refused() {
	s.fills("large", 14336)
	s.create(testbed.Pod("split", testbed.Container("main", testbed.Limits{testbed.Memory: 13312}, "fill")))
	_, err := s.bed.WaitPod(s.Context(), "split", "refused", patience, refusedWith("nri-vgpu"))
	s.must(err)
	s.must(s.bed.Delete(s.Context(), "split"))
	s.must(s.bed.Delete(s.Context(), "large"))
	s.create(testbed.Pod("huge", testbed.Container("main", testbed.Limits{testbed.Memory: 2 * gpuMemory >> 20}, "fill")))
	_, err = s.bed.WaitPod(s.Context(), "huge", "unschedulable", patience, func(pod *corev1.Pod) bool {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return true
			}
		}
		return false
	})
	s.must(err)
	s.must(s.bed.Delete(s.Context(), "huge"))
}

func refusedWith(words string) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		status := pod.Status.ContainerStatuses
		return len(status) == 1 && status[0].State.Waiting != nil && strings.Contains(status[0].State.Waiting.Message, words)
	}
}

// joined runs a process in a running container, as kubectl exec does. The agent lists the process,
// and by the oracle the process gets the container's limit and not a byte more.
func (s *suite) joined() {
	const mib = 2048
	s.create(testbed.Pod("joins", testbed.Container("main", testbed.Limits{testbed.Memory: mib}, "linger")))
	pod := s.running("joins")
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, stderr, err := s.bed.ExecOutput(ctx, pod.Name, "fill", "--hold", "3600")
		ended <- fmt.Errorf("fill ended: %w: %s", err, stderr)
	}()
	labels := map[string]string{"namespace": pod.Namespace, "pod": pod.Name, "container": "main"}
	eventually.Holds(s, patience, "the process is registered and fills the limit", func() bool {
		select {
		case err := <-ended:
			s.Fatal(err)
		default:
		}
		held, err := s.bed.Held(pod)
		s.must(err)
		processes, err := s.bed.Metric(s.Context(), "nri_vgpu_container_processes", labels)
		return err == nil && processes == 1 && held[s.bed.UUIDs[0]]+held[s.bed.UUIDs[1]] == mib<<20
	})
	s.must(s.bed.Delete(s.Context(), pod.Name))
}

func (s *suite) restarted() {
	s.must(s.bed.RestartAgent(s.Context(), patience))
	s.checkStays()
	s.fills("beside", 8192)
	s.must(s.bed.Delete(s.Context(), "beside"))
}

func (s *suite) killed() {
	s.must(s.bed.KillAgent(s.Context()))
	s.must(s.bed.WaitAgent(s.Context(), patience))
	s.fills("after", 8192)
	s.checkStays()
	s.must(s.bed.Delete(s.Context(), "after"))
}

// guarded restarts the runtime, which loads the guard, and removes the agent.
func (s *suite) guarded() {
	s.must(s.bed.Cluster.Restart(s.Context(), s.bed.Cluster.Runtime()))
	eventually.Holds(s, patience, "the guard runs", func() bool {
		_, loaded, err := guardfile.Loaded(filepath.Join(s.bed.Cluster.Root(), "run/nri-vgpu"))
		s.must(err)
		return loaded
	})
	s.must(s.bed.WaitNodeReady(s.Context(), patience))
	s.must(s.bed.StopAgent(s.Context(), patience))
	s.create(cuda("greedy"))
	s.create(testbed.Pod("plain", testbed.Container("main", nil, "info")))
	s.checkSeesNone("plain")
	_, err := s.bed.WaitPod(s.Context(), "greedy", "refused by the guard", patience, refusedWith("nri-vgpu's guard refuses"))
	s.must(err)
	s.checkStays()
	s.must(s.bed.StartAgent(s.Context(), patience))
	s.checkSeesNone("greedy")
	s.checkStays()
}

// givenBack deletes the pod, and checks that its files disappear and the Node has all capacity
// again.
func (s *suite) givenBack() {
	files := filepath.Dir(s.bed.ContainerFiles(s.stays, "main"))
	s.must(s.bed.Delete(s.Context(), "stays"))
	s.must(s.bed.Delete(s.Context(), "spins"))
	eventually.Holds(s, patience, "the pod's files are gone", func() bool {
		_, err := os.Stat(files)
		return os.IsNotExist(err)
	})
	s.must(s.bed.WaitCapacity(s.Context(), testbed.Memory, gpus*gpuMemory>>20, patience))
	s.fills("last", gpuMemory>>20)
}
