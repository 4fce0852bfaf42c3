// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	rspec "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

const exemptNamespace = "exporters"

func withExemptNamespace(n *node) { n.cfg.Node.ExemptNamespaces = []string{exemptNamespace} }

// exemptPod adds a pod in an exempt namespace to the API server, and returns its sandbox.
func (n *node) exemptPod(uid string, containers ...string) *api.PodSandbox {
	pod := n.pod(uid, containers...)
	n.api.change(func() { pod.Namespace = exemptNamespace })
	return exemptSandbox(uid)
}

func exemptSandbox(uid string) *api.PodSandbox {
	box := sandbox(uid)
	box.Namespace = exemptNamespace
	return box
}

func startIn(n *node, pod *api.PodSandbox, spec *rspec.Spec) error {
	return n.runtime.StartContainer(context.Background(), &api.StartContainerRequest{Pod: pod, Container: fromSpec(pod, "main", spec)})
}

var wantsAll = addEnv(adjust.VisibleDevices + "=all")

func TestExemptNamespacesAreLeftAlone(t *testing.T) {
	n := newNode(t, withExemptNamespace)
	pod := n.exemptPod("u", "main")
	// The watch may lag during the whole test.
	n.api.change(func() { n.api.lagging["u"] = true })
	spec, err := n.createIn(pod, "main", wantsAll, addDevice("/dev/nvidia0"))
	if err != nil {
		t.Fatal(err)
	}
	wantEnv(t, spec, adjust.VisibleDevices, "all")
	if mark := spec.Annotations[paths.AdjustedAnnotation]; mark != "exempt" {
		t.Errorf("the guard gets the mark %q", mark)
	}
	if err := startIn(n, pod, spec); err != nil {
		t.Error(err)
	}
}

func TestWhatAsksIsNeverExempt(t *testing.T) {
	n := newNode(t, withExemptNamespace)
	pod := n.exemptPod("u", "main=1024", "side")
	spec, err := n.createIn(pod, "main", wantsAll)
	if err != nil {
		t.Fatal(err)
	}
	wantEnv(t, spec, adjust.VisibleDevices, gpuA)
	if _, ok := mountAt(spec, paths.ContainerLimits); !ok {
		t.Error("it has no limits")
	}
	if err := startIn(n, pod, spec); err != nil {
		t.Error(err)
	}
	if len(n.hook.Holders()) != 1 {
		t.Error("the container does not count as live")
	}
	bare := &rspec.Spec{Process: &rspec.Process{Env: []string{adjust.VisibleDevices + "=all"}}}
	if err := startIn(n, pod, bare); err == nil {
		t.Error("started without the limits that it was given")
	}
	side, err := n.createIn(pod, "side", wantsAll)
	if err != nil {
		t.Fatal(err)
	}
	wantEnv(t, side, adjust.VisibleDevices, "all")

	other := n.exemptPod("bare", "main=1024")
	if err := startIn(n, other, bare); err == nil {
		t.Error("started without limits")
	}
	nonsense := n.exemptPod("nonsense", "main=99999999")
	if _, err := n.createIn(nonsense, "main", wantsAll); err == nil {
		t.Error("a container with an impossible request was created")
	}
	n.keepAsking()
	n.waitAsking("bare", "nonsense", "u")
}

// TestWhatIsNotKnownIsNotExempt checks that the exemption does not apply to a container of an
// unknown pod, which may request a GPU.
func TestWhatIsNotKnownIsNotExempt(t *testing.T) {
	n := newNode(t, withExemptNamespace)
	unknown := exemptSandbox("unknown")
	if _, err := n.createIn(unknown, "main", wantsAll); err == nil {
		t.Error("a pod that is not known was left alone")
	}
	if err := startIn(n, unknown, &rspec.Spec{Process: &rspec.Process{Env: []string{adjust.VisibleDevices + "=all"}}}); err == nil {
		t.Error("a container of a pod that is not known was started")
	}
	static := exemptSandbox("hash")
	static.Annotations = map[string]string{pods.SourceAnnotation: "file"}
	spec, err := n.createIn(static, "main", wantsAll)
	if err != nil {
		t.Fatalf("a node may need it to boot: %v", err)
	}
	wantEnv(t, spec, adjust.VisibleDevices, "void")
}

// TestWhatAsksIsFoundInExemptNamespaces checks that a new agent finds a container that requests a
// GPU and runs without limits in an exempt namespace.
func TestWhatAsksIsFoundInExemptNamespaces(t *testing.T) {
	n := newNode(t, withExemptNamespace)
	all := &rspec.Spec{Process: &rspec.Process{Env: []string{adjust.VisibleDevices + "=all"}}}
	asks, exports := n.exemptPod("asks", "main=1024"), n.exemptPod("exports", "main")
	n.stopHook()
	n.keep(asks, fromSpec(asks, "main", all))
	n.keep(exports, fromSpec(exports, "main", all))
	n.startHook()
	if got := n.hook.Unadjusted(); got != 1 {
		t.Errorf("%d containers run without their limits, want the one that asks", got)
	}
}

// TestTheAgentIsLeftAlone checks that the hook recognizes an agent's container by its access to the
// runtime's socket, whatever the container's namespace and name are.
func TestTheAgentIsLeftAlone(t *testing.T) {
	n := newNode(t)
	socket := func(options ...string) func(*rspec.Spec) {
		return func(s *rspec.Spec) {
			s.Mounts = append(s.Mounts, rspec.Mount{Destination: "/var/run/nri", Type: "bind", Source: n.dir, Options: append(options, "rbind")})
		}
	}
	privileged := addDevice("/dev/kmsg", "/dev/nvidia0")
	n.pod("agent", "main")
	spec := mustCreate(t, n, "agent", wantsAll, socket("rw"), privileged)
	wantEnv(t, spec, adjust.VisibleDevices, "all")
	if err := start(n, "agent", spec); err != nil {
		t.Error(err)
	}
	if _, err := n.create("unknown", wantsAll, socket("rw"), privileged); err != nil {
		t.Errorf("an agent cannot start while the API server is away: %v", err)
	}
	n.restartHook()
	if got := n.hook.Unadjusted(); got != 0 {
		t.Errorf("%d containers run without their limits, among them the agent", got)
	}
	for name, change := range map[string][]func(*rspec.Spec){
		"no socket":          {privileged},
		"a read-only socket": {privileged, socket("ro")},
		"not privileged":     {socket("rw")},
	} {
		n.pod(name, "main")
		wantEnv(t, mustCreate(t, n, name, append(change, wantsAll)...), adjust.VisibleDevices, "void")
	}
	n.pod("asks", "main=1024")
	wantEnv(t, mustCreate(t, n, "asks", wantsAll, socket("rw"), privileged), adjust.VisibleDevices, gpuA)
}

// TestABlockVolumeMakesNothingPrivileged checks that a block volume with the device name of a
// privileged container does not make its container privileged. A pod chooses the names of its block
// volumes' devices.
func TestABlockVolumeMakesNothingPrivileged(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main")
	volume := func(s *rspec.Spec) {
		s.Linux.Devices = append(s.Linux.Devices, rspec.LinuxDevice{Path: "/dev/kmsg", Type: "b", Major: 7})
	}
	if _, err := n.create("u", volume); err != nil {
		t.Errorf("a block volume: %v", err)
	}
	if _, err := n.create("u", volume, addDevice("/dev/nvidia0")); err == nil || !strings.Contains(err.Error(), "/dev/nvidia0") {
		t.Errorf("with a GPU's device node: %v", err)
	}
}
