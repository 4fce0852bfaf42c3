// SPDX-License-Identifier: Apache-2.0

// Command nri-vgpu-guard is an NRI plugin that the container runtime starts
// from its plugin directory. While the agent does not answer, nri-vgpu-guard
// refuses GPU containers.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/nri-vgpu/nri-vgpu/internal/guard"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// memoryLimit is the garbage collector's soft memory limit, in bytes. The guard needs half of the
// limit.
const memoryLimit = 16 << 20

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(version.Version)
		return
	}
	debug.SetMemoryLimit(memoryLimit)
	debug.SetGCPercent(25)
	program, err := os.Executable()
	if err == nil {
		err = run(program)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nri-vgpu-guard:", err)
		os.Exit(1)
	}
}

func run(program string) error {
	g := guard.New(program)
	go func() {
		g.AwaitRemoval(context.Background())
		os.Exit(0)
	}()
	if runtime, ok := guard.StandsIn(); ok {
		return g.StandIn(context.Background(), runtime)
	}
	// If the guard fails to start the stand-in process, the guard continues without a stand-in.
	if err := guard.StartStandIn(program); err != nil {
		fmt.Fprintln(os.Stderr, "nri-vgpu-guard:", err)
	}
	return g.Run(context.Background())
}
