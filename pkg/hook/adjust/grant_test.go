// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// kind is the kind of the node's CDI devices.
const kind = "nvidia.com/gpu"

// byVariable are rules that select GPUs by a variable.
var byVariable = Rules{
	Injection:  config.Injection{Method: config.InjectEnv, CDIKind: kind, DriverCapabilities: []string{"compute", "utility"}},
	LibraryDir: "/opt/1", AgentDir: "/run/agent", MPSDir: "/run/mps", SHMDir: "/run/shm",
}

// ofGPU returns an assignment of a part of GPU a, which has 4096 MiB.
func ofGPU(d placement.Device) Assignment {
	d.UUID = gpuA
	return Assignment{
		Allocation: placement.Allocation{PodUID: "u", Container: "c", Dialect: request.DialectNative, Devices: []placement.Device{d}},
		GPUs:       []gpu.GPU{{UUID: gpuA, MemoryBytes: 4096 * mib}}, Dir: "/run/u/c",
	}
}

// mount returns a mount that the test expects, with its access and optionally more options.
func mount(source, destination, access string, more ...string) Mount {
	return Mount{Source: source, Destination: destination, Options: append([]string{"rbind", access, "rprivate", "nosuid"}, more...)}
}

// These variables are the mounts of containers, in the order in which Grant adds the mounts.
var (
	limitsMounts = []Mount{
		mount("/run/u/c/limits", paths.ContainerLimits, "ro", "nodev", "noexec"),
		mount("/run/u/c/usage", paths.ContainerUsage, "rw", "nodev", "noexec"),
		mount("/opt/1/"+paths.CUDALibrary, paths.ContainerCUDA, "ro"),
		mount("/opt/1/"+paths.NVMLLibrary, paths.ContainerNVML, "ro"),
		mount("/opt/1/"+paths.StandIns, paths.ContainerStandIns, "ro"),
	}
	ownPreload = []Mount{mount("/run/u/c/"+paths.Preload, paths.ContainerPreload, "ro", "nodev", "noexec")}
	mpsMounts  = []Mount{
		mount("/run/mps", paths.ContainerMPS, "ro", "nodev", "noexec"),
		mount("/run/shm", paths.ContainerSHM, "rw", "nodev", "noexec"),
	}
	wholeMounts  = []Mount{mount("/run/u/c/"+paths.Assignment, paths.ContainerAssignment, "ro", "nodev", "noexec")}
	commonMounts = []Mount{
		mount("/run/agent", paths.ContainerAgent, "ro", "nodev", "noexec"),
		mount("/opt/1/"+paths.Vgpuctl, paths.ContainerVgpuctl, "ro"),
		mount("/opt/1/"+paths.Vgpuctl, "/usr/bin/"+paths.Vgpuctl, "ro"),
	}
)

// TestGrant checks the complete adjustment of a container with a part of a GPU.
func TestGrant(t *testing.T) {
	part := placement.Device{MemoryBytes: 1024 * mib, ComputePPM: 250_000}
	byMPS := part
	byMPS.MPS = true
	visible := Variable{VisibleDevices, gpuA}
	capabilities := Variable{DriverCapabilities, "compute,utility"}
	preload := Variable{LDPreload, PreloadValue}
	tests := []struct {
		name  string
		env   []string
		given Assignment
		want  Adjustment
	}{
		{"a part", nil, ofGPU(part), Adjustment{
			Env: []Variable{visible, capabilities, preload}, Mounts: slices.Concat(limitsMounts, ownPreload, commonMounts),
		}},
		{"a part, with a library of the user's", []string{"LD_PRELOAD=/a.so"}, ofGPU(part), Adjustment{
			Env:    []Variable{visible, capabilities, {LDPreload, PreloadValue + ":/a.so"}},
			Mounts: slices.Concat(limitsMounts, ownPreload, commonMounts),
		}},
		{"a part, with libraries of the user's and the image's", []string{"LD_PRELOAD=/b.so", "LD_PRELOAD=/a.so:/c.so /d.so"}, ofGPU(part), Adjustment{
			Env: []Variable{visible, capabilities}, CDIDevices: []string{"nri-vgpu.io/env=preload"}, Preload: []string{"/a.so", "/c.so", "/d.so"},
			Mounts: slices.Concat(limitsMounts, ownPreload, commonMounts),
		}},
		{"a part by MPS", nil, ofGPU(byMPS), Adjustment{
			Env:    []Variable{visible, capabilities, preload, {MPSPipes, paths.ContainerMPS}, {MPSMemory, "0=1024M"}, {MPSPercentage, "25"}},
			Mounts: slices.Concat(limitsMounts, ownPreload, mpsMounts, commonMounts),
		}},
		{"a part by MPS, with a variable that occurs twice", []string{MPSMemory + "=0=1G", MPSMemory + "=0=2G", MPSPipes + "=/tmp"}, ofGPU(byMPS), Adjustment{
			Env:    []Variable{visible, capabilities, preload, {MPSPipes, paths.ContainerMPS}, {MPSPercentage, "25"}},
			Mounts: slices.Concat(limitsMounts, ownPreload, mpsMounts, commonMounts),
		}},
		{"a whole GPU", []string{"LD_PRELOAD=/a.so"}, ofGPU(placement.Device{MemoryBytes: 4096 * mib}), Adjustment{
			Env: []Variable{visible}, Mounts: slices.Concat(wholeMounts, commonMounts),
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := byVariable.Grant(Container{Name: "c", Env: tt.env}, withCDI, tt.given)
			if err != nil {
				t.Fatal(err)
			}
			var noted placement.Allocation
			if err := json.Unmarshal([]byte(got.Annotations[AssignmentAnnotation]), &noted); err != nil || len(got.Annotations) != 1 {
				t.Errorf("annotations %v: %v", got.Annotations, err)
			}
			if diff := cmp.Diff(tt.given.Allocation, noted); diff != "" {
				t.Errorf("its annotation (-want +got):\n%s", diff)
			}
			got.Annotations = nil
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestGrantRefuses(t *testing.T) {
	part := ofGPU(placement.Device{MemoryBytes: 1024 * mib})
	long := strings.Repeat("x", MostPreload)
	tests := []struct {
		name  string
		c     Container
		given Assignment
		want  Reason
	}{
		{"GPUs that cannot be made visible", Container{Env: []string{VisibleDevices + "=all", VisibleDevices + "=0"}}, part, ReasonInjection},
		{"a volume above our files", Container{Mounts: []Mount{{Destination: "/etc"}}}, part, ReasonMount},
		{"a volume above no files", Container{Mounts: []Mount{{Destination: "/etc"}}}, ofGPU(placement.Device{MemoryBytes: 4096 * mib}), ""},
		{"capabilities that cannot be restricted", Container{Env: []string{DriverCapabilities + "=all", DriverCapabilities + "=all"}}, part, ReasonInjection},
		{"a list of libraries that is too long", Container{Env: []string{LDPreload + "=" + long + "x"}}, part, ReasonInjection},
		{"the longest list of libraries", Container{Env: []string{LDPreload + "=" + long}}, part, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := byVariable.Grant(tt.c, withoutCDI, tt.given)
			checkRefusal(t, err, tt.want)
		})
	}
}

// TestOtherWaysToAGPUAreRefused checks that containers with and without a part of a GPU can request
// GPUs only by resource limits.
func TestOtherWaysToAGPUAreRefused(t *testing.T) {
	annotations := map[string]string{"cdi.k8s.io/x": kind + "=0"}
	tests := []struct {
		name string
		c    Container
		want Reason
	}{
		{"none", Container{Mounts: []Mount{{Destination: "/data"}}, CDIDevices: []string{"example.com/nic=0"}, Devices: []string{"/dev/null"}}, ""},
		{"a volume of NVIDIA's runtime", Container{Mounts: []Mount{{Destination: "/var/run/nvidia-container-devices/all"}}}, ReasonBypass},
		{"the pod's annotation", Container{PodAnnotations: annotations}, ReasonBypass},
		{"the container's annotation", Container{Annotations: annotations}, ReasonBypass},
		{"another annotation", Container{Annotations: map[string]string{"example.com/x": kind + "=0"}}, ""},
		{"a CDI device", Container{CDIDevices: []string{"example.com/nic=0", kind + "=0"}}, ReasonBypass},
		{"a device node", Container{Devices: []string{"/dev/null", "/dev/nvidia0"}}, ReasonBypass},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkRefusal(t, byVariable.Check(tt.c), tt.want)
			_, err := byVariable.Withhold(tt.c, withCDI)
			checkRefusal(t, err, tt.want)
		})
	}
}

// TestVolumesOverOurFilesAreRefused checks that only a container with a GPU must have no volumes at
// the paths of nri-vgpu's files.
func TestVolumesOverOurFilesAreRefused(t *testing.T) {
	for destination, want := range map[string]Reason{
		"/run/nri-vgpu": ReasonMount, "/run/nri-vgpu/limits": ReasonMount, "/var/run/nri-vgpu/": ReasonMount, "/etc/x/../ld.so.preload": ReasonMount,
		"/usr/local/nri-vgpu/lib": ReasonMount, "/run/nri-vgpu2": "", "/data": "",
	} {
		c := Container{Mounts: []Mount{{Destination: "/tmp"}, {Destination: destination}}}
		t.Run(destination, func(t *testing.T) {
			checkRefusal(t, byVariable.Check(c), want)
			_, err := byVariable.Withhold(c, withCDI)
			checkRefusal(t, err, "")
		})
	}
}

// TestWhoNeedsTheInterposer checks that only a container that owns all of its GPUs needs no
// interposer.
func TestWhoNeedsTheInterposer(t *testing.T) {
	whole := placement.Device{MemoryBytes: 4096 * mib, ComputePPM: request.Whole}
	change := func(change func(*placement.Device)) Assignment {
		d := whole
		change(&d)
		return ofGPU(d)
	}
	second := ofGPU(whole)
	second.Devices = append(second.Devices, placement.Device{UUID: gpuB, MemoryBytes: 1024 * mib})
	second.GPUs = append(second.GPUs, gpu.GPU{UUID: gpuB, MemoryBytes: 4096 * mib})
	tests := []struct {
		name  string
		given Assignment
		want  bool
	}{
		{"a whole GPU", ofGPU(whole), false},
		{"a whole GPU without a limit on time", change(func(d *placement.Device) { d.ComputePPM = 0 }), false},
		{"less memory", change(func(d *placement.Device) { d.MemoryBytes-- }), true},
		{"less time", change(func(d *placement.Device) { d.ComputePPM-- }), true},
		{"memory in common", change(func(d *placement.Device) { d.MemoryInCommon = true }), true},
		{"a whole GPU by MPS", change(func(d *placement.Device) { d.MPS = true }), true},
		{"a part of the second GPU", second, true},
		{"no GPU", Assignment{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := byVariable.Interposes(tt.given); got != tt.want {
				t.Errorf("the interposer is needed: %t, want %t", got, tt.want)
			}
			always := byVariable
			always.Injection.InterposeWholeGPUs = true
			if !always.Interposes(tt.given) {
				t.Error("the configuration does not matter")
			}
		})
	}
}
