// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// daemonSays is the error that Ready returns; "" means no error.
type daemonSays string

func (d daemonSays) Ready([]string) error {
	if d == "" {
		return nil
	}
	return errors.New(string(d))
}

// withMPS shares GPU A through the Multi-Process Service.
func withMPS(n *node) {
	n.cfg.Sharing.Method = config.ShareByMPS
	n.cfg.Sharing.MPSGPUs = []string{gpuA}
}

// percent adds a request for a percentage of the GPU's time.
func (n *node) percent(pod *corev1.Pod, percent string) {
	pod.Spec.Containers[0].Resources.Limits["nri-vgpu.io/vgpu-cores"] = resource.MustParse(percent)
}

func TestClientGetsWhatMPSNeeds(t *testing.T) {
	n := newNode(t, withMPS)
	n.hook.opts.MPS = daemonSays("")
	n.percent(n.pod("u", "main=4096"), "30")
	spec := mustCreate(t, n, "u", addMount("/tmp/nvidia-mps"), addMount("/dev/shm"))
	wantEnv(t, spec, adjust.MPSPipes, "/run/nri-vgpu/mps")
	wantEnv(t, spec, adjust.MPSPercentage, "30")
	wantEnv(t, spec, adjust.MPSMemory, "0=4096M")
	wantEnv(t, spec, adjust.VisibleDevices, gpuA)
	for destination, want := range map[string]string{
		"/run/nri-vgpu/mps": paths.MPSClients(n.cfg.Paths.RunDir),
		"/dev/shm":          paths.MPSSHM(n.cfg.Paths.RunDir),
		"/tmp/nvidia-mps":   "/user",
	} {
		if m, _ := mountAt(spec, destination); m.Source != want {
			t.Errorf("%s is %q, want %q", destination, m.Source, want)
		}
	}
	if m, _ := mountAt(spec, "/run/nri-vgpu/mps"); !slices.Contains(m.Options, "ro") {
		t.Errorf("a tenant may write where the daemon is found: %v", m.Options)
	}
	page, err := limits.Read(filepath.Join(n.cfg.Paths.RunDir, "containers", "u", "main", limits.LimitsFile))
	if err != nil {
		t.Fatal(err)
	}
	want := []limits.Device{{UUID: gpuA, MemoryBytes: 4096 * mib, ComputePPM: 300_000, MPS: true, Multiprocessors: 132}}
	if diff := cmp.Diff(want, page); diff != "" {
		t.Error(diff)
	}
}

func TestOthersGetNothingOfMPS(t *testing.T) {
	n := newNode(t, withMPS)
	n.hook.opts.MPS = daemonSays("it is away")
	n.pod("whole", "main=16384") // the pod is on GPU B, since the server reserves some memory of GPU A
	n.pod("none", "main")
	for _, uid := range []string{"whole", "none"} {
		spec := mustCreate(t, n, uid)
		for _, name := range []string{adjust.MPSPipes, adjust.MPSPercentage, adjust.MPSMemory} {
			if value, set := env(spec, name); set {
				t.Errorf("%s: %s=%s", uid, name, value)
			}
		}
		if m, ok := mountAt(spec, "/dev/shm"); ok {
			t.Errorf("%s: %+v", uid, m)
		}
	}
}

func TestNoClientStartsWithoutTheDaemon(t *testing.T) {
	n := newNode(t, withMPS)
	n.hook.opts.MPS = daemonSays("the MPS control daemon does not run (process 7 has ended)")
	n.pod("u", "main=4096")
	_, err := n.create("u")
	if err == nil || !strings.Contains(err.Error(), "process 7 has ended") {
		t.Fatalf("created without the daemon, or refused for another reason: %v", err)
	}
	if events := n.told.all(); len(events) != 1 || !strings.Contains(events[0], "VGPURefused") {
		t.Errorf("Events: %q", events)
	}
	n.hook.opts.MPS = daemonSays("")
	mustCreate(t, n, "u")
	n.hook.opts.MPS = daemonSays("the MPS control daemon does not run")
	if _, err := n.create("u"); err == nil {
		t.Error("a container was restarted without the daemon")
	}
}

// asked is a daemon that serves all GPUs. asked contains the GPUs of the last question.
type asked struct{ uuids []string }

func (a *asked) Ready(uuids []string) error {
	a.uuids = uuids
	return nil
}

// TestTheDaemonIsAskedForTheGPUs checks that a container needs the service on its own GPUs. No
// container is created for a service that the configuration no longer sets.
func TestTheDaemonIsAskedForTheGPUs(t *testing.T) {
	n := newNode(t, withMPS)
	daemon := &asked{}
	n.hook.opts.MPS = daemon
	n.run("u", "main=4096")
	if !slices.Equal(daemon.uuids, []string{gpuA}) {
		t.Errorf("the daemon was asked for %v", daemon.uuids)
	}
	n.hook.opts.MPS = nil
	if _, err := n.create("u"); err == nil || !strings.Contains(err.Error(), "sharing.method") {
		t.Errorf("got %v", err)
	}
}
