// SPDX-License-Identifier: Apache-2.0

// Command nri-vgpu-guard is an NRI plugin that the container runtime starts
// from its plugin directory. While the agent does not answer, nri-vgpu-guard
// refuses GPU containers.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/nri-vgpu/nri-vgpu/internal/guard"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// memoryLimit is the garbage collector's soft memory limit, in bytes. The guard needs half of the
// limit.
const memoryLimit = 16 << 20

const usage = `The container runtime starts nri-vgpu-guard from its directory of NRI plugins, without
arguments. While the agent does not answer, nri-vgpu-guard refuses containers that request
GPUs, and hides GPUs from all other containers. "nri-vgpu install" installs the program.

  --help     print this text
  --version  print the version
`

func main() {
	answered, err := answer(os.Args[1:], os.Stdout)
	if err == nil && !answered {
		err = guardNode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nri-vgpu-guard:", err)
		os.Exit(1)
	}
}

// answer answers the arguments of a person, and reports whether it did. The runtime passes no
// arguments.
func answer(args []string, out io.Writer) (bool, error) {
	if len(args) == 0 {
		return false, nil
	}
	switch args[0] {
	case "--version":
		_, err := fmt.Fprintln(out, version.Version)
		return true, err
	case "--help", "-h", "help":
		_, err := fmt.Fprint(out, usage)
		return true, err
	}
	return true, fmt.Errorf("the argument %q is unknown; allowed: --help, --version", args[0])
}

// guardNode runs the guard until the runtime ends it.
func guardNode() error {
	debug.SetMemoryLimit(memoryLimit)
	debug.SetGCPercent(25)
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return run(program)
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
