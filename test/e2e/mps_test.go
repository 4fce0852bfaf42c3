// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	mpsProgram = "/usr/bin/nvidia-cuda-mps-control"
	// blocksOfAll is the number of blocks that fill the simulated GPU.
	blocksOfAll = "4224"
	// wellServed is the time within which an ended daemon must be back.
	wellServed = 15 * time.Second
)

// byMPS shares GPU 0 through the Multi-Process Service, and stops processes that compute on GPUs
// outside of pods. The agent must not stop the service's server.
func byMPS(config string) string {
	// The first key of this name is node.slots_per_gpu.
	config = strings.Replace(config, "\nslots_per_gpu = 10\n", "\nslots_per_gpu = 100\n", 1)
	return strings.NewReplacer(
		"method = \"time\"", "method = \"mps\"",
		"mps_gpus = [\"*\"]", fmt.Sprintf("mps_gpus = [%q]", bed.UUIDs[0]),
		"host_action = \"report\"", "host_action = \"stop\"",
	).Replace(config)
}

// mpsControl makes the node's daemon run a command.
func mpsControl(t *testing.T, command string) string {
	t.Helper()
	answer, err := bed.Cluster.Exec(t.Context(), "sh", "-c",
		"echo "+command+" | CUDA_MPS_PIPE_DIRECTORY=/run/nri-vgpu/mps/pipes "+mpsProgram)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

// mpsClients returns the number of processes that the daemon's server serves.
func mpsClients(t *testing.T) int {
	t.Helper()
	servers := strings.Fields(mpsControl(t, "get_server_list"))
	if len(servers) == 0 {
		return 0
	}
	return len(strings.Fields(mpsControl(t, "get_client_list "+servers[0])))
}

// mpsDaemon returns the pid of the daemon's process on this machine.
func mpsDaemon(t *testing.T) int {
	t.Helper()
	pids := nodeProcesses(t, func(_, command string) bool { return strings.HasPrefix(command, mpsProgram+" -f") })
	if len(pids) != 1 {
		t.Fatalf("the daemon is %d processes", len(pids))
	}
	return pids[0]
}

// wide returns a pod that runs kernels for some seconds and reports their number. Each kernel would
// fill the GPU for a millisecond.
func wide(name string, percent int64) *corev1.Pod {
	return testbed.Pod(name, testbed.Container("main", testbed.Limits{testbed.Memory: 2048, testbed.Cores: percent},
		"spin", "--kernel-us", "1000", "--blocks", blocksOfAll, "--depth", "8", "--warmup", "4", "--duration", "4"))
}

// testMPSSideBySide checks that two pods without settings for MPS share a GPU at the same time,
// each on its part. All processes of another pod together fill no more memory than the pod's limit.
func testMPSSideBySide(t *testing.T) {
	create(t, wide("quarter", 25))
	create(t, wide("half", 50))
	both := shares(t, []*corev1.Pod{works(t, "quarter"), works(t, "half")}, func() { time.Sleep(time.Second) })
	if both[0] < 80 || both[1] < 80 {
		t.Errorf("by the oracle the pods had the GPU for %.0f %% of the time, want all of it at the same time", both)
	}
	for name, want := range map[string]float64{"quarter": 250, "half": 500} {
		var spun struct {
			UUID string  `json:"uuid"`
			Rate float64 `json:"kernels_per_s"`
		}
		if err := bed.WaitResult(t.Context(), name, "main", patience, &spun); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.0f kernels a second, where the whole GPU does 1000", name, spun.Rate)
		if spun.Rate > want*1.02 || spun.Rate < want*0.85 {
			t.Errorf("%s did %.0f kernels a second, want %.0f", name, spun.Rate, want)
		}
		if spun.UUID != bed.UUIDs[0] {
			t.Errorf("%s was on %s, which is not shared by MPS", name, spun.UUID)
		}
	}
	create(t, testbed.Pod("two", testbed.Container("main", testbed.Limits{testbed.Memory: 2048}, "fill", "--max", "700MiB", "--hold", "3600")))
	two := running(t, "two")
	eventually.Holds(t, patience, "the first process of the pod is a client", func() bool { return mpsClients(t) == 1 })
	filled(t, two.Name, "main")
	background(t, two.Name, "fill", "--hold", "3600")
	eventually.Holds(t, patience, "both processes of the pod are clients", func() bool { return mpsClients(t) == 2 })
	eventually.Holds(t, patience, "by the oracle the two processes hold all that the pod was given", func() bool { return held(t, two)[bed.UUIDs[0]] == 2*gib })
	time.Sleep(100 * time.Millisecond) // time in which the second would exceed the limit
	if _, bytes := onlyGPU(t, held(t, two)); bytes != 2*gib {
		t.Errorf("by the oracle the pod's two processes hold %d bytes, want %d", bytes, 2*gib)
	}
	if err := bed.Delete(t.Context(), "two"); err != nil {
		t.Fatal(err)
	}
}

// awsPod returns a pod as in the README of the AWS virtual GPU plugin. The pod contains the
// settings that MPS requires in that plugin, and runs unmodified.
func awsPod(name string) *corev1.Pod {
	container := filler("resnet-container", testbed.Limits{"k8s.amazonaws.com/vgpu": 1})
	container.VolumeMounts = []corev1.VolumeMount{{Name: "nvidia-mps", MountPath: "/tmp/nvidia-mps"}}
	pod := testbed.Pod(name, container)
	pod.Spec.HostIPC = true
	pod.Spec.Volumes = []corev1.Volume{{Name: "nvidia-mps", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/nvidia-mps"}}}}
	return pod
}

// testMPSOutlivesTheAgent checks that replacing the agent does not disturb the daemon or its
// clients.
func testMPSOutlivesTheAgent(t *testing.T) {
	create(t, awsPod("resnet"))
	pod := running(t, "resnet")
	if err := bed.WaitHeld(t.Context(), pod, 1, patience); err != nil {
		t.Fatal(err)
	}
	uuid, bytes := onlyGPU(t, held(t, pod))
	if want := uint64(gpuMemory-64*mib) / 10; uuid != bed.UUIDs[0] || bytes > want || bytes < want-mib {
		t.Errorf("a slot of ten is %d bytes on %s, want %d on %s", bytes, uuid, want, bed.UUIDs[0])
	}
	daemon := mpsDaemon(t)
	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	waitSaid(t, "nri_vgpu_mps_ready 1", patience)
	if after := mpsDaemon(t); after != daemon {
		t.Errorf("process %d is the daemon, want %d as before the agent's restart", after, daemon)
	}
	if clients := mpsClients(t); clients != 1 {
		t.Errorf("the daemon has %d clients, want 1", clients)
	}
	after := running(t, "resnet")
	if before := pod.Status.ContainerStatuses[0].ContainerID; after.Status.ContainerStatuses[0].ContainerID != before {
		t.Error("the client was restarted")
	}
	if _, still := onlyGPU(t, held(t, after)); still != bytes {
		t.Errorf("the client holds %d bytes, want %d", still, bytes)
	}
	waitSaid(t, "nri_vgpu_mps_clients 1", patience)
}

// testMPSKilledAndBack checks that the agent restarts a killed daemon, and refuses containers until
// then.
func testMPSKilledAndBack(t *testing.T) {
	program := filepath.Join(bed.Cluster.Root(), mpsProgram)
	if err := os.Rename(program, program+".away"); err != nil {
		t.Fatal(err)
	}
	back := func() {
		if err := os.Rename(program+".away", program); err != nil {
			t.Error(err)
		}
	}
	signal(t, mpsDaemon(t), syscall.SIGKILL)
	waitSaid(t, "nri_vgpu_mps_ready 0", patience)
	create(t, testbed.Pod("late", filler("main", testbed.Limits{testbed.Memory: 1024})))
	_, err := bed.WaitPod(t.Context(), "late", "refused", patience, refusedBy("the MPS control daemon does not run"))
	back()
	if err != nil {
		t.Fatal(err)
	}
	waitEvent(t, "default", "involvedObject.kind=Node", "MPSUnavailable", "the agent refuses pods on its GPUs", patience)
	waitSaid(t, "nri_vgpu_mps_ready 1", patience)
	started(t, "late")
	checkFilled(t, "late", gib)

	daemon := mpsDaemon(t)
	killed := time.Now()
	signal(t, daemon, syscall.SIGKILL)
	eventually.Holds(t, patience, "another daemon serves", func() bool {
		pids := nodeProcesses(t, func(_, command string) bool { return strings.HasPrefix(command, mpsProgram+" -f") })
		ready, err := bed.Metric(t.Context(), "nri_vgpu_mps_ready", nil)
		return len(pids) == 1 && pids[0] != daemon && err == nil && ready == 1
	})
	if took := time.Since(killed); took > wellServed {
		t.Errorf("the daemon was back after %v, want at most %v", took, wellServed)
	}
	if err := bed.Delete(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
}

// crowd returns a pod with this number of containers.
func crowd(name string, containers int) *corev1.Pod {
	pod := testbed.Pod(name)
	for i := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers,
			testbed.Container("c"+strconv.Itoa(i), testbed.Limits{testbed.Memory: 16}, "linger"))
	}
	return pod
}

// testMPS49thClient checks that no GPU gets more containers than the GPU can serve clients. The
// agent refuses a pod with the 49th container before any container of the pod starts.
func testMPS49thClient(t *testing.T) {
	create(t, testbed.Pod("other", filler("main", testbed.Limits{testbed.Memory: gpuMemory / mib})))
	if uuid := checkFilledWhole(t, "other"); uuid != bed.UUIDs[1] {
		t.Fatalf("GPU 0 has its server, and a pod that needs all memory was given %s", uuid)
	}
	create(t, crowd("crowd49", 49))
	_, err := bed.WaitPod(t.Context(), "crowd49", "refused", patience, func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
			return s.State.Waiting != nil && strings.Contains(s.State.Waiting.Message, "as clients of MPS")
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.Delete(t.Context(), "crowd49"); err != nil {
		t.Fatal(err)
	}
	// The containers of a single pod would start one after another.
	for i := range 4 {
		create(t, crowd(fmt.Sprintf("crowd12-%d", i), 12))
	}
	for i := range 4 {
		if _, err := bed.WaitRunning(t.Context(), fmt.Sprintf("crowd12-%d", i), 3*time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Holds(t, patience, "no more of GPU 0 is advertised than its pods have", func() bool {
		node, err := bed.Node(t.Context())
		if err != nil {
			return false
		}
		memory := node.Status.Allocatable[testbed.Memory]
		return memory.Value() == 48*16+gpuMemory/mib
	})
}

// checkFilledWhole checks that a pod has all memory of a GPU.
func checkFilledWhole(t *testing.T, name string) string {
	t.Helper()
	pod := running(t, name)
	if err := bed.WaitHeld(t.Context(), pod, 1, patience); err != nil {
		t.Fatal(err)
	}
	uuid, bytes := onlyGPU(t, held(t, pod))
	if bytes < gpuMemory-mib {
		t.Errorf("%s holds %d bytes, want %d", name, bytes, gpuMemory)
	}
	return uuid
}

func TestMPS(t *testing.T) {
	setConfig(t, byMPS)
	waitSaid(t, "nri_vgpu_mps_ready 1", patience)
	daemon := mpsDaemon(t)
	t.Run("SideBySide", testMPSSideBySide)
	t.Run("OutlivesTheAgent", testMPSOutlivesTheAgent)
	if after := mpsDaemon(t); after != daemon {
		t.Errorf("process %d is the daemon, want %d: detection.host_action must not stop it", after, daemon)
	}
	t.Run("KilledAndBack", testMPSKilledAndBack)
	t.Run("49thClient", testMPS49thClient)
	t.Run("EndsWhenItIsNoLongerWanted", testMPSEnds)
}

// testMPSEnds checks that no daemon or directory of MPS remains after MPS is removed from the
// configuration.
func testMPSEnds(t *testing.T) {
	signal(t, mpsDaemon(t), 0)
	endMPS(t)
}
