// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// driverRoot is a second root with the driver, as the GPU operator's driver container has.
const driverRoot = "/run/driver-root"

// TestMPSUnderTheDriversRoot checks sharing.mps.root. The daemon runs under this root, and serves a
// container at the node's paths.
func TestMPSUnderTheDriversRoot(t *testing.T) {
	node := func(ctx context.Context, command string) {
		t.Helper()
		if _, err := bed.Cluster.Exec(ctx, "sh", "-c", command); err != nil {
			t.Fatal(err)
		}
	}
	node(t.Context(), fmt.Sprintf("mkdir %[1]s && mount --bind / %[1]s && mount --rbind /proc %[1]s/proc && mount --rbind /dev %[1]s/dev && mount --make-rslave %[1]s", driverRoot))
	t.Cleanup(func() {
		node(context.Background(), fmt.Sprintf("umount --lazy --recursive %[1]s && rmdir %[1]s", driverRoot))
	})
	configure(t, fmt.Sprintf("[sharing]\nmethod = \"mps\"\n[sharing.mps]\nroot = %q\n", driverRoot))
	waitSaid(t, "nri_vgpu_mps_ready 1", patience)
	root, err := os.Readlink(fmt.Sprintf("/proc/%d/root", mpsDaemon(t)))
	if err != nil || !strings.HasSuffix(root, driverRoot) {
		t.Errorf("the daemon's root is %s, %v", root, err)
	}
	create(t, testbed.Pod("client", filler("main", testbed.Limits{testbed.Memory: 1024})))
	checkFilled(t, "client", gib)
	eventually.Holds(t, patience, "the pod is a client of the daemon", func() bool { return mpsClients(t) == 1 })
	if err := bed.Delete(t.Context(), "client"); err != nil {
		t.Fatal(err)
	}
	endMPS(t)
}

// endMPS removes MPS from the configuration, and waits until the daemon has ended.
func endMPS(t *testing.T) {
	t.Helper()
	if _, err := bed.SetConfig(t.Context(), "", patience); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, patience, "the daemon has ended", func() bool {
		return len(nodeProcesses(t, func(_, command string) bool { return strings.Contains(command, "nvidia-cuda-mps") })) == 0
	})
}

// TestExclusiveProcessMode checks sharing.mps.compute_mode. While the daemon serves a pod, a process
// that is no client cannot use the GPU. Afterwards, the GPU has its earlier mode.
func TestExclusiveProcessMode(t *testing.T) {
	const exempt = "outside-mps"
	there := bed.In(exempt)
	if err := there.EnsureNamespace(t.Context(), exempt); err != nil {
		t.Fatal(err)
	}
	configure(t, fmt.Sprintf("[node]\nexempt_namespaces = [%q]\n[sharing]\nmethod = \"mps\"\n[sharing.mps]\ncompute_mode = \"exclusive-process\"\n", exempt))
	waitSaid(t, "nri_vgpu_mps_ready 1", patience)
	create(t, testbed.Pod("client", filler("main", testbed.Limits{testbed.Memory: 1024})))
	uuid := checkFilled(t, "client", gib)
	outside := cudaContainer(nil)
	outside.Command = []string{"linger"}
	createIn(t, there, testbed.Pod("outside", outside))
	if _, err := there.WaitRunning(t.Context(), "outside", patience); err != nil {
		t.Fatal(err)
	}
	use := func() error {
		_, errs, err := there.ExecOutput(t.Context(), "outside", "fill", "--max", "64MiB", "--device", fmt.Sprint(slices.Index(bed.UUIDs, uuid)))
		if err != nil {
			err = fmt.Errorf("%w: %s", err, errs)
		}
		return err
	}
	if err := use(); err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_DEVICE_UNAVAILABLE") {
		t.Errorf("beside the daemon's client, another process uses the GPU: %v", err)
	}
	if err := bed.Delete(t.Context(), "client"); err != nil {
		t.Fatal(err)
	}
	endMPS(t)
	create(t, testbed.Pod("later", filler("main", testbed.Limits{testbed.Memory: 1024})))
	checkFilled(t, "later", gib)
	if err := use(); err != nil {
		t.Errorf("without the daemon, a second process cannot use the GPU: %v", err)
	}
}
