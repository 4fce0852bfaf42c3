// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	bigShares  = "example.com/big"
	awsSlots   = "k8s.amazonaws.com/vgpu"
	slotsLabel = "example.com/slots"
)

// knobs is a configuration in which many keys differ from their defaults.
func knobs() string {
	return fmt.Sprintf(`[node]
slots_per_gpu = 3

[memory]
overcommit_percent = 100

[dialects.aws]
slots_per_gpu = 4
node_label = "%s=yes"

[dialects.metagpu]
allow_spread = true

[[dialects.metagpu.device_sharing]]
resource_name = "%s"
shares_per_gpu = 7
auto_reshare = true

[[dialects.metagpu.device_sharing]]
resource_name = "%s"
shares_per_gpu = 4
uuids = [%q]
`, slotsLabel, metagpu, bigShares, bed.UUIDs[1])
}

// restartPatcher makes the patcher read config.toml.
func restartPatcher(t *testing.T) {
	t.Helper()
	if err := bed.RestartPatcher(context.Background()); err != nil {
		t.Error(err)
	}
}

// label sets a label of the node, or removes the label if the value is "".
func label(t *testing.T, key, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, key, value)
	if value == "" {
		patch = fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, key)
	}
	_, err := bed.Client.CoreV1().Nodes().Patch(context.Background(), bed.Cluster.NodeName, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Error(err)
	}
}

// TestKnobs checks the keys of config.toml that change the node's offer. Each check compares the
// amounts on the Node and the memory of a container.
func TestKnobs(t *testing.T) {
	t.Cleanup(func() { restartPatcher(t) })
	configure(t, knobs())
	restartPatcher(t)
	for name, want := range map[string]int64{
		metagpu:                  gpus * 100, // auto_reshare
		bigShares:                4,          // on one of the GPUs
		testbed.Number:           gpus * 3,   // slots_per_gpu
		"volcano.sh/vgpu-number": gpus * 3,
	} {
		if err := bed.WaitCapacity(t.Context(), name, want, patience); err != nil {
			t.Error(err)
		}
	}
	t.Run("node_label", testNodeLabel)
	t.Run("device_sharing", testDeviceSharing)
	t.Run("gpu-mem-limit", testMemoryLimitAnnotation)
	t.Run("allow_spread", testAllowSpread)
}

// testNodeLabel checks that only a labelled node offers slots, each a quarter of a GPU.
func testNodeLabel(t *testing.T) {
	eventually.Holds(t, patience, "the node without the label offers no slots", func() bool {
		node, err := bed.Node(t.Context())
		slots := node.Status.Allocatable[awsSlots]
		return err == nil && slots.IsZero()
	})
	label(t, slotsLabel, "yes")
	defer label(t, slotsLabel, "")
	if err := bed.WaitCapacity(t.Context(), awsSlots, gpus*4, patience); err != nil {
		t.Fatal(err)
	}
	create(t, testbed.Pod("slot", filler("main", testbed.Limits{awsSlots: 1})))
	checkFilled(t, "slot", gpuMemory/4)
}

// testDeviceSharing checks that shares under another name are on the listed GPU, and reduce the
// shares under the first name.
func testDeviceSharing(t *testing.T) {
	create(t, testbed.Pod("big", filler("main", testbed.Limits{bigShares: 1})))
	if uuid := checkFilled(t, "big", gpuMemory/4); uuid != bed.UUIDs[1] {
		t.Errorf("the pod is on %s, and %s is only on %s", uuid, bigShares, bed.UUIDs[1])
	}
	if err := bed.WaitCapacity(t.Context(), metagpu, gpus*100-25, patience); err != nil {
		t.Error(err)
	}
}

// testMemoryLimitAnnotation checks that a pod gets more memory than it requests, up to its annotation.
func testMemoryLimitAnnotation(t *testing.T) {
	pod := testbed.Pod("raised", filler("main", testbed.Limits{metagpu: 25}))
	pod.Annotations = map[string]string{"gpu-mem-limit." + metagpu: "50"}
	create(t, pod)
	checkFilled(t, "raised", gpuMemory/2)
	beyond := testbed.Pod("beyond", filler("main", testbed.Limits{metagpu: 25}))
	beyond.Annotations = map[string]string{"gpu-mem-limit." + metagpu: "51"}
	create(t, beyond)
	nudge := bed.Nudger(beyond.Name)
	if _, err := bed.WaitPod(t.Context(), beyond.Name, "refused", patience, func(pod *corev1.Pod) bool {
		nudge(t.Context())
		return refusedBy("gpu-mem-limit." + metagpu)(pod)
	}); err != nil {
		t.Error(err)
	}
}

// testAllowSpread checks that a request which no single GPU can serve gets parts of two GPUs.
func testAllowSpread(t *testing.T) {
	for _, name := range []string{"left", "right"} {
		create(t, testbed.Pod(name, testbed.Container("main", testbed.Limits{metagpu: 60}, "linger")))
		running(t, name)
	}
	create(t, testbed.Pod("spread", testbed.Container("main", testbed.Limits{metagpu: 50}, "info")))
	pod, err := bed.WaitSucceeded(t.Context(), "spread", patience)
	if err != nil {
		t.Fatal(err)
	}
	var info testbed.Info
	if err := bed.WaitResult(t.Context(), pod.Name, "main", patience, &info); err != nil {
		t.Fatal(err)
	}
	total := uint64(0)
	for _, d := range info.CUDA.Devices {
		total += d.TotalBytes
	}
	if len(info.CUDA.Devices) != 2 || total > gpuMemory/2 || total < gpuMemory/2-mib {
		t.Errorf("the pod sees %+v, want two parts of together %d bytes", info.CUDA.Devices, uint64(gpuMemory/2))
	}
}

// TestVolcanosWishes checks the annotations by which Volcano's users choose GPUs.
func TestVolcanosWishes(t *testing.T) {
	wish := func(name, annotation, value string) {
		pod := testbed.Pod(name, testbed.Container("main", testbed.Limits{"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 1024}, "info"))
		pod.Annotations = map[string]string{annotation: value}
		create(t, pod)
	}
	for name, tt := range map[string]struct{ annotation, value, want string }{
		"use-uuid":   {"volcano.sh/vgpu-use-gpuuuid", bed.UUIDs[1], bed.UUIDs[1]},
		"nouse-uuid": {"volcano.sh/vgpu-nouse-gpuuuid", bed.UUIDs[0], bed.UUIDs[1]},
		"use-type":   {"nvidia.com/use-gputype", "H200", ""},
	} {
		wish(name, tt.annotation, tt.value)
		if _, err := bed.WaitSucceeded(t.Context(), name, patience); err != nil {
			t.Fatal(err)
		}
		var info testbed.Info
		if err := bed.WaitResult(t.Context(), name, "main", patience, &info); err != nil {
			t.Fatal(err)
		}
		if len(info.CUDA.Devices) != 1 || tt.want != "" && info.CUDA.Devices[0].UUID != tt.want {
			t.Errorf("%s: the pod sees %+v, want %s", name, info.CUDA.Devices, tt.want)
		}
	}
	wish("nouse-type", "nvidia.com/nouse-gputype", "H200")
	nudge := bed.Nudger("nouse-type")
	_, err := bed.WaitPod(t.Context(), "nouse-type", "refused", patience, func(pod *corev1.Pod) bool {
		nudge(t.Context())
		status := pod.Status.ContainerStatuses
		return len(status) == 1 && status[0].State.Waiting != nil && strings.Contains(status[0].State.Waiting.Message, "nri-vgpu refuses")
	})
	if err != nil {
		t.Error(err)
	}
}
