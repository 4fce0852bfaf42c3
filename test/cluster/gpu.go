// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
)

// GPU describes the GPUs of a node.
type GPU struct {
	// Files maps paths on the node to files on this machine, which Up installs on the node.
	Files map[string]string
	// Setup are commands that run on the node before its components.
	Setup [][]string
}

// These are the directories of the driver's libraries and of the simulated devices on the node.
const (
	driverDir = "/usr/lib/x86_64-linux-gnu"
	deviceDir = "/dev/gpusim"
	// mpsProgram is the control program of the Multi-Process Service.
	mpsProgram = "/usr/bin/nvidia-cuda-mps-control"
	cdiSpec    = "/etc/cdi/nvidia.yaml"
)

// SimulatedGPU equips a node with simulated GPUs. The node gets the driver's libraries and tool
// from buildDir, the machine-wide state, and the CDI specification by which containers get GPUs.
// createArgs are arguments of "gpusim create", such as --gpus 2 --memory 16GiB.
func SimulatedGPU(buildDir string, createArgs ...string) (*GPU, error) {
	files := map[string]string{}
	for target, name := range map[string]string{
		driverDir + "/libcuda.so.1":      "libcuda.so.1",
		driverDir + "/libnvidia-ml.so.1": "libnvidia-ml.so.1",
		"/usr/local/bin/gpusim":          "gpusim",
		mpsProgram:                       filepath.Base(mpsProgram),
	} {
		source := filepath.Join(buildDir, "gpusim", name)
		if _, err := os.Stat(source); err != nil {
			return nil, fmt.Errorf("the simulated GPU is not built (run make build): %w", err)
		}
		files[target] = source
	}
	create := append([]string{"gpusim", "create"}, createArgs...)
	writeCDI := fmt.Sprintf("gpusim cdi --driver-dir %s --device-dir %s > %s", driverDir, deviceDir, cdiSpec)
	return &GPU{
		Files: files,
		Setup: [][]string{
			append(create, deviceDir),
			{"sh", "-c", writeCDI},
		},
	}, nil
}

// ConfiguredGPU is like SimulatedGPU, with the path of gpusim's configuration.
func ConfiguredGPU(buildDir, config string) (*GPU, error) {
	const onNode = "/etc/gpusim.conf"
	gpu, err := SimulatedGPU(buildDir, "--config", onNode)
	if err == nil {
		gpu.Files[onNode] = config
	}
	return gpu, err
}

// MachineGPU returns the machine's own NVIDIA GPUs. The node already sees the GPUs' device nodes
// and the driver's libraries. MachineGPU adds the CDI specification.
func MachineGPU() (*GPU, error) {
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		return nil, fmt.Errorf("this machine has no NVIDIA driver: %w", err)
	}
	return &GPU{Setup: [][]string{{"nvidia-ctk", "cdi", "generate", "--output", cdiSpec}}}, nil
}
