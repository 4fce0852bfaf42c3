// SPDX-License-Identifier: Apache-2.0

package components

import (
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Module is one tools module of the repository, tools/<Name>. The module's go.mod pins the
// version of a component, and Build builds the component's programs from the module.
type Module struct {
	Name     string
	Programs []Program
	CGO      bool
	Tags     string
	LDFlags  string
	// ModFile is the path of the module's go.mod, or "" for the default.
	ModFile string
	// Completed are modules that were published without some of their files. Copies with these files
	// replace the modules.
	Completed []Completion
	// Published is the version of the programs that the component's project publishes, in the layout
	// of OfficialBinaries, or "" if the project publishes none. DownloadSize describes their size.
	Published, DownloadSize string
	// FirstBuild is the build time on two cores with an empty build cache. Build prints FirstBuild
	// for the waiting user.
	FirstBuild time.Duration
}

// A Completion adds files to a module. Files maps paths in the module to paths in the tools module.
type Completion struct {
	Module, Version string
	Files           map[string]string
}

// A Program is one executable: its file name and its main package.
type Program struct{ Name, Package string }

// KubernetesVersion is the version that the Kubernetes components report. The tools module must
// require the same version, which a test checks. The API server and kubectl accept the kubelet
// according to its version, so the build must stamp the version.
const KubernetesVersion = "v1.37.1"

const k8sVersionPackage = "k8s.io/component-base/version"

// kubernetesStamp returns linker flags that set the version that the programs report.
func kubernetesStamp(version string) string {
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	return "-X " + k8sVersionPackage + ".gitVersion=" + version +
		" -X " + k8sVersionPackage + ".gitMajor=" + major +
		" -X " + k8sVersionPackage + ".gitMinor=" + minor +
		" -X " + k8sVersionPackage + ".gitTreeState=clean"
}

// Modules returns all components of a node, in the order of their builds.
func Modules() []Module {
	return []Module{
		{
			Name: "kubernetes",
			Programs: []Program{
				{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
				{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
				{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
				{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
				{"kubelet", "k8s.io/kubernetes/cmd/kubelet"},
			},
			LDFlags:      kubernetesStamp(KubernetesVersion),
			Published:    KubernetesVersion,
			DownloadSize: "some 400 MB: half a minute at 100 Mbit/s",
			FirstBuild:   5 * time.Minute,
		},
		{
			Name: "containerd",
			Programs: []Program{
				{"containerd", "github.com/containerd/containerd/v2/cmd/containerd"},
				{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
				{"ctr", "github.com/containerd/containerd/v2/cmd/ctr"},
			},
			FirstBuild: time.Minute,
		},
		runcModule(hasLibseccomp(), !hasLibseccomp() || !MayLowerOOMScore()),
		{
			Name:       "etcd",
			Programs:   []Program{{"etcd", "go.etcd.io/etcd/server/v3"}},
			FirstBuild: 40 * time.Second,
		},
		{
			Name: "cni",
			Programs: []Program{
				{"bridge", "github.com/containernetworking/plugins/plugins/main/bridge"},
				{"host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local"},
				{"loopback", "github.com/containernetworking/plugins/plugins/main/loopback"},
			},
			FirstBuild: 20 * time.Second,
		},
		{
			Name: "nvidia-container-toolkit",
			Programs: []Program{
				{"nvidia-container-runtime", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-container-runtime"},
				{"nvidia-cdi-hook", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook"},
				{"nvidia-ctk", "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk"},
			},
			CGO:        true,
			FirstBuild: 30 * time.Second,
		},
	}
}

// Volcano returns Volcano's scheduler and controllers, and the ledgers, which a test may run on a
// cluster beside a node's components. The ledger programs let tests call the code of this scheduler
// and of its successor.
func Volcano() []Module {
	const ledger = "github.com/nri-vgpu/nri-vgpu/tools/volcano/ledger"
	const scheduler = "volcano.sh/volcano/cmd/scheduler"
	return []Module{
		{
			Name: "volcano",
			Programs: []Program{
				{VolcanoScheduler, scheduler},
				{"controller-manager", "volcano.sh/volcano/cmd/controller-manager"},
				{VolcanoLedger, ledger},
			},
			FirstBuild: 3 * time.Minute,
		},
		{
			Name:       "volcano",
			ModFile:    "next.mod",
			Programs:   []Program{{VolcanoLedgerNext, ledger}},
			FirstBuild: time.Minute,
		},
		{
			Name:     "volcano",
			ModFile:  "next.mod",
			Programs: []Program{{VolcanoSchedulerNext, scheduler}},
			Completed: []Completion{{
				Module: "volcano.sh/apis", Version: "v1.14.0",
				Files: map[string]string{"pkg/apis/scheduling/v1beta1/next.go": "next.go.txt"},
			}},
			FirstBuild: 2 * time.Minute,
		},
	}
}

// DevicePlugin returns NVIDIA's device plugin, beside which a test runs nri-vgpu.
func DevicePlugin() Module {
	return Module{
		Name:       "nvidia-device-plugin",
		Programs:   []Program{{DevicePluginProgram, "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"}},
		CGO:        true,
		FirstBuild: time.Minute,
	}
}

// DevicePluginProgram is the program of DevicePlugin.
const DevicePluginProgram = "nvidia-device-plugin"

// Kwok returns the program that simulates nodes without kubelets.
func Kwok() Module {
	return Module{Name: "kwok", Programs: []Program{{"kwok", "sigs.k8s.io/kwok/cmd/kwok"}}, FirstBuild: 2 * time.Minute}
}

// These are programs of Volcano 1.14.1, and of Volcano 1.15.1, which detects dead nodes in another
// way. See tools/volcano for the ledgers.
const (
	VolcanoScheduler     = "scheduler"
	VolcanoSchedulerNext = "scheduler-next"
	VolcanoLedger        = "ledger"
	VolcanoLedgerNext    = "ledger-next"
)

// ReducedRunc is the program by which Kubernetes' pods run on a machine that lacks libseccomp,
// CAP_SYS_RESOURCE or cgroups for huge pages (tools/runc).
const ReducedRunc = "reduced-runc"

// runcModule returns runc. If libseccomp can be linked, runc has system call filters, as on any
// node. reduced adds ReducedRunc.
func runcModule(seccomp, reduced bool) Module {
	m := Module{
		Name:     "runc",
		Programs: []Program{{"runc", "github.com/opencontainers/runc"}},
		// runc enters namespaces in C before the Go runtime starts.
		CGO:        true,
		FirstBuild: 20 * time.Second,
	}
	if seccomp {
		m.Tags = "seccomp"
	}
	if reduced {
		m.Programs = append(m.Programs,
			Program{ReducedRunc, "github.com/nri-vgpu/nri-vgpu/tools/runc/reduced-runc"})
	}
	return m
}

// hasLibseccomp reports whether this machine can link a program with libseccomp.
func hasLibseccomp() bool {
	return exec.Command("pkg-config", "--exists", "libseccomp").Run() == nil
}

// MayLowerOOMScore reports whether a process on this machine can lower its oom_score_adj, for which
// the kernel requires CAP_SYS_RESOURCE.
func MayLowerOOMScore() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	err := unix.Capget(&header, &sets[0])
	return err == nil && sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
