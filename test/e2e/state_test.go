// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	runDir   = "run/nri-vgpu"
	stateDir = "var/lib/nri-vgpu"
)

// checkTaken checks that the agent knows the steady pod's allocation. The pod's GPU has room for
// exactly the remaining memory.
func checkTaken(t *testing.T, prefix string) {
	t.Helper()
	create(t, testbed.Pod(prefix+"-beside", filler("main", testbed.Limits{testbed.Memory: 12288})))
	checkFilled(t, prefix+"-beside", 12*gib)
	create(t, testbed.Pod(prefix+"-other", filler("main", testbed.Limits{testbed.Memory: 16384})))
	checkFilled(t, prefix+"-other", 16*gib)
}

func TestClosedWithTheStateEmptied(t *testing.T) {
	check := untouched(t)
	emptyDir(t, runDir)
	emptyDir(t, stateDir)
	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	check()
	checkTaken(t, "emptied")
	check()
	if _, err := os.Stat(filepath.Join(bed.Cluster.Root(), stateDir, "pods.json")); err != nil {
		t.Errorf("the agent did not write the list of GPU pods again: %v", err)
	}
}

func TestClosedWithTheStateCorrupted(t *testing.T) {
	check := untouched(t)
	root := bed.Cluster.Root()
	assignments, err := filepath.Glob(filepath.Join(root, runDir, "containers/*/*/assignment.json"))
	if err != nil || len(assignments) == 0 {
		t.Fatalf("no file exists to corrupt: %v", err)
	}
	for _, path := range append(assignments, filepath.Join(root, stateDir, "pods.json"), filepath.Join(root, runDir, "node.json")) {
		if err := os.WriteFile(path, []byte("{\"version\":1,\"sha"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	check()
	checkTaken(t, "corrupted")
	check()
	if aside, err := filepath.Glob(filepath.Join(root, runDir, "containers/*/*/assignment.json.bad-*")); err != nil || len(aside) == 0 {
		t.Errorf("the corrupt files were not renamed: %v", err)
	}
}

func TestClosedWithTheStateFull(t *testing.T) {
	check := untouched(t)
	if _, err := bed.Cluster.Exec(t.Context(), "mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", "/"+runDir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if _, err := bed.Cluster.Exec(ctx, "umount", "--lazy", "/"+runDir); err != nil {
			t.Error(err)
		}
		if err := bed.RestartAgent(ctx, patience); err != nil {
			t.Error(err)
		}
		if err := bed.WaitCapacity(ctx, testbed.Memory, nodeMemory, patience); err != nil {
			t.Error(err)
		}
	})
	// Only processes that start after the mount see the mount.
	if err := bed.RestartAgent(t.Context(), patience); err != nil {
		t.Fatal(err)
	}
	waitRegistered(t)
	room := filepath.Join(bed.Cluster.Root(), runDir, "room")
	fill(t, room)
	// The patcher does not see the filled directory, and may have withdrawn the capacity.
	pod := testbed.Pod("full", filler("main", testbed.Limits{testbed.Memory: 1024}))
	pod.Spec.NodeName = bed.Cluster.NodeName
	create(t, pod)
	refused, err := bed.WaitPod(t.Context(), "full", "refused", patience, refusedBy("failed to write its limits"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes := held(t, refused); len(bytes) != 0 {
		t.Errorf("the pod holds %v without limits", bytes)
	}
	check()
	if err := os.Remove(room); err != nil {
		t.Fatal(err)
	}
	started(t, "full")
	checkFilled(t, "full", gib)
	check()
}

// fill fills a file system.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	for {
		if _, err := f.Write(page); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
