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

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// daemonSays is what the service says of itself; "" is that all is well.
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

// percent asks for a GPU's percent, too.
func (n *node) percent(pod *corev1.Pod, percent string) {
	pod.Spec.Containers[0].Resources.Limits["nri-vgpu.io/vgpu-cores"] = resource.MustParse(percent)
}

func TestClientGetsWhatMPSNeeds(t *testing.T) {
	n := newNode(t, withMPS)
	n.hook.MPS = daemonSays("")
	n.percent(n.pod("u", "main=4096"), "30")
	spec := mustCreate(t, n, "u", addMount("/tmp/nvidia-mps"), addMount("/dev/shm"))
	wantEnv(t, spec, mpsPipes, "/run/nri-vgpu/mps")
	wantEnv(t, spec, mpsPercentage, "30")
	wantEnv(t, spec, mpsMemory, "0=4096M")
	wantEnv(t, spec, visibleDevices, gpuA)
	for destination, want := range map[string]string{
		"/run/nri-vgpu/mps": layout.MPSClients(n.cfg.Paths.RunDir),
		"/dev/shm":          layout.MPSSHM(n.cfg.Paths.RunDir),
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
	n.hook.MPS = daemonSays("it is away")
	n.pod("whole", "main=16384") // GPU B, as the server has some memory of GPU A
	n.pod("none", "main")
	for _, uid := range []string{"whole", "none"} {
		spec := mustCreate(t, n, uid)
		for _, name := range []string{mpsPipes, mpsPercentage, mpsMemory} {
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
	n.hook.MPS = daemonSays("the MPS control daemon does not run (process 7 has ended)")
	n.pod("u", "main=4096")
	_, err := n.create("u")
	if err == nil || !strings.Contains(err.Error(), "process 7 has ended") {
		t.Fatalf("created without the daemon, or refused for another reason: %v", err)
	}
	if events := n.told.all(); len(events) != 1 || !strings.Contains(events[0], "VGPURefused") {
		t.Errorf("Events: %q", events)
	}
	n.hook.MPS = daemonSays("")
	mustCreate(t, n, "u")
	n.hook.MPS = daemonSays("the MPS control daemon does not run")
	if _, err := n.create("u"); err == nil {
		t.Error("a container was restarted without the daemon")
	}
}

func TestPercentage(t *testing.T) {
	tests := []struct {
		name, env, cores string
		want             string
		set              bool
	}{
		{"none asked for", "", "", "", false},
		{"as asked for", "", "25", "25", true},
		{"the user wants less", mpsPercentage + "=12.5", "25", "12.5", false},
		{"the user wants more", mpsPercentage + "=90", "25", "25", true},
		{"the user wants nonsense", mpsPercentage + "=all", "25", "25", true},
		{"the user wants none", mpsPercentage + "=0", "25", "25", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Container{Name: "c"}
			if tt.env != "" {
				c.Env = []string{tt.env}
			}
			given := Assignment{Allocation: placement.Allocation{Devices: []placement.Device{{UUID: gpuA, MPS: true}}}}
			if tt.cores != "" {
				given.Devices[0].ComputePPM = 250_000
			}
			var a Adjustment
			a.joinMPS(c, Rules{}, given)
			k := slices.IndexFunc(a.Env, func(v Variable) bool { return v.Name == mpsPercentage })
			if set := k >= 0; set != tt.set {
				t.Fatalf("the variable is set: %t, want %t", set, tt.set)
			}
			if tt.set && a.Env[k].Value != tt.want {
				t.Errorf("got %s, want %s", a.Env[k].Value, tt.want)
			}
		})
	}
}

func TestSeveralGPUsByMPS(t *testing.T) {
	devices := []placement.Device{
		{UUID: gpuA, MPS: true, MemoryBytes: 1000 * mib, ComputePPM: 500_000},
		{UUID: gpuB, MPS: true, MemoryBytes: 2000*mib + 1},
	}
	if got := memoryLimits(devices); got != "0=2001M,1=2001M" {
		t.Errorf("limits on memory: %s", got)
	}
	if got := leastPart(devices); got != 500_000 {
		t.Errorf("the part of the GPUs is %d ppm", got)
	}
}
