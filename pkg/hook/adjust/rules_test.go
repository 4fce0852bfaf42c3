// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

var (
	withCDI    = Runtime{Name: "containerd", Version: "2.4.2", CDI: true}
	withoutCDI = Runtime{Name: "containerd", Version: "1.7.35"}
)

func TestWithhold(t *testing.T) {
	set := Adjustment{Env: []Variable{{VisibleDevices, "void"}}}
	byCDI := Adjustment{CDIDevices: []string{"nri-vgpu.io/env=void"}}
	tests := []struct {
		name string
		env  []string
		rt   Runtime
		want Adjustment
		err  Reason
	}{
		{"no variable", nil, withCDI, set, ""},
		{"once", []string{"NVIDIA_VISIBLE_DEVICES=all"}, withCDI, set, ""},
		{"once, without CDI", []string{"NVIDIA_VISIBLE_DEVICES=all"}, withoutCDI, set, ""},
		{"without a value", []string{"NVIDIA_VISIBLE_DEVICES"}, withCDI, set, ""},
		{"twice", []string{"NVIDIA_VISIBLE_DEVICES=all", "A=b", "NVIDIA_VISIBLE_DEVICES=0"}, withCDI, byCDI, ""},
		{"twice, void at last", []string{"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=void"}, withoutCDI, Adjustment{}, ""},
		{"twice, void at first", []string{"NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_VISIBLE_DEVICES=all"}, withoutCDI, Adjustment{}, ReasonInjection},
		{"similar names", []string{"XNVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES_=all"}, withoutCDI, set, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Rules{}.Withhold(Container{Name: "c", Env: tt.env}, tt.rt)
			checkRefusal(t, err, tt.err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func checkRefusal(t *testing.T, err error, want Reason) {
	t.Helper()
	var refusal *RefusalError
	errors.As(err, &refusal)
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && (refusal == nil || refusal.Reason != want):
		t.Errorf("got %v, want a refusal for %s", err, want)
	case err != nil && strings.Contains(err.Error(), "\n"):
		t.Errorf("%q is more than a line", err)
	}
}

func TestInjectionMethod(t *testing.T) {
	a, b := gpu.GPU{UUID: "GPU-a", Minor: 4}, gpu.GPU{UUID: "GPU-b", Minor: 7}
	all := []string{kind + "=GPU-a", kind + "=GPU-b"}
	tests := []struct {
		name    string
		method  string
		rt      Runtime
		spec    []string
		devices []string
		visible string
		nodes   []string
		err     Reason
	}{
		{"auto, all named", config.InjectAuto, withCDI, all, append(slices.Clone(all), "nri-vgpu.io/env=void"), "", nil, ""},
		{"auto, one not named", config.InjectAuto, withCDI, all[:1], nil, "GPU-a,GPU-b", nil, ""},
		{"auto, without CDI", config.InjectAuto, withoutCDI, all, nil, "GPU-a,GPU-b", nil, ""},
		{"cdi", config.InjectCDI, withCDI, all, append(slices.Clone(all), "nri-vgpu.io/env=void"), "", nil, ""},
		{"cdi, one not named", config.InjectCDI, withCDI, all[:1], nil, "", nil, ReasonInjection},
		{"cdi, without CDI", config.InjectCDI, withoutCDI, all, nil, "", nil, ReasonInjection},
		{"env", config.InjectEnv, withCDI, all, nil, "GPU-a,GPU-b", nil, ""},
		{"direct", config.InjectDirect, withCDI, all, nil, "void", []string{"/dev/nvidia4", "/dev/nvidiactl", "/dev/nvidia7"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := Rules{
				Injection: config.Injection{Method: tt.method, CDIKind: kind, Direct: config.Direct{
					Devices: []string{"/dev/nvidia{minor}", "/dev/nvidiactl"},
				}},
				HasCDIDevice: func(name string) bool { return slices.Contains(tt.spec, name) },
			}
			got, err := r.Grant(Container{Name: "c"}, tt.rt, Assignment{
				GPUs: []gpu.GPU{a, b}, Dir: "/run/x", Allocation: placement.Allocation{Container: "c"},
			})
			checkRefusal(t, err, tt.err)
			if err != nil {
				return
			}
			if diff := cmp.Diff(tt.devices, got.CDIDevices); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.nodes, got.DeviceNodes); diff != "" {
				t.Error(diff)
			}
			visible := ""
			for _, v := range got.Env {
				if v.Name == VisibleDevices {
					visible = v.Value
				}
			}
			if visible != tt.visible {
				t.Errorf("visible are %q, want %q", visible, tt.visible)
			}
		})
	}
}

// TestMIGDevicesNeedARuntime checks that MIG devices are injected by CDI or by the runtime's hook:
// the method direct does not know their device nodes.
func TestMIGDevicesNeedARuntime(t *testing.T) {
	device := []gpu.GPU{{UUID: "MIG-a", MIG: gpu.MIG{Parent: "GPU-a"}}}
	for method, want := range map[string]Reason{config.InjectAuto: "", config.InjectEnv: "", config.InjectDirect: ReasonInjection} {
		r := Rules{Injection: config.Injection{Method: method, CDIKind: kind}, HasCDIDevice: func(string) bool { return true }}
		_, err := r.Grant(Container{Name: "c"}, withCDI, Assignment{GPUs: device, Dir: "/run/x", Allocation: placement.Allocation{Container: "c"}})
		checkRefusal(t, err, want)
	}
}

func TestCapabilities(t *testing.T) {
	const name = DriverCapabilities + "="
	set := func(value string) Adjustment { return Adjustment{Env: []Variable{{DriverCapabilities, value}}} }
	byCDI := Adjustment{CDIDevices: []string{"nri-vgpu.io/env=capabilities"}}
	few := []string{"compute", "utility"}
	more := []string{"compute", "utility", "graphics", "video"}
	tests := []struct {
		name    string
		env     []string
		allowed []string
		rt      Runtime
		want    Adjustment
		err     Reason
	}{
		{"no variable", nil, few, withCDI, set("compute,utility"), ""},
		{"no variable, more allowed", nil, more, withCDI, set("compute,utility"), ""},
		{"empty", []string{name}, few, withCDI, set("compute,utility"), ""},
		{"all", []string{name + "all"}, few, withCDI, set("compute,utility"), ""},
		{"all, more allowed", []string{name + "all"}, more, withCDI, set("compute,utility,graphics,video"), ""},
		{"some that are not allowed", []string{name + "video,compute,display"}, few, withoutCDI, set("compute"), ""},
		{"none that is allowed", []string{name + "graphics, display"}, few, withCDI, set("compute,utility"), ""},
		{"less than allowed", []string{name + "compute, graphics"}, more, withCDI, set("compute,graphics"), ""},
		{"twice, allowed", []string{name + "all", name + "utility,compute"}, few, withoutCDI, Adjustment{}, ""},
		{"twice, too much", []string{name + "compute", name + "compute,video"}, few, withCDI, byCDI, ""},
		{"twice, all", []string{name + "compute", name + "all"}, more, withCDI, byCDI, ""},
		{"twice, empty", []string{name + "compute", name}, few, withCDI, byCDI, ""},
		{"twice, too much, without CDI", []string{name + "compute", name + "compute,video"}, few, withoutCDI, Adjustment{}, ReasonInjection},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got Adjustment
			err := got.setCapabilities(Container{Name: "c", Env: tt.env}, tt.rt, tt.allowed)
			checkRefusal(t, err, tt.err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
