// SPDX-License-Identifier: Apache-2.0

// Package volcano contains the tests with Volcano's own scheduler. On two real nodes with two
// simulated GPUs each, the scheduler places pods by their parts of GPUs. The tests query the
// scheduler's own code for its account of each GPU.
package volcano

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/volcano"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	gpus     = 2 // on each node
	gpuMiB   = 16 << 10
	mib      = 1 << 20
	patience = 2 * time.Minute
)

// name is the name of the cluster and its first node. Concurrent runs need different names.
var name = flag.String("volcano.name", "volcano", "name of the cluster that the tests start")

var (
	// beds are the nodes. The first node has the control plane.
	beds []*testbed.Bed
	// installed is the present configuration of Volcano.
	installed volcano.Options
)

func TestMain(m *testing.M) {
	cluster.Supervise()
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run()) // runs no test
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	code := 1
	if err := up(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "volcano:", err)
	} else {
		code = m.Run()
	}
	if err := testbed.DownNodes(beds, code != 0); err != nil {
		fmt.Fprintln(os.Stderr, "volcano: the nodes cannot be taken down:", err)
		code = 1
	}
	return code
}

// up makes the nodes and installs Volcano.
func up(ctx context.Context) error {
	source, err := testbed.SourceRoot()
	if err != nil {
		return err
	}
	log := func(format string, args ...any) { fmt.Printf("volcano: "+format+"\n", args...) }
	built, err := volcano.Build(ctx, components.Builder{Root: source, Out: os.Stdout})
	if err != nil {
		return err
	}
	options := testbed.Options{Name: *name, Source: source, GPUs: gpus, GPUMemory: gpuMiB * mib, Log: log}
	if beds, err = testbed.UpNodes(ctx, options); err != nil {
		return err
	}
	for _, bed := range beds {
		// The runtime loads the guard at its start. The guard refuses pods while the agent is down.
		if err := bed.Cluster.Restart(ctx, cluster.Containerd); err != nil {
			return err
		}
	}
	log("installing Volcano")
	installed = volcano.Options{Root: source, Built: built, Archives: filepath.Join(source, "build", "image")}
	return volcano.Install(ctx, beds[0].Cluster, installed)
}
