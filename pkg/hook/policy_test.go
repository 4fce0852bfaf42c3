// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

func withPolicy(policy string, choice bool) nodeOption {
	return func(n *node) { n.cfg.Compute = config.Compute{Policy: policy, PodsMayChoose: choice} }
}

// podWithCores adds a pod with a part of the GPU's time and a policy. If policy
// is "", the node's policy applies.
func (n *node) podWithCores(uid, policy string) *corev1.Pod {
	pod := n.pod(uid, "main=1024")
	pod.Spec.Containers[0].Resources.Limits["nri-vgpu.io/vgpu-cores"] = resource.MustParse("30")
	if policy != "" {
		pod.Annotations = map[string]string{request.PolicyAnnotation: policy}
	}
	return pod
}

// maximum returns the MaximumPPM on a container's limits page.
func (n *node) maximum(uid string) uint32 {
	n.t.Helper()
	devices, err := limits.Read(filepath.Join(n.cfg.Paths.RunDir, "containers", uid, "main/limits"))
	if err != nil || len(devices) != 1 || devices[0].ComputePPM != 300_000 {
		n.t.Fatalf("limits page of %s: %+v, %v", uid, devices, err)
	}
	return devices[0].MaximumPPM
}

func TestPolicyIsTheNodesUnlessPodsMayChoose(t *testing.T) {
	n := newNode(t, withPolicy(config.ComputeShare, true))
	for _, test := range []struct {
		uid, policy string
		maximum     uint32
	}{{"plain", "", request.Whole}, {"capped", "cap", 0}, {"shared", "share", request.Whole}} {
		n.podWithCores(test.uid, test.policy)
		mustCreate(t, n, test.uid)
		if got := n.maximum(test.uid); got != test.maximum {
			t.Errorf("%s: its maximum is %d ppm, want %d", test.uid, got, test.maximum)
		}
	}

	// A restarted agent restores the maximum, and later annotations of the pod do not change the
	// maximum.
	n.exit("plain")
	n.podWithCores("plain", "cap")
	n.restartHook()
	mustCreate(t, n, "plain")
	if n.maximum("plain") != request.Whole {
		t.Error("a container's policy has changed with its pod's annotation")
	}
}

func TestPolicyIsNotForPodsToChoose(t *testing.T) {
	n := newNode(t)
	n.podWithCores("u", "share")
	if _, err := n.create("u"); err == nil || !strings.Contains(err.Error(), "compute.pods_may_choose") {
		t.Errorf("it was created: %v", err)
	}
	n.podWithCores("u", "")
	mustCreate(t, n, "u")
	if got := n.maximum("u"); got != 0 {
		t.Errorf("by default it has a maximum of %d ppm", got)
	}
}

// TestMaximum checks that a pod may set its own guarantee and maximum, and that a restarted agent
// restores both values.
func TestMaximum(t *testing.T) {
	const annotation = request.MaximumAnnotation + "nri-vgpu.io/vgpu-cores"
	withMaximum := func(n *node, uid, value string) {
		n.podWithCores(uid, "").Annotations = map[string]string{annotation: value}
	}
	n := newNode(t, withPolicy(config.ComputeCap, true))
	withMaximum(n, "u", "50")
	mustCreate(t, n, "u")
	if got := n.maximum("u"); got != 500_000 {
		t.Errorf("its maximum is %d ppm", got)
	}
	n.restartHook()
	if held, ok := n.hook.opts.Ledger.Get("u", "main"); !ok || held.Devices[0].ComputePPM != 300_000 || held.Devices[0].MaximumPPM != 500_000 {
		t.Errorf("after a restart it holds %+v", held)
	}
	if free := n.hook.opts.Ledger.Free()[0].FreeComputePPM; free != 700_000 {
		t.Errorf("%d ppm are free: more than the guarantee is kept for it", free)
	}
	withMaximum(n, "v", "29")
	if _, err := n.create("v"); err == nil || !strings.Contains(err.Error(), `"29"; allowed: 30 to 100 for container "main"`) {
		t.Errorf("it was created: %v", err)
	}
}

func TestMaximumIsNotForPodsToChoose(t *testing.T) {
	n := newNode(t)
	n.podWithCores("u", "").Annotations = map[string]string{request.MaximumAnnotation + "nri-vgpu.io/vgpu-cores": "50"}
	if _, err := n.create("u"); err == nil || !strings.Contains(err.Error(), "compute.pods_may_choose") {
		t.Errorf("it was created: %v", err)
	}
}

func TestLiveDirs(t *testing.T) {
	n := newNode(t)
	changes := 0
	n.hook.opts.LiveChanged = func() { changes++ }
	want := func(uids ...string) {
		t.Helper()
		var dirs []string
		for _, uid := range uids {
			dirs = append(dirs, filepath.Join(n.cfg.Paths.RunDir, "containers", uid, "main"))
		}
		if got := n.hook.LiveDirs(); !slices.Equal(slices.Sorted(slices.Values(got)), dirs) {
			t.Errorf("they are %v, want %v", got, dirs)
		}
	}
	n.podWithCores("a", "")
	n.podWithCores("b", "")
	spec := mustCreate(t, n, "a")
	mustCreate(t, n, "b")
	want("a", "b")
	n.exit("a")
	want("b")
	if changes != 3 {
		t.Errorf("%d of 3 changes were reported", changes)
	}
	// A container that starts is live, even if the runtime has reported its end before.
	if err := start(n, "a", spec); err != nil {
		t.Fatal(err)
	}
	want("a", "b")
	if changes != 4 {
		t.Errorf("%d of 4 changes were reported", changes)
	}
	n.exit("a")
	changes = 0
	n.stopRuntime()
	n.startRuntime()
	n.waitRegistered()
	if want("b"); changes != 1 {
		t.Errorf("the runtime's new list caused %d reports", changes)
	}
	n.restartHook()
	want("b")
}

func withOvercommit(percent int) nodeOption {
	return func(n *node) { n.cfg.Memory.OvercommitPercent = percent }
}

func TestPagesHaveTheSizeOfAContext(t *testing.T) {
	n := newNode(t, func(n *node) { n.cfg.Memory.ContextMiB = 128 })
	n.run("u", "main=1024")
	devices, err := limits.Read(filepath.Join(n.cfg.Paths.RunDir, "containers/u/main/limits"))
	if err != nil || len(devices) != 1 || devices[0].ContextBytes != 128<<20 {
		t.Errorf("limits page: %+v, %v", devices, err)
	}
}

// TestOvercommit checks that a container on a node with overcommit may use more memory than its
// request. The ledger must reserve only the request.
func TestOvercommit(t *testing.T) {
	const annotation = request.LimitAnnotation + "nri-vgpu.io/vgpu-memory"
	n := newNode(t, withOvercommit(50))
	pod := n.pod("much", "main=1024")
	pod.Annotations = map[string]string{annotation: "1536"}
	mustCreate(t, n, "much")
	devices, err := limits.Read(filepath.Join(n.cfg.Paths.RunDir, "containers/much/main/limits"))
	if err != nil || len(devices) != 1 || devices[0].MemoryBytes != 1536<<20 {
		t.Errorf("limits page: %+v, %v", devices, err)
	}
	if room := n.hook.opts.Ledger.Free(); room[0].MemoryBytes-room[0].FreeMemoryBytes != 1024<<20 {
		t.Errorf("the reserved capacity is not the requested capacity: %+v", room)
	}

	// A restarted agent restores the limit.
	n.restartHook()
	if held, ok := n.hook.opts.Ledger.Get("much", "main"); !ok || held.Devices[0].Limit() != 1536<<20 {
		t.Errorf("after a restart it holds %+v", held)
	}
	pod = n.pod("too-much", "main=1024")
	pod.Annotations = map[string]string{annotation: "1537"}
	if _, err := n.create("too-much"); err == nil || !strings.Contains(err.Error(), "memory.overcommit_percent is 50") {
		t.Errorf("it was created: %v", err)
	}
}
