// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// kubelet serves the PodResources API with one healthy device and one device in use.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
}

func devices(resource string, ids ...string) []*podresources.ContainerDevices {
	return []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}
}

func (kubelet) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{Devices: append(devices("nvidia.com/gpu", "GPU-a"), devices("example.com/nic", "eth0")...)}, nil
}

func (kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Containers: []*podresources.ContainerResources{{Devices: devices("nvidia.com/gpu", "GPU-b", "GPU-a")}},
	}}}, nil
}

// serve returns the socket of a kubelet.
func serve(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, kubelet{})
	done := make(chan struct{})
	go func() { _ = server.Serve(listener); close(done) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return socket
}

// TestDevicesAreUnique checks that PodResources returns each device once, in order.
func TestDevicesAreUnique(t *testing.T) {
	got, err := PodResources{serve(t)}.Devices(t.Context())
	want := map[string][]string{"nvidia.com/gpu": {"GPU-a", "GPU-b"}, "example.com/nic": {"eth0"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, %s", err, diff)
	}
}

func TestWatcher(t *testing.T) {
	var node *corev1.Node
	changes := 0
	w := New(Options{
		Config: config.Default().Node, Kubelet: PodResources{serve(t)}, Node: func() *corev1.Node { return node },
		Changed: func() { changes++ }, Log: slog.New(slog.DiscardHandler),
	})
	claimed := func(uuid string) string { return w.Claimed(gpu.GPU{UUID: uuid}) }
	if got := claimed("GPU-c"); !strings.Contains(got, "not known yet") {
		t.Errorf("before the first look: %q", got)
	}
	w.Look(t.Context())
	for uuid, want := range map[string]bool{"GPU-a": true, "GPU-b": true, "GPU-c": false, "eth0": false} {
		if got := claimed(uuid); strings.Contains(got, "nvidia.com/gpu: leave it to that plugin") != want {
			t.Errorf("%s is claimed: %q, want %t", uuid, got, want)
		}
	}
	w.Look(t.Context())
	if changes != 1 {
		t.Errorf("%d changes, want 1", changes)
	}
	// The Node counts a device that kubelet does not list, so every GPU may be the device.
	node = &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("3"), "cpu": resource.MustParse("2")}}}
	w.Look(t.Context())
	if claimed("GPU-c") == "" || changes != 2 {
		t.Errorf("an unknown device claims nothing; %d changes", changes)
	}
}

// TestNoAnswer checks that the Node's capacity counts if kubelet does not answer, and that no GPU
// is free while no source answers.
func TestNoAnswer(t *testing.T) {
	var node *corev1.Node
	w := New(Options{
		Config: config.Default().Node, Kubelet: PodResources{filepath.Join(t.TempDir(), "kubelet.sock")},
		Node: func() *corev1.Node { return node }, Log: slog.New(slog.DiscardHandler),
	})
	w.Look(t.Context())
	if w.Claimed(gpu.GPU{UUID: "GPU-a"}) == "" {
		t.Error("a GPU is free before any answer")
	}
	node = &corev1.Node{}
	w.Look(t.Context())
	if got := w.Claimed(gpu.GPU{UUID: "GPU-a"}); got != "" {
		t.Errorf("a Node without foreign resources: %q", got)
	}
	node = &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}}}
	w.Look(t.Context())
	if w.Claimed(gpu.GPU{UUID: "GPU-a"}) == "" {
		t.Error("a GPU is free though the Node has a foreign resource with unknown devices")
	}
}

// TestOwnResources checks that another plugin's devices claim GPUs under the names that nri-vgpu
// offers. The Node's capacity of these names claims nothing, because nri-vgpu writes the capacity.
func TestOwnResources(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("20")}}}
	w := New(Options{
		Own: []string{"nvidia.com/gpu", "nvidia.com/gpumem"}, Kubelet: PodResources{serve(t)}, Node: func() *corev1.Node { return node },
		Log: slog.New(slog.DiscardHandler),
	})
	w.Look(t.Context())
	for uuid, want := range map[string]bool{"GPU-a": true, "GPU-b": true, "GPU-c": false} {
		if got := w.Claimed(gpu.GPU{UUID: uuid}); strings.Contains(got, "as nvidia.com/gpu:") != want {
			t.Errorf("%s is claimed: %q, want %t", uuid, got, want)
		}
	}
}

// TestDisabledDialect checks that the capacity of a dialect that was disabled claims nothing until
// nri-vgpu has withdrawn the capacity. Kubelet's devices claim GPUs meanwhile.
func TestDisabledDialect(t *testing.T) {
	const name = "nvidia.com/gpu"
	node := &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{name: resource.MustParse("20")}}}
	node.Annotations = map[string]string{ownnode.Advertised: "nri-vgpu.io/vgpu-memory," + name}
	l := &lister{}
	w := watcherOf(l)
	w.Node = func() *corev1.Node { return node }
	claimed := func(uuid string) bool { w.Look(t.Context()); return w.Claimed(gpu.GPU{UUID: uuid}) != "" }
	if claimed("GPU-a") {
		t.Error("nri-vgpu's own capacity claims a GPU")
	}
	l.devices = map[string][]string{name: {"GPU-a"}}
	if !claimed("GPU-a") || claimed("GPU-b") {
		t.Error("beside nri-vgpu's own capacity, kubelet's devices do not claim their GPU alone")
	}
	node.Annotations[ownnode.Advertised] = "nri-vgpu.io/vgpu-memory," + name + ".shared"
	if !claimed("GPU-b") {
		t.Error("another program's capacity claims nothing")
	}
}

// lister is a Kubelet that lists these devices, or hangs until the query ends.
type lister struct {
	devices map[string][]string
	hangs   bool
	asked   int
}

func (l *lister) Devices(ctx context.Context) (map[string][]string, error) {
	l.asked++
	if l.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.devices, nil
}

func watcherOf(kubelet Kubelet) *Watcher {
	return New(Options{
		Config: config.Default().Node, Kubelet: kubelet, Node: func() *corev1.Node { return nil }, Log: slog.New(slog.DiscardHandler),
	})
}

// TestRunLooksAgain checks that Run looks at once, after each interval, and at a Poke.
func TestRunLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lister{devices: map[string][]string{"nvidia.com/gpu": {"GPU-a"}}}
		w := watcherOf(l)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { w.Run(ctx); close(ended) }()
		asked := func(when string, want int) {
			t.Helper()
			if synctest.Wait(); l.asked != want {
				t.Errorf("%s kubelet has been asked %d times, want %d", when, l.asked, want)
			}
		}
		asked("at first", 1)
		w.Poke()
		asked("after a poke", 2)
		time.Sleep(interval)
		asked("after an interval", 3)
		time.Sleep(interval)
		asked("after another interval", 4)
		cancel()
		<-ended
	})
}

// TestKubeletHangs checks that a look ends though kubelet hangs, and that the Node's capacity then
// counts.
func TestKubeletHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watcherOf(&lister{hangs: true})
		w.Node = func() *corev1.Node { return &corev1.Node{} }
		begin := time.Now()
		w.Look(t.Context())
		if got := w.Claimed(gpu.GPU{UUID: "GPU-a"}); got != "" || time.Since(begin) != patience {
			t.Errorf("after %v: %q", time.Since(begin), got)
		}
	})
}

// TestKubeletRestarts checks that a GPU stays claimed while kubelet and the plugin restart. Until the
// plugin has registered again, kubelet lists only devices in use, and reports a capacity of 0
// (readCheckpoint in kubelet's device manager). A plugin that stays away loses its claims.
func TestKubeletRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "nvidia.com/gpu"
		l := &lister{}
		w := watcherOf(l)
		var count int64
		w.Node = func() *corev1.Node {
			return &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{name: *resource.NewQuantity(count, resource.DecimalSI)}}}
		}
		look := func(when string, capacity int64, listed []string, want ...string) {
			t.Helper()
			count, l.devices = capacity, map[string][]string{name: listed}
			w.Look(t.Context())
			var claimed []string
			for _, uuid := range []string{"GPU-a", "GPU-b", "GPU-c"} {
				if w.Claimed(gpu.GPU{UUID: uuid}) != "" {
					claimed = append(claimed, uuid)
				}
			}
			if diff := cmp.Diff(want, claimed); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		for range 2 {
			look("registered", 2, []string{"GPU-a", "GPU-b"}, "GPU-a", "GPU-b")
			look("kubelet has restarted", 0, nil, "GPU-a", "GPU-b")
			time.Sleep(absence / 2)
			look("kubelet knows its pods", 0, []string{"GPU-b"}, "GPU-a", "GPU-b")
			look("registered again", 2, []string{"GPU-a", "GPU-b"}, "GPU-a", "GPU-b")
			look("kubelet has restarted again", 0, []string{"GPU-b"}, "GPU-a", "GPU-b")
			time.Sleep(absence - time.Second)
			look("the plugin is away", 0, []string{"GPU-b"}, "GPU-a", "GPU-b")
			time.Sleep(time.Second)
			look("the plugin stays away", 0, []string{"GPU-b"}, "GPU-b")
			look("its last pod has ended", 0, nil, "GPU-b")
			time.Sleep(absence)
			look("long after its last pod", 0, nil)
		}
		look("a device in doubt", 1, nil, "GPU-a", "GPU-b", "GPU-c")
		look("kubelet has restarted with it", 0, nil, "GPU-a", "GPU-b", "GPU-c")
		look("registered with one device", 1, []string{"GPU-a"}, "GPU-a")
		look("registered with another", 1, []string{"GPU-c"}, "GPU-c")
	})
}

// TestAnEndingAgentKeepsItsClaims checks that a look that the end of the agent interrupts changes
// nothing.
func TestAnEndingAgentKeepsItsClaims(t *testing.T) {
	w := watcherOf(&lister{hangs: true})
	w.Node = func() *corev1.Node { return &corev1.Node{} }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Look(ctx)
	if got := w.Claimed(gpu.GPU{UUID: "GPU-a"}); got != unknown {
		t.Errorf("after an interrupted look: %q", got)
	}
}

// TestResourcesWithoutDevices checks that a resource without devices claims no GPU.
func TestResourcesWithoutDevices(t *testing.T) {
	w := watcherOf(&lister{devices: map[string][]string{"nvidia.com/gpu": nil}})
	w.Look(t.Context())
	if got := w.Claimed(gpu.GPU{UUID: "GPU-a"}); got != "" {
		t.Errorf("a resource without devices claims a GPU: %q", got)
	}
}

// TestFailuresAreLoggedOnce checks that Look logs each failure of kubelet once.
func TestFailuresAreLoggedOnce(t *testing.T) {
	var log strings.Builder
	w := watcherOf(PodResources{filepath.Join(t.TempDir(), "kubelet.sock")})
	w.Log = slog.New(slog.NewTextHandler(&log, nil))
	for range 3 {
		w.Look(t.Context())
	}
	if got := strings.Count(log.String(), "failed to ask kubelet"); got != 1 {
		t.Errorf("%d failures are logged, want 1:\n%s", got, &log)
	}
}
