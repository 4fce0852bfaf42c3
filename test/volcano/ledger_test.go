// SPDX-License-Identifier: Apache-2.0

package volcano

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	protocol "github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// A view is the account of a Node by Volcano's scheduler, as tools/volcano/ledger reports the
// account.
type view struct {
	Known bool `json:"known"`
	GPUs  []struct {
		UUID      string `json:"uuid"`
		Type      string `json:"type"`
		Healthy   bool   `json:"healthy"`
		Number    uint   `json:"number"`
		Memory    uint   `json:"memory"`
		UsedNum   uint   `json:"usedNum"`
		UsedMem   uint   `json:"usedMem"`
		UsedCores uint   `json:"usedCores"`
	} `json:"gpus"`
	Annotations map[string]string `json:"annotations"`
	Refused     string            `json:"refused"`
}

// viewOf returns the view of Volcano's own code, of either version.
func viewOf(t *testing.T, version string, node *corev1.Node, pods []corev1.Pod, assign *corev1.Pod) view {
	t.Helper()
	question, err := json.Marshal(map[string]any{"node": node, "pods": pods, "assign": assign})
	if err != nil {
		t.Fatal(err)
	}
	ask := exec.CommandContext(t.Context(), installed.Built[version])
	ask.Stdin = bytes.NewReader(question)
	var complaint bytes.Buffer
	ask.Stderr = &complaint
	answer, err := ask.Output()
	if err != nil {
		t.Fatalf("run Volcano's code: %v: %s", err, complaint.String())
	}
	var v view
	if err := json.Unmarshal(answer, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func nodeOf(t *testing.T, bed *testbed.Bed) *corev1.Node {
	t.Helper()
	node, err := bed.Node(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// podsOn returns the pods of a node that have not ended.
func podsOn(t *testing.T, bed *testbed.Bed) []corev1.Pod {
	t.Helper()
	list, err := bed.Client.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(),
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + bed.Cluster.NodeName + ",status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// given returns a container's allocation in the agent's files.
func given(t *testing.T, pod *corev1.Pod, container string) placement.Allocation {
	t.Helper()
	file := filepath.Join(bedOf(t, pod).ContainerFiles(pod, container), paths.Assignment)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var envelope struct {
		Allocation placement.Allocation `json:"allocation"`
	}
	if err := json.Unmarshal(content, &envelope); err != nil {
		t.Fatal(err)
	}
	return envelope.Allocation
}

func bedOf(t *testing.T, pod *corev1.Pod) *testbed.Bed {
	t.Helper()
	for _, bed := range beds {
		if bed.Cluster.NodeName == pod.Spec.NodeName {
			return bed
		}
	}
	t.Fatalf("pod %s is on node %q", pod.Name, pod.Spec.NodeName)
	return nil
}

// checkLedgers checks that no GPU is overcommitted, in Volcano's ledger and in our ledger.
func checkLedgers(t *testing.T) {
	t.Helper()
	for _, bed := range beds {
		var pods []corev1.Pod
		var seen view
		// A busy node may report its GPUs late.
		eventually.Holds(t, patience, fmt.Sprintf("Volcano sees %d GPUs on %s", gpus, bed.Cluster.NodeName), func() bool {
			pods = podsOn(t, bed)
			seen = viewOf(t, components.VolcanoLedger, nodeOf(t, bed), pods, nil)
			return len(seen.GPUs) == gpus
		})
		ours := map[string]placement.Device{}
		holders := map[string]uint{}
		for i := range pods {
			for _, name := range protocol.Asking(&pods[i], defaults) {
				for _, d := range given(t, &pods[i], name).Devices {
					sum := ours[d.UUID]
					sum.MemoryBytes += d.MemoryBytes
					sum.ComputePPM += d.ComputePPM
					ours[d.UUID] = sum
					holders[d.UUID]++
				}
			}
		}
		for _, g := range seen.GPUs {
			t.Logf("%s, %s: by Volcano %d of %d MiB, %d %% and %d slots; by us %d MiB and %d %%", bed.Cluster.NodeName, g.UUID,
				g.UsedMem, g.Memory, g.UsedCores, g.UsedNum, ours[g.UUID].MemoryBytes/mib, ours[g.UUID].ComputePPM/10_000)
			if g.UsedMem > g.Memory || g.UsedCores > 100 || g.UsedNum > g.Number {
				t.Errorf("Volcano's ledger has allocated more of GPU %s than exists: %+v", g.UUID, g)
			}
			if ours[g.UUID].MemoryBytes > gpuMiB*mib || ours[g.UUID].ComputePPM > 1_000_000 {
				t.Errorf("our ledger has allocated more of GPU %s than exists: %+v", g.UUID, ours[g.UUID])
			}
			if uint(ours[g.UUID].MemoryBytes/mib) != g.UsedMem || uint(ours[g.UUID].ComputePPM/10_000) != g.UsedCores || holders[g.UUID] != g.UsedNum {
				t.Errorf("the ledgers differ over GPU %s: Volcano's has %+v, ours %+v for %d", g.UUID, g, ours[g.UUID], holders[g.UUID])
			}
		}
	}
}
