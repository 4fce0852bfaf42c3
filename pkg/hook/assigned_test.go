// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// assigned adds a pod that Volcano's scheduler has placed. The first container
// requests no GPU, and "main" requests MiB of one GPU.
func (n *node) assigned(uid, mib, ids string) *corev1.Pod {
	pod := n.pod(uid, "idle", "main")
	pod.Spec.NodeName = "here"
	pod.Spec.Containers[1].Resources.Limits = corev1.ResourceList{"volcano.sh/vgpu-memory": resource.MustParse(mib)}
	pod.Annotations = map[string]string{volcano.Node: "here", volcano.IDs: ids, volcano.BindTime: "1"}
	return pod
}

// bound adds a pod that nri-vgpu-scheduler has bound with an assignment. The first container
// requests no GPU, and "main" requests 1000 MiB of one GPU.
func (n *node) bound(uid, text string) *corev1.Pod {
	pod := n.pod(uid, "idle", "main=1000")
	n.api.change(func() { pod.Annotations = map[string]string{assign.Annotation: text} })
	return pod
}

// on returns the only GPU of a pod's main container.
func (n *node) on(uid string) string {
	n.t.Helper()
	given, ok := n.ledger.Get(uid, "main")
	if !ok || len(given.Devices) != 1 {
		n.t.Fatalf("%s holds %+v", uid, given)
	}
	return given.Devices[0].UUID
}

func TestAnAssignmentIsObeyed(t *testing.T) {
	n := newNode(t)
	// Without an assignment, the planner would fill the GPU that is in use.
	n.run("u", "main=1024")
	for _, gpu := range []string{gpuA, gpuB} {
		uid := "on-" + gpu[len("GPU-"):][:1]
		n.assigned(uid, "1000", gpu+",NVIDIA,1000,0:")
		if _, err := n.createIn(sandbox(uid), "idle"); err != nil {
			t.Fatal(err)
		}
		mustCreate(t, n, uid)
		if n.on(uid) != gpu {
			t.Errorf("assigned %s, got %s", gpu, n.on(uid))
		}
	}
}

func TestAnAssignmentThatContradictsTheSpecIsRefused(t *testing.T) {
	n := newNode(t)
	n.assigned("u", "1000", gpuA+",NVIDIA,16000,0:")
	if _, err := n.create("u"); err == nil || !strings.Contains(err.Error(), "requests 1000 MiB") {
		t.Errorf("got %v", err)
	}
}

// TestAnAssignmentFindsRoomOrNone checks that the scheduler's choice evicts no container: if the
// GPU is full, the ledger finds no room.
func TestAnAssignmentFindsRoomOrNone(t *testing.T) {
	n := newNode(t)
	n.run("big", "main=16000")
	taken := n.on("big")
	pod := n.assigned("u", "1000", taken+",NVIDIA,1000,0:")
	var noRoom *placement.NoRoomError
	if err := n.hook.Reserve(pod); !errors.As(err, &noRoom) {
		t.Errorf("reserved where there is no room: %v", err)
	}
	if _, err := n.create("u"); err == nil || !strings.Contains(err.Error(), "no GPU has room") {
		t.Errorf("got %v", err)
	}
	n.exit("big")
	n.deletePod("big")
	mustCreate(t, n, "u")
	if n.on("u") != taken {
		t.Errorf("assigned %s, got %s", taken, n.on("u"))
	}
}

// TestAMirrorReservesNothing checks that a forged mirror reserves no GPU under a static pod's UID
// or an invalid UID. The hook could never release a reservation under an invalid UID.
func TestAMirrorReservesNothing(t *testing.T) {
	for _, hash := range []string{"0123456789abcdef0123456789abcdef", "../../etc", "a/b", ".", strings.Repeat("x", 256)} {
		n := newNode(t)
		pod := n.assigned("u", "1000", gpuA+",NVIDIA,1000,0:")
		asMirror(pod, hash)
		n.api.change(func() { n.api.pods[hash] = pod })
		if err := n.hook.Reserve(pod); err != nil {
			t.Error(err)
		}
		if held := n.ledger.Allocations(); len(held) != 0 {
			t.Errorf("%.10q: %+v is held", hash, held)
		}
	}
}

// asMirror makes a pod look like the mirror that kubelet creates of a static
// pod.
func asMirror(pod *corev1.Pod, hash string) {
	controls := true
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[pods.MirrorAnnotation], pod.Annotations[pods.HashAnnotation], pod.Annotations[pods.SourceAnnotation] = hash, hash, "file"
	pod.Spec.NodeName = "node-1"
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node-1", Controller: &controls}}
}

// TestARestartedContainerKeepsItsAssignment checks that a container keeps its assignment when the
// container or the agent restarts, even if the annotation has changed.
func TestARestartedContainerKeepsItsAssignment(t *testing.T) {
	n := newNode(t)
	pod := n.assigned("u", "1000", gpuB+",NVIDIA,1000,0:")
	mustCreate(t, n, "u")
	for _, ids := range []string{gpuA + ",NVIDIA,1000,0:", "nonsense"} {
		n.exit("u")
		n.api.change(func() { pod.Annotations[volcano.IDs] = ids })
		mustCreate(t, n, "u")
		if n.on("u") != gpuB {
			t.Errorf("after a restart it has %s", n.on("u"))
		}
	}
	n.restartHook()
	n.exit("u")
	mustCreate(t, n, "u")
	if n.on("u") != gpuB {
		t.Errorf("after the agent's restart it has %s", n.on("u"))
	}
}

// TestAReservationThatCannotBePersistedIsRetried checks that a later attempt persists a reservation after
// a failure, as on a full disk. A restarted agent could otherwise place another pod there.
func TestAReservationThatCannotBePersistedIsRetried(t *testing.T) {
	n := newNode(t)
	pod := n.pod("u", "main=10000")
	blocked := filepath.Join(n.cfg.Paths.RunDir, "containers", "u")
	write(t, blocked, "")
	if err := n.hook.Reserve(pod); err == nil {
		t.Fatal("a file in place of the pod's directory is no error")
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	if err := n.hook.Reserve(pod); err != nil {
		t.Fatal(err)
	}
	n.restartHook()
	if len(n.hook.Held("u")) != 1 {
		t.Error("the reservation is not persisted")
	}
}

// TestReserve checks that a restarted agent restores a reservation. The container must get the
// reserved GPU, and the hook must release the reservation with the pod.
func TestReserve(t *testing.T) {
	n := newNode(t)
	pod := n.assigned("u", "16000", gpuB+",NVIDIA,16000,0:")
	if err := n.hook.Reserve(pod); err != nil {
		t.Fatal(err)
	}
	n.restartHook()
	if n.on("u") != gpuB {
		t.Errorf("reserved %s", n.on("u"))
	}
	n.run("other", "main=16000")
	if n.on("other") != gpuA {
		t.Errorf("another has got what was reserved")
	}
	mustCreate(t, n, "u")
	n.exit("u")
	n.deletePod("u")
	if held := n.hook.Held("u"); len(held) != 0 {
		t.Errorf("a pod that has gone holds %+v", held)
	}
	if err := n.hook.Reserve(pod); err != nil || len(n.hook.Held("u")) != 0 {
		t.Errorf("reserved for a pod that has gone: %v", err)
	}
}

// TestTheGPUsOfABindingAreObeyed checks that a pod gets the GPU that nri-vgpu-scheduler assigned,
// at its creation and by a reservation.
func TestTheGPUsOfABindingAreObeyed(t *testing.T) {
	n := newNode(t)
	// Without an assignment, the planner would fill the GPU that is in use.
	n.run("first", "main=1024")
	for _, gpu := range []string{gpuA, gpuB} {
		uid := "on-" + gpu[len("GPU-"):][:1]
		pod := n.bound(uid, `{"main":["`+gpu+`"]}`)
		if _, err := n.createIn(sandbox(uid), "idle"); err != nil {
			t.Fatal(err)
		}
		mustCreate(t, n, uid)
		if n.on(uid) != gpu {
			t.Errorf("assigned %s, got %s", gpu, n.on(uid))
		}
		n.exit(uid)
		n.deletePod(uid)
		n.api.change(func() { n.api.pods[uid] = pod })
		if err := n.hook.Reserve(pod); err != nil || n.on(uid) != gpu {
			t.Errorf("assigned %s, reserved %s: %v", gpu, n.on(uid), err)
		}
	}
}

func TestABindingThatContradictsTheNodeIsRefused(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"an unknown GPU", `{"main":["GPU-z"]}`, `pod ns/pod-u: the agent cannot apply the assignment in annotation nri-vgpu.io/assigned: container "main": GPU "GPU-z" is not in this node`},
		{"too many GPUs", `{"main":["` + gpuA + `","` + gpuB + `"]}`, `container "main": the annotation has 2 GPUs, and the container requests 1`},
		{"no GPUs", `{}`, `container "main" is in the annotation: false; the container requests GPUs: true`},
		{"a container that requests none", `{"main":["` + gpuA + `"],"idle":["` + gpuA + `"]}`, `container "idle" is in the annotation: true; the container requests GPUs: false`},
		{"no assignment", "", "the annotation is not a list of GPUs for each container"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t)
			pod := n.bound("u", tt.text)
			if _, err := n.create("u"); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if err := n.hook.Reserve(pod); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("reserved: %v, want %q", err, tt.want)
			}
			if held := n.ledger.Allocations(); len(held) != 0 {
				t.Errorf("%+v is held", held)
			}
			// A container that requests no GPU needs no assignment.
			if _, err := n.createIn(sandbox("u"), "idle"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestABindingFindsRoomOrNone checks that an assignment takes no container's part: if the GPU is
// full, the ledger finds no room.
func TestABindingFindsRoomOrNone(t *testing.T) {
	n := newNode(t)
	n.run("big", "main=16000")
	taken := n.on("big")
	n.bound("u", `{"main":["`+taken+`"]}`)
	want := `no GPU has room for container "main" of pod ns/pod-u, which requests 1000 MiB of one GPU out of ` + taken + `; free: GPU 0`
	if _, err := n.create("u"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	n.exit("big")
	n.deletePod("big")
	mustCreate(t, n, "u")
	if n.on("u") != taken {
		t.Errorf("assigned %s, got %s", taken, n.on("u"))
	}
}

// TestARestartedContainerKeepsTheGPUsOfItsBinding checks that a container keeps its GPU when the
// container or the agent restarts, even if the annotation has changed.
func TestARestartedContainerKeepsTheGPUsOfItsBinding(t *testing.T) {
	n := newNode(t)
	pod := n.bound("u", `{"main":["`+gpuB+`"]}`)
	mustCreate(t, n, "u")
	for _, text := range []string{`{"main":["` + gpuA + `"]}`, "nonsense", `{"main":["GPU-z"]}`} {
		n.exit("u")
		n.api.change(func() { pod.Annotations[assign.Annotation] = text })
		mustCreate(t, n, "u")
		if n.on("u") != gpuB {
			t.Errorf("after a restart it has %s", n.on("u"))
		}
		if err := n.hook.Reserve(pod); err != nil {
			t.Errorf("reserved again: %v", err)
		}
	}
	n.restartHook()
	n.exit("u")
	mustCreate(t, n, "u")
	if n.on("u") != gpuB {
		t.Errorf("after the agent's restart it has %s", n.on("u"))
	}
}

// TestBothSchedulersAgreeOrNone checks a pod with assignments of two schedulers: the pod gets a GPU
// only if the schedulers agree.
func TestBothSchedulersAgreeOrNone(t *testing.T) {
	n := newNode(t)
	for uid, gpu := range map[string]string{"agreed": gpuB, "differs": gpuA} {
		pod := n.assigned(uid, "1000", gpuB+",NVIDIA,1000,0:")
		n.api.change(func() { pod.Annotations[assign.Annotation] = `{"main":["` + gpu + `"]}` })
	}
	mustCreate(t, n, "agreed")
	if n.on("agreed") != gpuB {
		t.Errorf("got %s", n.on("agreed"))
	}
	want := "the pod's request does not allow GPU " + gpuA + "; allowed: " + gpuB
	if _, err := n.create("differs"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// TestAStaticPodHoldsItsGPU checks that a static pod holds its GPU under the UID that the runtime
// reports. The UID of the pod's mirror differs.
func TestAStaticPodHoldsItsGPU(t *testing.T) {
	const hash = "0123456789abcdef0123456789abcdef"
	n := newNode(t)
	mirror := n.pod("mirror", "main=1024")
	n.api.change(func() {
		asMirror(mirror, hash)
		n.api.pods[hash] = mirror
	})
	spec := mustCreate(t, n, hash)
	wantEnv(t, spec, adjust.VisibleDevices, n.on(hash))
	if err := start(n, hash, spec); err != nil {
		t.Error(err)
	}
	if n.ledger.Holds("mirror") {
		t.Error("the mirror holds GPUs, too")
	}
}

// TestNothingIsReservedForABadRequest checks that a reservation needs a valid request, and the
// runtime's list of containers.
func TestNothingIsReservedForABadRequest(t *testing.T) {
	n := newNode(t)
	invalid := n.pod("invalid", "main=1024")
	n.api.change(func() { invalid.Spec.Containers[0].Resources.Limits["alnair/vgpu-memory"] = resource.MustParse("1") })
	if err := n.hook.Reserve(invalid); err == nil || !strings.Contains(err.Error(), "two dialects") {
		t.Errorf("got %v", err)
	}
	n.hook.synchronized = false
	if err := n.hook.Reserve(n.pod("u", "main=1024")); err != nil {
		t.Error(err)
	}
	if held := n.ledger.Allocations(); len(held) != 0 {
		t.Errorf("%+v is held", held)
	}
}

// TestAUIDThatIsNoNameOfADirectory checks that a container of a pod with such a UID is refused.
func TestAUIDThatIsNoNameOfADirectory(t *testing.T) {
	n := newNode(t)
	n.pod("a/b", "main=1024")
	if _, err := n.create("a/b"); err == nil || !strings.Contains(err.Error(), "failed to name the directory of its files") {
		t.Errorf("got %v", err)
	}
	n.wantLive()
}
