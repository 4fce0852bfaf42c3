// Package layout names the files of nri-vgpu on the host and in containers.
package layout

import (
	"path/filepath"
	"slices"
	"strings"
)

// Names of the files that are installed on the host, in a directory per
// version.
const (
	CUDALibrary = "libcuda.so.1"
	NVMLLibrary = "libnvidia-ml.so.1"
	Vgpuctl     = "vgpuctl"
	// Mgctl is vgpuctl under the name that MetaGPU's users know.
	Mgctl = "mgctl"
	// Preload lists the libraries for ld.so: it becomes a container's
	// /etc/ld.so.preload.
	Preload = "ld.so.preload"
	// StandIns is a directory with what the loaders of 32-bit programs preload in
	// the place of our libraries, and those of 64-bit programs these themselves: a
	// directory for each value of $PLATFORM.
	StandIns = "preload"
)

// Helpers are files beside the libraries that the agent and vgpuctl use: programs that
// open the driver for them, and what `vgpuctl verify` runs.
var Helpers = []string{"vgpu-constructor.so", "vgpu-context", "vgpu-devices", "vgpu-nvml", "vgpu-workload"}

// Assignment is the name, beside a container's pages, of the file that says
// what it was given.
const Assignment = "assignment.json"

// Paths in every container that has a part of a GPU.
const (
	ContainerRunDir  = "/run/nri-vgpu"
	ContainerHomeDir = "/usr/local/nri-vgpu"

	ContainerLimits = ContainerRunDir + "/limits"
	ContainerUsage  = ContainerRunDir + "/usage"
	ContainerAgent  = ContainerRunDir + "/agent"
	// ContainerMPS is the directory in which clients of the Multi-Process
	// Service find its daemon, and ContainerSHM what they share with the server.
	ContainerMPS     = ContainerRunDir + "/mps"
	ContainerSHM     = "/dev/shm"
	ContainerCUDA    = ContainerHomeDir + "/lib/" + CUDALibrary
	ContainerNVML    = ContainerHomeDir + "/lib/" + NVMLLibrary
	ContainerVgpuctl = ContainerHomeDir + "/bin/" + Vgpuctl
	ContainerMgctl   = ContainerHomeDir + "/bin/" + Mgctl
	ContainerPreload = "/etc/ld.so.preload"
	// ContainerStandIns is what the host has as StandIns.
	ContainerStandIns = ContainerHomeDir + "/" + StandIns

	// ContainerAssignment is what a container with whole GPUs alone has of
	// ours.
	ContainerAssignment = ContainerRunDir + "/" + Assignment
)

// ContainerPath is a directory that the search path of about every image has: the
// tools are there, too, if no volume is.
const ContainerPath = "/usr/bin"

// AdjustedAnnotation marks, in the spec that the runtime keeps, a container
// that the agent has looked at and given no GPU. Those that it gave one have
// our files.
const AdjustedAnnotation = "nri-vgpu.io/adjusted"

// The guard's index and name among the runtime's plugins, its program's name,
// by which the runtime starts it, and the name of its stand-in.
const (
	GuardIndex   = "99"
	GuardName    = "nri-vgpu-guard"
	GuardProgram = GuardIndex + "-" + GuardName
	StandInName  = GuardName + "-2"
)

// Preloaded are the libraries that every program of a container preloads. The
// first two are our libraries again, by other paths, or what keeps the loader of a
// 32-bit program from complaining of the two that follow. The loader expands
// $PLATFORM. Were it to a directory that is not there, the last two are loaded all
// the same.
var Preloaded = []string{
	ContainerStandIns + "/$PLATFORM/" + CUDALibrary,
	ContainerStandIns + "/$PLATFORM/" + NVMLLibrary,
	ContainerCUDA,
	ContainerNVML,
}

// PreloadContent is the content of a ld.so.preload that loads our libraries,
// and after them others.
func PreloadContent(others ...string) []byte {
	return []byte(strings.Join(slices.Concat(Preloaded, others), "\n") + "\n")
}

// Versioned is the host's directory with a version's libraries.
func Versioned(installDir, version string) string { return filepath.Join(installDir, version) }

// Variants is the host's directory of a version's libraries as they are made for
// drivers, each in a directory of its own.
func Variants(libraryDir string) string { return filepath.Join(libraryDir, "drivers") }

// DriverNames is the host's file in which the agent says what the driver exports
// that this version does not know.
func DriverNames(runDir string) string { return filepath.Join(runDir, "driver.json") }

// AskingPods is the host's file that lists the node's pods that ask for GPUs.
func AskingPods(stateDir string) string { return filepath.Join(stateDir, "pods.json") }

// Contexts is the host's file with the sizes of CUDA contexts.
func Contexts(stateDir string) string { return filepath.Join(stateDir, "contexts.json") }

// GuardStatus is the host's file in which the guard says that it runs.
func GuardStatus(runDir string) string { return filepath.Join(runDir, "guard.json") }

// GuardSettings is the host's file with what the guard has to know.
func GuardSettings(program string) string { return program + ".json" }

// Agent is the host's directory that containers have as ContainerAgent. It stays
// while agents come and go, each with a new socket in it.
func Agent(runDir string) string { return filepath.Join(runDir, "agent") }

// AgentSocket is where processes of containers register, and ask.
func AgentSocket(runDir string) string { return filepath.Join(Agent(runDir), "agent.sock") }

// AdminSocket is where the node's root asks. Containers have no way to it.
func AdminSocket(runDir string) string { return filepath.Join(runDir, "admin.sock") }

// MetricsSocket is where the node's root reads the metrics if others need a token.
func MetricsSocket(runDir string) string { return filepath.Join(runDir, "metrics.sock") }

// MPS is the host's directory of the Multi-Process Service.
func MPS(runDir string) string { return filepath.Join(runDir, "mps") }

// MPSRecord is, in the directory of the Multi-Process Service, what was written down
// of its daemon.
const MPSRecord = "daemon.json"

// MPSPipes is where its daemon is found by who may command it.
func MPSPipes(runDir string) string { return filepath.Join(MPS(runDir), "pipes") }

// MPSClients is what containers have as ContainerMPS.
func MPSClients(runDir string) string { return filepath.Join(MPS(runDir), "clients") }

// MPSSHM is what containers have as ContainerSHM.
func MPSSHM(runDir string) string { return filepath.Join(MPS(runDir), "shm") }

// MPSLogs is where its daemon writes logs.
func MPSLogs(stateDir string) string { return filepath.Join(stateDir, "mps") }

// Containers is the host's directory of the containers' files.
func Containers(runDir string) string { return filepath.Join(runDir, "containers") }

// Usage is the host's directory below which the file systems of the containers'
// usage pages are mounted.
func Usage(runDir string) string { return filepath.Join(runDir, "usage") }
