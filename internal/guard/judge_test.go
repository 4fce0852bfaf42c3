// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestJudge(t *testing.T) {
	const passes, hides, refuses = "passes", "hides", "refuses"
	limits := func(dir string) []ourfiles.Mount {
		return []ourfiles.Mount{{Source: dir + "/limits", Destination: paths.ContainerLimits}}
	}
	const ours = "/run/nri-vgpu/containers/u/main"
	whole := []ourfiles.Mount{{Source: ours + "/assignment.json", Destination: paths.ContainerAssignment}}
	env := func(env ...string) Container { return Container{Env: env} }
	everything := []string{"/dev/kmsg", "/dev/nvidia0"}
	socket := func(options ...string) []ourfiles.Mount {
		return []ourfiles.Mount{{Source: "/run/nri", Destination: "/var/run/nri", Options: options}}
	}
	tests := []struct {
		name string
		c    Container
		asks bool
		want string
	}{
		{"nothing", Container{}, false, hides},
		{"another variable", env("NVIDIA_VISIBLE_DEVICES_=all"), false, hides},
		{"an empty variable", env("NVIDIA_VISIBLE_DEVICES="), false, hides},
		{"hidden already", env("NVIDIA_VISIBLE_DEVICES=void"), false, passes},
		{"hidden by the pod", env("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"), false, passes},
		{"all GPUs", env("NVIDIA_VISIBLE_DEVICES=all"), false, refuses},
		{"all GPUs, twice", env("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=all"), false, refuses},
		{"all GPUs, looked at", Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Marked: true}, false, passes},
		{"all GPUs, in the release's namespace", Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Namespace: "nri-vgpu-system"}, false, refuses},
		{"all GPUs, in an exempt namespace", Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Namespace: "exporters"}, false, refuses},
		{"all GPUs, the agent", Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Devices: everything, Mounts: socket()}, false, passes},
		{"all GPUs, with the socket to read", Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Devices: everything, Mounts: socket("ro")}, false, refuses},
		{"all GPUs, with the socket, not privileged", Container{Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}, Mounts: socket()}, false, refuses},
		{"a volume", Container{Mounts: []ourfiles.Mount{{Destination: "/run/nvidia-container-devices/all"}}}, false, refuses},
		{"an annotation", Container{Annotations: map[string]string{"cdi.k8s.io/x": "nvidia.com/gpu=all"}}, false, refuses},
		{"a CDI device", Container{CDIDevices: []string{"nvidia.com/gpu=0"}}, false, refuses},
		{"a device node", Container{Devices: []string{"/dev/nvidia0"}}, false, refuses},
		{"every device node", Container{Devices: []string{"/dev/kmsg", "/dev/nvidia0"}}, false, hides},
		{"asks", Container{}, true, refuses},
		{"asks and hides", env("NVIDIA_VISIBLE_DEVICES=void"), true, refuses},
		{"asks, looked at", Container{Marked: true}, true, passes},
		{"has its limits", Container{Mounts: limits(ours), Env: []string{"NVIDIA_VISIBLE_DEVICES=GPU-x"}}, true, passes},
		{"has whole GPUs", Container{Mounts: whole, Env: []string{"NVIDIA_VISIBLE_DEVICES=GPU-x"}}, true, passes},
		{"has another's limits", Container{Mounts: limits("/run/nri-vgpu/containers/v/main")}, true, refuses},
		{"has limits of its own making", Container{Mounts: limits("/home/user"), Env: []string{"NVIDIA_VISIBLE_DEVICES=all"}}, false, refuses},
	}
	cfg := config.Default()
	cfg.Node.ExemptNamespaces = []string{"exporters"}
	r := rules{guardfile.SettingsFrom(cfg), "/opt/nri/plugins/99-nri-vgpu-guard"}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := tt.c
			c.PodUID, c.Name = "u", "main"
			hide, err := r.Judge(c, tt.asks)
			got := passes
			switch {
			case err != nil:
				got = refuses
			case hide:
				got = hides
			}
			if got != tt.want {
				t.Errorf("%s, want %s: %v", got, tt.want, err)
			}
			if err != nil && (strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), r.program)) {
				t.Errorf("the refusal is %q", err)
			}
		})
	}
	// The guard refuses a container without a name, because the directory of all containers belongs
	// to no container.
	if _, err := r.Judge(Container{Mounts: limits("/run/nri-vgpu/containers")}, true); err == nil {
		t.Error("a container without a name passes with the directory of all")
	}
}

// TestAMarkOfThePodIsForged checks that a container's mark does not count if the pod has the mark,
// too. A user writes the pod's annotations, and a runtime that does not validate reports no owner
// of a mark.
func TestAMarkOfThePodIsForged(t *testing.T) {
	marked := map[string]string{paths.AdjustedAnnotation: "withheld"}
	if c := describe(&api.PodSandbox{}, &api.Container{Annotations: marked}); !c.Marked {
		t.Error("the agent's mark is not seen")
	}
	if c := describe(&api.PodSandbox{Annotations: marked}, &api.Container{Annotations: marked}); c.Marked {
		t.Error("a user's annotation is taken for the agent's")
	}
	if c := describe(&api.PodSandbox{Annotations: marked}, &api.Container{}); c.Marked {
		t.Error("a pod's annotation is taken for the agent's")
	}
}

// TestWhatIsNotHiddenInTheEndIsRefused checks that the guard refuses a container if another plugin
// has removed the guard's change.
func TestWhatIsNotHiddenInTheEndIsRefused(t *testing.T) {
	g := New(filepath.Join(t.TempDir(), paths.GuardProgram))
	s := guardfile.SettingsFrom(config.Default())
	s.InstallDir = t.TempDir()
	if err := s.Write(g.program); err != nil {
		t.Fatal(err)
	}
	req := &api.ValidateContainerAdjustmentRequest{Pod: &api.PodSandbox{Uid: "u"}, Container: &api.Container{Id: "c", Name: "main"}}
	if err := g.ValidateContainerAdjustment(t.Context(), req); err == nil {
		t.Error("it passes without the variable")
	}
	req.Adjust = &api.ContainerAdjustment{}
	req.Adjust.AddEnv("NVIDIA_VISIBLE_DEVICES", "void")
	if err := g.ValidateContainerAdjustment(t.Context(), req); err != nil {
		t.Error(err)
	}
}
