// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestDialectsShareOneLedger checks that the scheduler never allocates the capacity of pods of one
// dialect to pods of another dialect. A kubelet that admits all pods again finds room for each pod.
func TestDialectsShareOneLedger(t *testing.T) {
	const slots, shares = "k8s.amazonaws.com/vgpu", "cnvrg.io/metagpu"
	create(t, testbed.Pod("ours", filler("main", testbed.Limits{testbed.Memory: 12288, testbed.Cores: 60})))
	first := checkFilled(t, "ours", 12*gib)
	create(t, testbed.Pod("slots", filler("main", testbed.Limits{slots: 3})))
	filled(t, "slots", "main")
	if second, _ := onlyGPU(t, held(t, running(t, "slots"))); second == first {
		t.Fatalf("12 GiB and 3 of 10 slots are both on %s", first)
	}
	for name, want := range map[string]int64{
		testbed.Memory: 12288 + 4096 + 16384*7/10, // used, and free on each GPU
		slots:          3 + 2 + 7,
		shares:         25 + 70,
	} {
		if err := bed.WaitCapacity(t.Context(), name, want, patience); err != nil {
			t.Error(err)
		}
	}
	create(t, testbed.Pod("shares", filler("main", testbed.Limits{shares: 96})))
	if _, err := bed.WaitPod(t.Context(), "shares", "unschedulable", patience, unschedulable); err != nil {
		t.Fatal(err)
	}

	before := []string{instance(t, "ours"), instance(t, "slots")}
	if err := bed.Cluster.Restart(t.Context(), "kubelet"); err != nil {
		t.Fatal(err)
	}
	if err := bed.WaitNodeReady(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	if after := []string{instance(t, "ours"), instance(t, "slots")}; after[0] != before[0] || after[1] != before[1] {
		t.Errorf("kubelet's restart replaced containers: %v, now %v", before, after)
	}

	if err := bed.Delete(t.Context(), "ours"); err != nil {
		t.Fatal(err)
	}
	running(t, "shares")
	filled(t, "shares", "main")
	if uuid, _ := onlyGPU(t, held(t, running(t, "shares"))); uuid != first {
		t.Errorf("the pod that waited is on %s, want %s, where room was made", uuid, first)
	}
	for name, want := range map[string]int64{slots: 10, shares: 96 + 4 + 70} {
		if err := bed.WaitCapacity(t.Context(), name, want, patience); err != nil {
			t.Error(err)
		}
	}
}

// instance returns a text that differs between starts of a pod's container.
func instance(t *testing.T, name string) string {
	t.Helper()
	return running(t, name).Status.ContainerStatuses[0].ContainerID
}
