// Command nri-vgpu-guard is started by the container runtime itself, from its
// directory of NRI plugins: it keeps GPUs from containers that the agent did
// not answer for.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/nri-vgpu/nri-vgpu/pkg/guard"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

// memoryLimit is what the collector holds the program to, in bytes; it needs
// half of it.
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
	// A guard without a stand-in is better than none.
	if err := guard.StartStandIn(program); err != nil {
		fmt.Fprintln(os.Stderr, "nri-vgpu-guard:", err)
	}
	return g.Run(context.Background())
}
