// SPDX-License-Identifier: Apache-2.0

package mig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// These annotations choose GPUs by the name of the model, which contains the profile of a MIG device.
var (
	onSmall  = map[string]string{"nri-vgpu.io/use-gpu-type": "MIG 1g.10gb"}
	onLarge  = map[string]string{"nri-vgpu.io/use-gpu-type": "MIG 3g.40gb"}
	onNormal = map[string]string{"nri-vgpu.io/nouse-gpu-type": "MIG"}
)

// create creates a pod that fills its part of a GPU, and deletes the pod when the test ends.
func create(t *testing.T, name string, annotations map[string]string, limits testbed.Limits) {
	t.Helper()
	pod := testbed.Pod(name, testbed.Container("main", limits, "fill", "--max", "100GiB", "--hold", "3600"))
	pod.Annotations = annotations
	if _, err := bed.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			messages, err := bed.Messages(context.Background(), name)
			t.Logf("events of %s (%v): %q", name, err, messages)
		}
		if err := bed.Delete(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
}

// checkFilled checks that a pod has filled its limit of one GPU, and no more. By the oracle, the pod
// holds the limit on that GPU, and nothing elsewhere. The pod's container has the files of that GPU
// alone: a MIG device has the file of its GPU, and two capabilities.
func checkFilled(t *testing.T, name string, entry int, limit uint64) {
	t.Helper()
	pod, err := bed.WaitRunning(t.Context(), name, patience)
	if err != nil {
		t.Fatal(err)
	}
	var fill testbed.Fill
	if err := bed.WaitResult(t.Context(), name, "main", patience, &fill); err != nil {
		t.Fatal(err)
	}
	held, err := bed.Held(pod)
	if err != nil {
		t.Fatal(err)
	}
	uuid := bed.UUIDs[entry]
	if fill.TotalBytes != limit || len(held) != 1 || held[uuid] != limit {
		t.Errorf("pod %s saw %d bytes and holds %v, want %d bytes of %s", name, fill.TotalBytes, held, limit, uuid)
	}
	files, _, err := bed.ExecOutput(t.Context(), name, "ls", "/dev/gpusim")
	if err != nil {
		t.Fatal(err)
	}
	var gpus, caps int
	for _, file := range strings.Fields(files) {
		switch {
		case strings.HasPrefix(file, "gpu"):
			gpus++
		case strings.HasPrefix(file, "cap"):
			caps++
		}
	}
	wantCaps := 0
	if strings.HasPrefix(uuid, "MIG-") {
		wantCaps = 2
	}
	if gpus != 1 || caps != wantCaps {
		t.Errorf("pod %s has the files %s", name, files)
	}
}

// TestMIGDevices checks a pod that gets one MIG device as a whole, and two pods that get parts of the
// other MIG device. A fourth pod uses the GPU that is not in MIG mode.
func TestMIGDevices(t *testing.T) {
	create(t, "whole", onSmall, testbed.Limits{testbed.Number: 1})
	create(t, "quarter", onLarge, testbed.Limits{testbed.Memory: 10240})
	create(t, "rest", onLarge, testbed.Limits{testbed.Memory: 30720})
	create(t, "normal", onNormal, testbed.Limits{testbed.Memory: 10240})
	checkFilled(t, "whole", small, 10*gib)
	checkFilled(t, "quarter", large, 10*gib)
	checkFilled(t, "rest", large, 30*gib)
	checkFilled(t, "normal", normal, 10*gib)
	create(t, "late", onLarge, testbed.Limits{testbed.Memory: 1024})
	waitRefused(t, "late", "no GPU has room")

	wide, err := bed.KubectlVgpu(t.Context(), "get", "gpus", "-o", "wide")
	if err != nil {
		t.Fatal(err)
	}
	for number, entry := range map[string]int{"0:0": small, "0:1": large, "2": normal} {
		device, parent := bed.UUIDs[entry], "-"
		if strings.HasPrefix(device, "MIG-") {
			parent = bed.UUIDs[0]
		}
		if !slices.ContainsFunc(strings.Split(wide, "\n"), func(line string) bool {
			fields := strings.Fields(line)
			return len(fields) > 4 && fields[1] == number && fields[2] == device && fields[3] == parent
		}) {
			t.Errorf("kubectl vgpu does not list %s as GPU %s:\n%s", device, number, wide)
		}
	}
	labels := map[string]string{"uuid": bed.UUIDs[large], "parent": bed.UUIDs[0], "profile": "3g.40gb"}
	if got, err := bed.Metric(t.Context(), "nri_vgpu_gpu_mig_info", labels); err != nil || got != 1 {
		t.Errorf("the metric of the large device is %v: %v", got, err)
	}
}

// waitRefused waits until the agent has refused a pod's container.
func waitRefused(t *testing.T, name, phrase string) {
	t.Helper()
	_, err := bed.WaitPod(t.Context(), name, "refused: "+phrase, patience, func(pod *corev1.Pod) bool {
		status := pod.Status.ContainerStatuses
		return len(status) == 1 && status[0].State.Waiting != nil && strings.Contains(status[0].State.Waiting.Message, phrase)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSeveralGPUs checks that a container with two GPUs gets no MIG device. A process of CUDA uses at
// most one MIG device, and no GPU beside it. The node has only one other GPU.
func TestSeveralGPUs(t *testing.T) {
	create(t, "two", nil, testbed.Limits{testbed.Number: 2, testbed.Memory: 1024})
	waitRefused(t, "two", "a container with several GPUs gets no MIG device")
}

// TestErrorOfOneInstance checks that an error of one GPU instance takes one MIG device out of service.
// Containers on both devices continue, and new pods use the other device.
func TestErrorOfOneInstance(t *testing.T) {
	create(t, "victim", onSmall, testbed.Limits{testbed.Memory: 1024})
	create(t, "neighbour", onLarge, testbed.Limits{testbed.Memory: 1024})
	checkFilled(t, "victim", small, gib)
	checkFilled(t, "neighbour", large, gib)
	inject := func(args ...string) {
		t.Helper()
		if err := bed.Inject(args...); err != nil {
			t.Fatal(err)
		}
	}
	healthy := func(entry int, want float64) {
		t.Helper()
		eventually.Holds(t, patience, fmt.Sprintf("the health of %s is %v", bed.UUIDs[entry], want), func() bool {
			got, err := bed.Metric(t.Context(), "nri_vgpu_gpu_healthy", map[string]string{"uuid": bed.UUIDs[entry]})
			return err == nil && got == want
		})
	}
	t.Cleanup(func() {
		if err := bed.Inject("clear"); err != nil {
			t.Error(err)
		}
	})
	inject("--gpu", fmt.Sprint(small), "xid", "95")
	healthy(small, 0)
	healthy(large, 1)
	create(t, "next", onLarge, testbed.Limits{testbed.Memory: 1024})
	checkFilled(t, "next", large, gib)
	checkFilled(t, "victim", small, gib)
	checkFilled(t, "neighbour", large, gib)

	inject("--gpu", "0", "xid", "95")
	healthy(small, 0)
	healthy(large, 0)
	healthy(normal, 1)
	// The driver requests no recovery.
	healthy(small, 1)
	healthy(large, 1)
}

// TestGPUWithoutMIGDevices checks that a GPU in MIG mode without MIG devices is healthy and offers
// nothing. A MIG device that is created later is offered, and disappears when it is destroyed.
func TestGPUWithoutMIGDevices(t *testing.T) {
	sum := int64(10+40+80) * 1024
	waitMemory := func(want int64) {
		t.Helper()
		if err := bed.WaitCapacity(t.Context(), testbed.Memory, want, patience); err != nil {
			t.Error(err)
		}
	}
	waitMemory(sum)
	said, _ := bed.Vgpuctl(t.Context(), "doctor") // whose status depends on all checks
	if want := fmt.Sprintf("nothing of GPU 1 (%s) is offered: MIG mode is on", bed.UUIDs[empty]); !strings.Contains(said, want) {
		t.Errorf("doctor does not report %q:\n%s", want, said)
	}
	node, err := bed.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == "VGPUReady" && c.Status != corev1.ConditionTrue {
			t.Errorf("the node is not ready: %s", c.Message)
		}
	}
	made, err := bed.Simulate("mig", "create", bed.UUIDs[empty], "2g.20gb")
	if err != nil {
		t.Fatal(err)
	}
	waitMemory(sum + 20*1024)
	if _, err := bed.Simulate("mig", "destroy", strings.TrimSpace(made)); err != nil {
		t.Fatal(err)
	}
	waitMemory(sum)
}

// TestKeysOfOtherSystems checks that the modes of Volcano and HAMi choose MIG devices, and that shares of
// MetaGPU can be on a MIG device.
func TestKeysOfOtherSystems(t *testing.T) {
	configure(t, fmt.Sprintf(`[node]
foreign_resources = []

[dialects.hami]
enabled = true

[[dialects.metagpu.device_sharing]]
resource_name = "example.com/small"
shares_per_gpu = 4
uuids = [%q]
`, bed.UUIDs[small]))
	for name, want := range map[string]int64{"nvidia.com/gpu": 30, "example.com/small": 4} {
		if err := bed.WaitCapacity(t.Context(), name, want, patience); err != nil {
			t.Fatal(err)
		}
	}
	// The GPU that is not in MIG mode is the fullest GPU, and has room for each of the next pods.
	create(t, "fullest", onNormal, testbed.Limits{testbed.Memory: 61440})
	checkFilled(t, "fullest", normal, 60*gib)
	create(t, "volcano", map[string]string{"volcano.sh/vgpu-mode": "mig"}, testbed.Limits{"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 20480})
	checkFilled(t, "volcano", large, 20*gib)
	create(t, "hami", map[string]string{"nvidia.com/vgpu-mode": "mig"}, testbed.Limits{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20480})
	checkFilled(t, "hami", large, 20*gib)
	create(t, "metagpu", nil, testbed.Limits{"example.com/small": 1})
	checkFilled(t, "metagpu", small, 2560*mib)
}

// configure changes the configuration of agent and patcher until the test ends.
func configure(t *testing.T, text string) {
	t.Helper()
	set := func(ctx context.Context, text string) string {
		before, err := bed.SetConfig(ctx, text, patience)
		if err = errors.Join(err, bed.RestartPatcher(ctx)); err != nil {
			t.Error(err)
		}
		return before
	}
	before := set(t.Context(), text)
	t.Cleanup(func() { set(context.Background(), before) })
}
