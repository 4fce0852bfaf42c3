// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// TestAListedPodIsKnownByItsName checks that the guard refuses a listed pod, but no static pod with
// the same UID. The creator of a pod may claim a static pod's hash in the pod's annotations.
func TestAListedPodIsKnownByItsName(t *testing.T) {
	n := newNode(t)
	const hash = "0123456789abcdef0123456789abcdef"
	if err := guardfile.WriteAsking(n.settings.StateDir, []guardfile.Pod{{UID: hash, Namespace: "tenant", Name: "forged"}, {UID: "u", Namespace: "ns", Name: "pod-u"}}); err != nil {
		t.Fatal(err)
	}
	static := inPod(hash)
	static.Namespace, static.Name = "kube-system", "kube-apiserver-node-1"
	for range 2 {
		adjust, err := n.create(static, wants("void"))
		if err != nil || hides(adjust) {
			t.Errorf("the static pod: %v, %v", adjust, err)
		}
		if _, err := n.create(inPod("u"), wants("void")); err == nil {
			t.Error("a pod that requests a GPU was not refused")
		}
		// Two pods with one UID may both request GPUs.
	}
	both := []guardfile.Pod{{UID: hash, Namespace: "kube-system", Name: "kube-apiserver-node-1"}, {UID: hash, Namespace: "tenant", Name: "forged"}}
	if err := guardfile.WriteAsking(n.settings.StateDir, both); err != nil {
		t.Fatal(err)
	}
	if _, err := n.create(static, wants("void")); err == nil {
		t.Error("a static pod that asks was not refused")
	}
}

// TestAUIDIsNoPath checks that a UID that is not a file name identifies no pod. The UID must not
// lead out of the directory of the pods.
func TestAUIDIsNoPath(t *testing.T) {
	g, s := local(t)
	pod := filepath.Join(paths.Containers(s.RunDir), "uid")
	if err := os.MkdirAll(pod, 0o755); err != nil {
		t.Fatal(err)
	}
	r := rules{Settings: s}
	for uid, want := range map[string]bool{"uid": true, "other": false, "": false, ".": false, "..": false, "../containers/uid": false, "uid/": false} {
		if got := g.asks(r, Container{PodUID: uid}); got != want {
			t.Errorf("pod %q asks: %t, want %t", uid, got, want)
		}
	}
}
