// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/nri-vgpu/nri-vgpu/internal/container/runtimes"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// another is a second NRI plugin on the node. The runtime calls another after the hook's plugin.
type another struct {
	adjust func(*api.ContainerAdjustment)
	asked  atomic.Bool
}

func (a *another) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	a.asked.Store(true)
	adjust := &api.ContainerAdjustment{}
	a.adjust(adjust)
	return adjust, nil, nil
}

// connect connects another plugin to the runtime.
func (n *node) connect(plugin any, name, index string) stub.Stub {
	n.t.Helper()
	st, err := stub.New(plugin, stub.WithPluginName(name), stub.WithPluginIdx(index),
		stub.WithSocketPath(n.runtimeSocket()), stub.WithLogger(stubLog{slog.New(slog.DiscardHandler)}))
	if err != nil {
		n.t.Fatal(err)
	}
	if err := st.Start(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	return st
}

// withAnother runs f while another plugin adjusts containers.
func (n *node) withAnother(adjust func(*api.ContainerAdjustment), f func()) {
	n.t.Helper()
	other := &another{adjust: adjust}
	defer n.connect(other, "other", "95").Stop()
	eventually.Holds(n.t, 10*time.Second, "the runtime asks the other plugin", func() bool {
		_, _ = n.runtime.CreateContainer(context.Background(), probe())
		return other.asked.Load()
	})
	f()
}

func TestWhatAnotherPluginUndoesIsRefused(t *testing.T) {
	n := newNode(t)
	n.pod("some", "main=1024")
	n.pod("none", "main")
	tests := []struct {
		name   string
		adjust func(*api.ContainerAdjustment)
		uids   []string // of pods whose container the hook refuses
	}{
		{"something else", func(a *api.ContainerAdjustment) {
			a.AddEnv("A", "b")
			a.AddMount(&api.Mount{Source: "/x", Destination: "/x"})
		}, nil},
		{"a GPU by the variable", func(a *api.ContainerAdjustment) {
			a.RemoveEnv(adjust.VisibleDevices)
			a.AddEnv(adjust.VisibleDevices, "all")
		}, []string{"some", "none"}},
		{"the variable removed", func(a *api.ContainerAdjustment) {
			a.RemoveEnv(adjust.VisibleDevices)
			a.AddEnv("CUDA_VERSION", "8.0")
		}, []string{"some", "none"}},
		{"a GPU by CDI", func(a *api.ContainerAdjustment) {
			a.AddCDIDevice(&api.CDIDevice{Name: "nvidia.com/gpu=all"})
		}, []string{"some", "none"}},
		{"a GPU by our own CDI device", func(a *api.ContainerAdjustment) {
			a.AddCDIDevice(&api.CDIDevice{Name: adjust.EnvDevice(gpuB)})
		}, []string{"some", "none"}},
		{"a GPU's device node", func(a *api.ContainerAdjustment) {
			a.AddDevice(&api.LinuxDevice{Path: "/dev/nvidia0", Type: "c"})
		}, []string{"some", "none"}},
		{"another device node", func(a *api.ContainerAdjustment) {
			a.AddDevice(&api.LinuxDevice{Path: "/dev/fuse", Type: "c"})
		}, nil},
		{"more of the driver", func(a *api.ContainerAdjustment) {
			a.RemoveEnv(adjust.DriverCapabilities)
			a.AddEnv(adjust.DriverCapabilities, "compute,graphics")
		}, []string{"some"}},
		{"less of the driver", func(a *api.ContainerAdjustment) {
			a.RemoveEnv(adjust.DriverCapabilities)
			a.AddEnv(adjust.DriverCapabilities, "compute")
		}, nil},
		{"the limits removed", func(a *api.ContainerAdjustment) {
			a.RemoveMount(paths.ContainerLimits)
		}, []string{"some"}},
		{"a library replaced", func(a *api.ContainerAdjustment) {
			a.RemoveMount(paths.ContainerCUDA)
			a.AddMount(&api.Mount{Source: "/x", Destination: paths.ContainerCUDA})
		}, []string{"some"}},
		{"another ld.so.preload", func(a *api.ContainerAdjustment) {
			a.RemoveMount(paths.ContainerPreload)
			a.AddMount(&api.Mount{Source: "/x", Destination: paths.ContainerPreload})
		}, []string{"some"}},
		{"a mount over the limits", func(a *api.ContainerAdjustment) {
			a.AddMount(&api.Mount{Source: "/x", Destination: paths.ContainerLimits + "/"})
		}, []string{"some"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n.withAnother(tt.adjust, func() {
				refused := map[string]bool{}
				for _, uid := range tt.uids {
					refused[uid] = true
				}
				for _, uid := range []string{"some", "none"} {
					_, err := n.create(uid)
					if (err != nil) != refused[uid] {
						t.Errorf("%s: got %v", uid, err)
					}
					if err != nil && (!strings.Contains(err.Error(), "plugin") || strings.Contains(err.Error(), "\n")) {
						t.Errorf("%s: the refusal is %q", uid, err)
					}
				}
			})
		})
	}
}

// TestOurOwnDevicesPassWithoutOwners checks that the plugin's own settings pass the validation if
// the runtime reports no owners.
func TestOurOwnDevicesPassWithoutOwners(t *testing.T) {
	n := newNode(t)
	n.pod("none", "main")
	c := adjust.Container{PodUID: "none", Namespace: "ns", Pod: "pod-none", Name: "main", CDIDevices: []string{adjust.EnvDevice(adjust.NoDevices), adjust.EnvDevice(gpuA), adjust.EnvDevice(adjust.PreloadDevice)}}
	if err := n.hook.checkAdjusted(c, owners{container: "c"}); err != nil {
		t.Error(err)
	}
}

// TestOlderRuntimesAreAskedForWhatTheyKnow checks that the plugin subscribes only to events that
// the runtime knows: a runtime rejects a plugin that subscribes to an unknown event.
func TestOlderRuntimesAreAskedForWhatTheyKnow(t *testing.T) {
	const knownToNRI08 = 1<<11 - 1
	if got := subscription(runtimes.Detect("containerd", "v2.0.4", "v0.8.0")); got&^knownToNRI08 != 0 || got == 0 {
		t.Errorf("NRI 0.8 requests %s", got.PrettyString())
	}
	got := subscription(runtimes.Detect("containerd", "v2.2.0", "v0.11.0"))
	if !got.IsSet(api.Event_VALIDATE_CONTAINER_ADJUSTMENT) {
		t.Errorf("NRI 0.11 requests only %s", got.PrettyString())
	}
}

// TestTheFilesOfAnotherContainerAreRefused checks that the validation refuses a container with the
// files of another container, even if the runtime reports no owners.
func TestTheFilesOfAnotherContainerAreRefused(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=1024")
	n.pod("v", "main=1024")
	mustCreate(t, n, "u")
	c := describe(sandbox("u"), fromSpec(sandbox("u"), "main", mustCreate(t, n, "v")))
	if err := n.hook.checkAdjusted(c, owners{container: "c"}); err == nil {
		t.Error("it passed")
	}
}

// TestALateValidationIsARefusal checks that a container is refused if the validation cannot run.
func TestALateValidationIsARefusal(t *testing.T) {
	n := newNode(t)
	n.pod("none", "main")
	hang, begun := make(chan struct{}), make(chan struct{})
	defer close(hang)
	for range maxHandlers {
		go func() {
			_, _ = within(t.Context(), n.hook, func(context.Context) bool {
				begun <- struct{}{}
				<-hang
				return true
			})
		}()
	}
	for range maxHandlers {
		<-begun
	}
	e := &edge{Hook: n.hook}
	err := e.ValidateContainerAdjustment(t.Context(), &api.ValidateContainerAdjustmentRequest{
		Pod: sandbox("none"), Container: &api.Container{Id: "c", Name: "main"},
	})
	if err == nil || !strings.Contains(err.Error(), "did not answer in time") {
		t.Errorf("got %v", err)
	}
}
