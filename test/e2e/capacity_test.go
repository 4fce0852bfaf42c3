// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// nodeMemory is the memory that the node advertises, in MiB.
const nodeMemory = gpus * gpuMemory / mib

// untouched starts a pod that fills its GPU. untouched returns a check that the pod still runs
// without a restart, and holds the same memory.
func untouched(t *testing.T) (check func()) {
	t.Helper()
	create(t, testbed.Pod("steady", filler("main", testbed.Limits{testbed.Memory: 4096})))
	checkFilled(t, "steady", 4*gib)
	// The node soon advertises again the capacity that an earlier test used.
	waitCapacity(t, patience)
	before := running(t, "steady")
	return func() {
		t.Helper()
		after := running(t, "steady")
		if after.UID != before.UID {
			t.Error("the running pod was replaced")
		}
		was, is := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
		if is.ContainerID != was.ContainerID || is.RestartCount != was.RestartCount {
			t.Errorf("the running container was restarted: %s (%d) is now %s (%d)", was.ContainerID, was.RestartCount, is.ContainerID, is.RestartCount)
		}
		checkFilled(t, "steady", 4*gib)
	}
}

func waitCapacity(t *testing.T, within time.Duration) {
	t.Helper()
	if err := bed.WaitCapacity(t.Context(), testbed.Memory, nodeMemory, within); err != nil {
		t.Fatal(err)
	}
}

func TestCapacity(t *testing.T) {
	for name, want := range map[string]int64{
		testbed.Number:           gpus * 10,
		testbed.Memory:           nodeMemory,
		testbed.Cores:            gpus * 100,
		testbed.Percentage:       gpus * 100,
		"alnair/vgpu-memory":     gpus * 16,
		"alnair/vgpu-compute":    gpus * 100,
		"k8s.amazonaws.com/vgpu": gpus * 10,
		"volcano.sh/vgpu-number": gpus * 10,
		"volcano.sh/vgpu-memory": nodeMemory,
		"volcano.sh/vgpu-cores":  gpus * 100,
		"cnvrg.io/metagpu":       gpus * 100,
	} {
		if err := bed.WaitCapacity(t.Context(), name, want, patience); err != nil {
			t.Error(err)
		}
	}
}

func TestHostilePatchIsUndone(t *testing.T) {
	check := untouched(t)
	for name, value := range map[string]any{"removed": nil, "zeroed": "0", "inflated": "1000000"} {
		t.Run(name, func(t *testing.T) {
			patch, err := json.Marshal(map[string]any{"status": map[string]any{
				"capacity":    map[string]any{testbed.Memory: value},
				"allocatable": map[string]any{testbed.Memory: value},
			}})
			if err != nil {
				t.Fatal(err)
			}
			_, err = bed.Client.CoreV1().Nodes().Patch(t.Context(), bed.Cluster.NodeName,
				types.MergePatchType, patch, metav1.PatchOptions{}, "status")
			if err != nil {
				t.Fatal(err)
			}
			waitCapacity(t, time.Second)
		})
	}
	check()
}

func TestKubeletRestart(t *testing.T) {
	check := untouched(t)
	if err := bed.Cluster.Restart(t.Context(), "kubelet"); err != nil {
		t.Fatal(err)
	}
	if err := bed.WaitNodeReady(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	waitCapacity(t, time.Second)
	check()
}

func TestNodeDeletedAndRegisteredAgain(t *testing.T) {
	check := untouched(t)
	before, err := bed.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.Client.CoreV1().Nodes().Delete(t.Context(), bed.Cluster.NodeName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// A kubelet registers its Node when it starts.
	if err := bed.Cluster.Restart(t.Context(), "kubelet"); err != nil {
		t.Fatal(err)
	}
	if err := bed.WaitNode(t.Context(), patience, func(node *corev1.Node) bool { return node.UID != before.UID }); err != nil {
		t.Fatal(err)
	}
	waitCapacity(t, time.Second)
	if err := bed.WaitNodeReady(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	check()
}

func TestContainerdRestart(t *testing.T) {
	check := untouched(t)
	if err := bed.Cluster.Restart(t.Context(), "containerd"); err != nil {
		t.Fatal(err)
	}
	check()
	// The plugin must register with the new containerd by itself. Until the plugin has registered,
	// the patcher may withdraw the node's capacity.
	create(t, testbed.Pod("after", filler("main", testbed.Limits{testbed.Memory: 2048})))
	checkFilled(t, "after", 2*gib)
	waitCapacity(t, patience)
	check()
}
