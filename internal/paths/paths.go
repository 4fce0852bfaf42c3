// SPDX-License-Identifier: Apache-2.0

// Package paths names the files of nri-vgpu on the host and in containers.
package paths

import (
	"path/filepath"
	"slices"
	"strings"
)

// These are the names of the files that are installed on the host, in a directory for each version.
const (
	CUDALibrary = "libcuda.so.1"
	NVMLLibrary = "libnvidia-ml.so.1"
	Vgpuctl     = "vgpuctl"
	// Mgctl is the name of vgpuctl for users of MetaGPU.
	Mgctl = "mgctl"
	// Preload lists the libraries for ld.so. A container has the file as /etc/ld.so.preload.
	Preload = "ld.so.preload"
	// StandIns is a directory with a subdirectory for each value of $PLATFORM. For the loaders of
	// 32-bit programs, the subdirectory contains empty libraries. For the loaders of 64-bit
	// programs, the subdirectory contains the interposer's libraries.
	StandIns = "preload"
)

// Libraries are the libraries of the interposer, which have the names of the driver's libraries.
var Libraries = []string{CUDALibrary, NVMLLibrary}

// Helpers are files in the directory of the libraries: programs that open the driver for the agent
// and vgpuctl, and the files of `vgpuctl verify`.
var Helpers = []string{"vgpu-constructor.so", "vgpu-context", "vgpu-devices", "vgpu-nvml", "vgpu-workload"}

// Assignment is the name of the file that describes a container's parts of GPUs. The file is in the
// directory of the container's pages.
const Assignment = "assignment.json"

// These are paths in every container that has a part of a GPU.
const (
	ContainerRunDir  = "/run/nri-vgpu"
	ContainerHomeDir = "/usr/local/nri-vgpu"

	ContainerLimits = ContainerRunDir + "/limits"
	ContainerUsage  = ContainerRunDir + "/usage"
	ContainerAgent  = ContainerRunDir + "/agent"
	// ContainerMPS is the directory in which clients of the Multi-Process Service find the control
	// daemon. ContainerSHM contains the memory that clients share with the server.
	ContainerMPS     = ContainerRunDir + "/mps"
	ContainerSHM     = "/dev/shm"
	ContainerCUDA    = ContainerHomeDir + "/lib/" + CUDALibrary
	ContainerNVML    = ContainerHomeDir + "/lib/" + NVMLLibrary
	ContainerVgpuctl = ContainerHomeDir + "/bin/" + Vgpuctl
	ContainerMgctl   = ContainerHomeDir + "/bin/" + Mgctl
	ContainerPreload = "/etc/ld.so.preload"
	// ContainerStandIns is the path of StandIns in containers.
	ContainerStandIns = ContainerHomeDir + "/" + StandIns

	// ContainerAssignment is the only file of nri-vgpu in a container that has only whole GPUs.
	ContainerAssignment = ContainerRunDir + "/" + Assignment
)

// ContainerPath is a directory in the search path of nearly every image. The tools are in
// ContainerPath unless a volume covers the directory.
const ContainerPath = "/usr/bin"

// AdjustedAnnotation marks a container that the agent has handled without injecting a GPU. The
// runtime keeps AdjustedAnnotation in the container's spec. A container with a GPU has files of
// nri-vgpu instead of the mark.
const AdjustedAnnotation = "nri-vgpu.io/adjusted"

const (
	// GuardIndex is the guard's index as a plugin.
	GuardIndex = "99"
	// GuardName is the guard's name as a plugin.
	GuardName = "nri-vgpu-guard"
	// GuardProgram is the file name of the guard's program.
	GuardProgram = GuardIndex + "-" + GuardName
	// StandInName is the name of the guard's stand-in as a plugin.
	StandInName = GuardName + "-2"
)

// Preloaded are the libraries that every program of a container preloads. The loader expands
// $PLATFORM. For 64-bit programs, the first two libraries are the interposer's libraries under
// other paths. For 32-bit programs, the first two libraries prevent errors of the loader about the
// last two libraries. If the loader finds no directory for $PLATFORM, it still loads the last two
// libraries.
var Preloaded = []string{
	ContainerStandIns + "/$PLATFORM/" + CUDALibrary,
	ContainerStandIns + "/$PLATFORM/" + NVMLLibrary,
	ContainerCUDA,
	ContainerNVML,
}

// PreloadContent returns the content of an ld.so.preload that loads the interposer's libraries and
// then the others.
func PreloadContent(others ...string) []byte {
	return []byte(strings.Join(slices.Concat(Preloaded, others), "\n") + "\n")
}

// Staging is the prefix of the directories in which an installation prepares a version.
const Staging = ".installing-"

// Versioned returns the host's directory with a version's libraries.
func Versioned(installDir, version string) string { return filepath.Join(installDir, version) }

// Variants returns the host's directory of the variants of a version's libraries. The directory has
// a subdirectory for each variant.
func Variants(libraryDir string) string { return filepath.Join(libraryDir, "drivers") }

// DriverNames returns the host's file in which the agent lists the driver's exports that this
// version does not know.
func DriverNames(runDir string) string { return filepath.Join(runDir, "driver.json") }

// AskingPods returns the host's file that lists the node's pods that request GPUs.
func AskingPods(stateDir string) string { return filepath.Join(stateDir, "pods.json") }

// Contexts returns the host's file with the sizes of CUDA contexts.
func Contexts(stateDir string) string { return filepath.Join(stateDir, "contexts.json") }

// GuardStatus returns the host's file with the status of the running guard.
func GuardStatus(runDir string) string { return filepath.Join(runDir, "guard.json") }

// GuardSettings returns the host's file with the guard's settings.
func GuardSettings(program string) string { return program + ".json" }

// Agent returns the host's directory that containers have as ContainerAgent. The directory survives
// restarts of the agent. Each agent creates a new socket in the directory.
func Agent(runDir string) string { return filepath.Join(runDir, "agent") }

// AgentSocket returns the socket at which processes of containers register and send queries.
func AgentSocket(runDir string) string { return filepath.Join(Agent(runDir), "agent.sock") }

// AdminSocket returns the socket for queries of the node's root. Containers cannot access the
// socket.
func AdminSocket(runDir string) string { return filepath.Join(runDir, "admin.sock") }

// MetricsSocket returns the socket at which the node's root reads metrics without a token, if the
// metrics port requires a token.
func MetricsSocket(runDir string) string { return filepath.Join(runDir, "metrics.sock") }

// MPS returns the host's directory of the Multi-Process Service.
func MPS(runDir string) string { return filepath.Join(runDir, "mps") }

// MPSRecord is the name of the record of the daemon, in the directory of the Multi-Process Service.
const MPSRecord = "daemon.json"

// MPSPipes returns the directory in which privileged clients find the daemon.
func MPSPipes(runDir string) string { return filepath.Join(MPS(runDir), "pipes") }

// MPSClients returns the directory that containers have as ContainerMPS.
func MPSClients(runDir string) string { return filepath.Join(MPS(runDir), "clients") }

// MPSSHM returns the directory that containers have as ContainerSHM.
func MPSSHM(runDir string) string { return filepath.Join(MPS(runDir), "shm") }

// MPSLogs returns the directory of the daemon's logs.
func MPSLogs(stateDir string) string { return filepath.Join(stateDir, "mps") }

// Containers returns the host's directory of the containers' files.
func Containers(runDir string) string { return filepath.Join(runDir, "containers") }

// Usage returns the host's directory under which the file systems of the containers' usage pages
// are mounted.
func Usage(runDir string) string { return filepath.Join(runDir, "usage") }
