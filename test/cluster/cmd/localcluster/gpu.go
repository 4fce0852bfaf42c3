// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

// gpuFlags select the GPUs of a new cluster's node.
type gpuFlags struct {
	kind, memory, buildDir string
	count                  int
}

func (g *gpuFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&g.kind, "gpu", "none", "the node's GPUs: none, simulated, or machine (its own NVIDIA GPUs)")
	flags.IntVar(&g.count, "gpus", 2, "number of simulated GPUs")
	flags.StringVar(&g.memory, "gpu-memory", "16GiB", "memory of each simulated GPU")
	flags.StringVar(&g.buildDir, "build-dir", "build", "directory of the built simulator")
}

func (g *gpuFlags) resolve() (*cluster.GPU, error) {
	switch g.kind {
	case "none":
		return nil, nil
	case "simulated":
		return cluster.SimulatedGPU(g.buildDir, "--gpus", strconv.Itoa(g.count), "--memory", g.memory)
	case "machine":
		return cluster.MachineGPU()
	default:
		return nil, fmt.Errorf("--gpu=%s: want none, simulated or machine", g.kind)
	}
}
