// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// keepAsking runs KeepAsking until the test ends.
func (n *node) keepAsking() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		n.hook.KeepAsking(ctx)
		close(done)
	}()
	n.t.Cleanup(func() { cancel(); <-done })
}

func (n *node) waitAsking(want ...string) {
	n.t.Helper()
	var got []guardfile.Pod
	defer func() {
		if n.t.Failed() {
			n.t.Logf("the list is %v, want %v", got, want)
		}
	}()
	eventually.Holds(n.t, 10*time.Second, "the pods are listed", func() bool {
		var err error
		got, err = guardfile.ReadAsking(n.cfg.Paths.StateDir)
		return err == nil && slices.EqualFunc(got, want, func(p guardfile.Pod, uid string) bool { return p.UID == uid })
	})
}

func TestPodsThatAskAreListed(t *testing.T) {
	n := newNode(t)
	n.pod("none", "main")
	n.pod("some", "side", "main=1024")
	nonsense := n.pod("nonsense", "main=1024")
	nonsense.Spec.Containers[0].Resources.Limits["alnair/vgpu-memory"] = nonsense.Spec.Containers[0].Resources.Limits["nri-vgpu.io/vgpu-memory"]
	n.keepAsking()
	n.waitAsking("nonsense", "some")

	n.api.change(func() { n.api.pods["some"].Status.Phase = corev1.PodSucceeded })
	n.pod("later", "main=1024")
	n.hook.PodsChanged()
	n.waitAsking("later", "nonsense")

	// The list keeps a pod that holds a GPU, even after the API server has deleted the pod.
	mustCreate(t, n, "later")
	n.deletePod("later")
	n.hook.PodsChanged()
	n.waitAsking("later", "nonsense")

	// KeepAsking rewrites a damaged list.
	if err := os.WriteFile(paths.AskingPods(n.cfg.Paths.StateDir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.hook.PodsChanged()
	n.waitAsking("later", "nonsense")
}

// TestListedPodsStayAsLongAsPodsAreNotKnown checks that the list keeps its pods while the API
// server is unreachable, as may happen after a reboot.
func TestListedPodsStayAsLongAsPodsAreNotKnown(t *testing.T) {
	n := newNode(t)
	if err := guardfile.WriteAsking(n.cfg.Paths.StateDir, []guardfile.Pod{{UID: "before"}}); err != nil {
		t.Fatal(err)
	}
	n.run("held", "main=1024")
	n.api.change(func() { n.api.away = true })
	n.keepAsking()
	n.waitAsking("before", "held")
	n.api.change(func() { n.api.away = false })
	n.hook.PodsChanged()
	n.waitAsking("held")
}

// TestMirrorsAreListedByName checks that the list has the names of mirror pods: a tenant's pod can
// claim a static pod's hash, but not its name.
func TestMirrorsAreListedByName(t *testing.T) {
	const hash = "0123456789abcdef0123456789abcdef"
	n := newNode(t)
	forged, plain := n.pod("forged", "main=1024"), n.pod("plain", "main=1024")
	n.api.change(func() {
		asMirror(forged, hash)
		plain.Annotations = map[string]string{pods.MirrorAnnotation: hash}
	})
	n.keepAsking()
	want := []guardfile.Pod{{UID: hash, Namespace: "ns", Name: "pod-forged"}, {UID: "plain", Namespace: "ns", Name: "pod-plain"}}
	eventually.Holds(t, 10*time.Second, "both pods are listed", func() bool {
		got, err := guardfile.ReadAsking(n.cfg.Paths.StateDir)
		return err == nil && slices.Equal(got, want)
	})
}

// TestAGrantIsListed checks that the list has a pod whose container was created before the watch
// delivered the pod.
func TestAGrantIsListed(t *testing.T) {
	n := newNode(t)
	n.keepAsking()
	n.waitAsking()
	n.run("u", "main=1024")
	n.waitAsking("u")
}

// TestUnchangedPodsAreReadOnce checks that the hook does not parse an unchanged pod again, since a
// tenant's pod may have thousands of containers.
func TestUnchangedPodsAreReadOnce(t *testing.T) {
	n := newNode(t)
	n.crowd("u", floodAsks, 1, false)
	n.hook.askingPods()
	if got := testing.AllocsPerRun(5, func() { n.hook.askingPods() }); got > floodAsks/2 {
		t.Errorf("an unchanged pod with %d requests costs %v allocations", floodAsks, got)
	}
}
