// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/contexts"
	"github.com/nri-vgpu/nri-vgpu/internal/driverlib"
	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// sound returns the facts of a node without problems.
func sound() Facts {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return Facts{
		Config: config.Default(),
		Now:    now,
		Runtime: Runtime{Name: "containerd", Version: "2.4.2+unknown", Settings: Settings{
			PluginPath: "/opt/nri/plugins", RequestTimeout: 2 * time.Second, RegistrationTimeout: 5 * time.Second,
			DefaultRuntime: "nvidia", CDISpecDirs: []string{"/etc/cdi", "/var/run/cdi"},
		}},
		Guard:          Guard{Installed: "1.0", Loaded: &guardfile.Status{Version: "1.0", PID: 7}},
		Agent:          Agent{Registered: true, Synced: true},
		Report:         nodereport.Report{Heartbeat: now.Add(-time.Second), AgentVersion: version.Version, GPUs: []gpu.GPU{{UUID: "GPU-a", Healthy: true}}},
		CDI:            []string{"nvidia.com/gpu=GPU-a"},
		DriverVersion:  "NVRM version: …",
		RunDirInMemory: true,
		Contexts:       Contexts{Sizes: []contexts.Size{{UUID: "GPU-a", Driver: "580.1", Bytes: 107 << 20}}},
	}
}

// byMPS changes the facts to those of a sound node that shares GPUs by MPS.
func byMPS(f *Facts) {
	f.Config.Sharing.Method = config.ShareByMPS
	f.MPS, f.Agent.MPSReady = MPS{PID: 7, Alive: true}, true
}

func TestASoundNode(t *testing.T) {
	findings := Examine(sound())
	for _, f := range findings {
		if f.Level != finding.OK || f.Fix != "" {
			t.Errorf("%+v", f)
		}
	}
	if len(findings) != 14 || !finding.Sound(findings) {
		t.Errorf("%d findings: %+v", len(findings), findings)
	}
}

func TestWhatIsWrong(t *testing.T) {
	away := errors.New("connection refused")
	tests := []struct {
		name   string
		change func(*Facts)
		check  string
		level  finding.Level
		fix    string
	}{
		{"no runtime", func(f *Facts) { f.Runtime.Name = "" }, "runtime", finding.Warning, "on the node itself"},
		{"no runtime and no socket", func(f *Facts) { f.Runtime.Name, f.Runtime.SocketErr = "", away }, "nri", finding.Problem, "on the node itself"},
		{"no runtime and no guard", func(f *Facts) { f.Runtime.Name, f.Guard.Loaded = "", nil }, "guard", finding.Problem, "restart the container runtime"},
		{"old runtime", func(f *Facts) { f.Runtime.Version = "v2.0.14" }, "runtime", finding.Warning, "update"},
		{"NRI off", func(f *Facts) { f.Runtime.Settings.NRIDisabled = true }, "nri", finding.Problem, "config.toml"},
		{"NRI off in CRI-O", func(f *Facts) { f.Runtime.Name, f.Runtime.SocketErr = "cri-o", away }, "nri", finding.Problem, "enable_nri"},
		{"no socket", func(f *Facts) { f.Runtime.SocketErr = fs.ErrNotExist }, "nri", finding.Problem, "config.toml"},
		{"settings unknown", func(f *Facts) { f.Runtime.SettingsErr = away }, "nri", finding.Warning, ""},
		{"little patience", func(f *Facts) { f.Runtime.Settings.RequestTimeout = time.Second }, "nri", finding.Problem, "plugin_request_timeout"},
		{"less patience", func(f *Facts) { f.Runtime.Settings.RequestTimeout = 1900 * time.Millisecond }, "nri", finding.Warning, "plugin_request_timeout"},
		{"plugins elsewhere", func(f *Facts) { f.Runtime.Settings.PluginPath = "/usr/libexec/nri" }, "nri", finding.Problem, "/usr/libexec/nri"},
		{"guard unwanted", func(f *Facts) { f.Config.Guard.PluginDir = "" }, "guard", finding.Warning, "guard.plugin_dir"},
		{"guard missing", func(f *Facts) { f.Guard.Installed = "" }, "guard", finding.Problem, "rollout restart"},
		{"guard not loaded", func(f *Facts) { f.Guard.Loaded = nil }, "guard", finding.Problem, "systemctl restart containerd"},
		{"guard not loaded by CRI-O", func(f *Facts) { f.Runtime.Name, f.Runtime.Version, f.Guard.Loaded = "cri-o", "1.34.0", nil }, "guard", finding.Problem, "systemctl restart crio"},
		{"old guard", func(f *Facts) { f.Guard.Loaded.Version = "0.9" }, "guard", finding.Warning, "systemctl restart containerd"},
		{"agent away", func(f *Facts) { f.Agent.Err = away }, "agent", finding.Problem, "kubectl"},
		{"agent not registered", func(f *Facts) { f.Agent.Registered = false }, "agent", finding.Problem, "kubectl"},
		{"containers without limits", func(f *Facts) { f.Agent.Unadjusted = 2 }, "agent", finding.Problem, "VGPUUnadjusted"},
		{"containers whose files were taken away", func(f *Facts) { f.Agent.Displaced = 2 }, "agent", finding.Problem, "VGPUBypassed"},
		{"pods unknown", func(f *Facts) { f.Agent.Synced = false }, "api", finding.Problem, "auth can-i"},
		{"no report", func(f *Facts) { f.ReportErr = fs.ErrNotExist }, "driver", finding.Problem, "kubectl"},
		{"old report", func(f *Facts) { f.Report.Heartbeat = f.Now.Add(-time.Minute) }, "driver", finding.Problem, "kubectl"},
		{"no driver", func(f *Facts) { f.Report.GPUs, f.DriverVersion = nil, "" }, "driver", finding.Problem, "install"},
		{"no GPU", func(f *Facts) { f.Report.GPUs = nil }, "driver", finding.Problem, "nvidia-smi"},
		{"sick GPU", func(f *Facts) { f.Report.GPUs[0].Healthy = false }, "driver", finding.Problem, "nvidia-smi -q -i GPU-a"},
		{"sick MIG device", func(f *Facts) {
			f.Report.GPUs[0] = gpu.GPU{UUID: "MIG-a", MIG: gpu.MIG{Parent: "GPU-a"}}
		}, "driver", finding.Problem, "nvidia-smi -q -i GPU-a"},
		{"a GPU without MIG devices", func(f *Facts) { f.Report.LeftOut = []gpu.GPU{{UUID: "GPU-b", Undivided: true}} }, "driver", finding.Warning, "docs/how-to/mig.md"},
		{"no GPU but one without MIG devices", func(f *Facts) {
			f.Report.GPUs, f.Report.LeftOut = nil, []gpu.GPU{{UUID: "GPU-b", Undivided: true}}
		}, "driver", finding.Warning, "docs/how-to/mig.md"},
		{"a GPU that is left out", func(f *Facts) { f.Report.LeftOut = []gpu.GPU{{UUID: "GPU-b"}} }, "driver", finding.OK, ""},
		{"a GPU that another plugin offers", func(f *Facts) { f.Report.GPUs[0].Healthy, f.Report.GPUs[0].Foreign = false, true }, "foreign", finding.Problem, "GPU-a"},
		{"names not written down", func(f *Facts) { f.NamesErr = fs.ErrNotExist }, "names", finding.Warning, "kubectl"},
		{"a driver that cannot be read", func(f *Facts) {
			f.Names.Libraries = []driverlib.Library{{Name: "libcuda.so.1", Error: "it does not export cuInit"}}
		}, "names", finding.Warning, "kubectl"},
		{"a newer driver", func(f *Facts) {
			f.Names.Libraries = []driverlib.Library{{Name: "libcuda.so.1", Unknown: []driverlib.Unknown{{Name: "cuFrob", Treatment: "refuse"}}}}
		}, "names", finding.Warning, "newer nri-vgpu"},
		{"MPS without its program", func(f *Facts) { byMPS(f); f.MPS.ProgramErr = fs.ErrNotExist }, "mps", finding.Problem, "sharing.mps.control_program"},
		{"MPS never started", func(f *Facts) { byMPS(f); f.MPS.PID = 0 }, "mps", finding.Problem, "/var/lib/nri-vgpu/mps"},
		{"MPS dead", func(f *Facts) { byMPS(f); f.MPS.Alive = false }, "mps", finding.Problem, "restarts the daemon"},
		{"MPS hangs", func(f *Facts) { byMPS(f); f.Agent.MPSReady = false }, "mps", finding.Problem, "/var/lib/nri-vgpu/mps"},
		{"MPS runs", func(f *Facts) { byMPS(f) }, "mps", finding.OK, ""},
		{"no CDI spec", func(f *Facts) { f.CDI = []string{"nvidia.com/gpu=0"} }, "cdi", finding.Warning, "--device-name-strategy=uuid"},
		{"no CDI spec, and no other way", func(f *Facts) { f.CDI, f.Config.Injection.Method = nil, config.InjectCDI }, "cdi", finding.Problem, "--device-name-strategy=uuid"},
		{"CDI specs elsewhere", func(f *Facts) { f.Runtime.Settings.CDISpecDirs = []string{"/cdi"} }, "cdi", finding.Problem, "/cdi"},
		{"runc and the variable", func(f *Facts) {
			f.Config.Injection.Method, f.Runtime.Settings.DefaultRuntime = config.InjectEnv, "runc"
		}, "injection", finding.Problem, "nvidia-ctk"},
		{"runc and no CDI spec", func(f *Facts) { f.CDI, f.Runtime.Settings.DefaultRuntime = nil, "runc" }, "injection", finding.Problem, "nvidia-ctk"},
		{"kubelet away", func(f *Facts) { f.KubeletErr = away }, "kubelet", finding.Warning, "kubelet"},
		{"run directory on a disk", func(f *Facts) { f.RunDirInMemory = false }, "state", finding.Warning, "tmpfs"},
		{"context not measured", func(f *Facts) { f.Contexts.Sizes = nil }, "contexts", finding.Warning, "memory.context_mib"},
		{"context of another GPU", func(f *Facts) { f.Contexts.Sizes[0].UUID = "GPU-b" }, "contexts", finding.Warning, "memory.context_mib"},
		{"context by the configuration", func(f *Facts) { f.Config.Memory.ContextMiB, f.Contexts.Sizes = 300, nil }, "contexts", finding.OK, ""},
		{"contexts unreadable", func(f *Facts) { f.Contexts.Err = away }, "contexts", finding.Warning, "memory.context_mib"},
		{"meters are right", func(f *Facts) { f.Agent.Meters = []Meter{{"ns/p/c", "GPU-a", 0.029}, {"ns/q/c", "GPU-a", -0.029}} }, "meter", finding.OK, ""},
		{"a meter that reports less", func(f *Facts) { f.Agent.Meters = []Meter{{"ns/p/c", "GPU-a", 0}, {"ns/q/c", "GPU-a", 0.031}} }, "meter", finding.Warning, "#vgpumeterdisagrees"},
		{"a meter that reports more", func(f *Facts) { f.Agent.Meters = []Meter{{"ns/q/c", "GPU-a", -0.031}} }, "meter", finding.Warning, "#vgpumeterdisagrees"},
		{"no list of pods", func(f *Facts) { f.StateErr = fs.ErrNotExist }, "state", finding.Problem, "kubectl"},
		{"corrupt list of pods", func(f *Facts) { f.StateErr = guardfile.ErrAsking }, "state", finding.Problem, "rollout restart"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := sound()
			tt.change(&f)
			findings := Examine(f)
			for _, result := range findings {
				if result.Check == tt.check && result.Level == tt.level && strings.Contains(result.Fix, tt.fix) {
					if finding.Sound(findings) && tt.level == finding.Problem {
						t.Error("the node is called sound")
					}
					return
				}
			}
			t.Errorf("not found: %+v", findings)
		})
	}
}

func TestContainerdsConfiguration(t *testing.T) {
	dump, err := os.ReadFile("testdata/containerd-2.4.2.toml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseContainerd(dump)
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		PluginPath: "/opt/nri/plugins", RequestTimeout: 2 * time.Second, RegistrationTimeout: 5 * time.Second,
		RequiredPlugins: []string{"nri-vgpu"}, DefaultRuntime: "nvidia", CDISpecDirs: []string{"/etc/cdi", "/var/run/cdi"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	old, err := parseContainerd([]byte("version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\n disable = true\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n default_runtime_name = \"runc\"\n"))
	if err != nil || !old.NRIDisabled || old.DefaultRuntime != "runc" {
		t.Errorf("containerd 1.7: %+v, %v", old, err)
	}
	for _, bad := range []string{"[", "[plugins.'io.containerd.nri.v1.nri']\nplugin_request_timeout = 'soon'\n", "[plugins.'io.containerd.nri.v1.nri']\ndisable = 'x'\n"} {
		if _, err := parseContainerd([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestAgentsMetrics(t *testing.T) {
	got := parseAgent([]byte("# HELP nri_vgpu_registered …\nnri_vgpu_registered 1\nnri_vgpu_pods_synced 0\nnri_vgpu_unadjusted_containers 3\nnri_vgpu_displaced_containers 4\nnri_vgpu_mps_ready 1\nnri_vgpu_container_meter_disagreement_ratio{container=\"c\",namespace=\"ns\",pod=\"p\",uuid=\"GPU-a\"} -0.25\nother{a=\"b\"} 1\n"))
	if diff := cmp.Diff(Agent{Registered: true, Unadjusted: 3, Displaced: 4, MPSReady: true, Meters: []Meter{{"ns/p/c", "GPU-a", -0.25}}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestVersionsOfRuntimes(t *testing.T) {
	for line, want := range map[string]string{
		"containerd github.com/containerd/containerd/v2 2.4.2+unknown \n": "2.4.2+unknown",
		"containerd containerd.io v2.2.1 dea7da592f5d1d2b7755e3a161be07f": "v2.2.1",
		"crio version 1.34.0\n   GitCommit: abc":                          "1.34.0",
	} {
		if got := versioned.FindString(line); got != want {
			t.Errorf("%q: got %q", line, got)
		}
	}
}
