// SPDX-License-Identifier: Apache-2.0

// Package scheduling contains the tests with nri-vgpu-scheduler, installed by the chart. The
// scheduler fits pods to single GPUs on two real nodes with two simulated GPUs each.
package scheduling

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	gpus     = 2 // on each node
	gpuMiB   = 16 << 10
	mib      = 1 << 20
	patience = 2 * time.Minute
	// scheduler is the name of the scheduler, of its Deployment and of its lease.
	scheduler = "nri-vgpu-scheduler"
)

var (
	// name is the name of the cluster and its first node. Concurrent runs need different names.
	name = flag.String("scheduling.name", "scheduling", "name of the cluster that the tests start")
	// rounds is the length of the churn.
	rounds = flag.Int("scheduling.rounds", 20, "number of pods that must land where they fit, under churn")
)

// beds are the nodes. The first node has the control plane. helm is the path of the program.
var (
	beds []*testbed.Bed
	helm string
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
		fmt.Fprintln(os.Stderr, "scheduling:", err)
	} else {
		code = m.Run()
	}
	if err := testbed.DownNodes(beds, code != 0); err != nil {
		fmt.Fprintln(os.Stderr, "scheduling: the nodes cannot be taken down:", err)
		code = 1
	}
	return code
}

// up makes the nodes and installs nri-vgpu with its scheduler by the chart.
func up(ctx context.Context) error {
	source, err := testbed.SourceRoot()
	if err != nil {
		return err
	}
	helm, err = components.HelmProgram(ctx, source, os.Stdout)
	if err != nil {
		return err
	}
	options := testbed.Options{
		Name: *name, Source: source, GPUs: gpus, GPUMemory: gpuMiB * mib,
		// The chart lets the scheduler schedule groups of pods if the cluster serves PodGroups.
		APIServer: []string{"--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1beta1=true"},
		Log:       func(format string, args ...any) { fmt.Printf("scheduling: "+format+"\n", args...) },
		Install:   func(ctx context.Context, bed *testbed.Bed) error { return install(ctx, bed, source) },
	}
	beds, err = testbed.UpNodes(ctx, options)
	return err
}

func install(ctx context.Context, bed *testbed.Bed, source string) error {
	archive := filepath.Join(source, "build", "image", scheduler+".tar")
	if err := bed.Cluster.LoadImage(ctx, archive); err != nil {
		return fmt.Errorf("%w (run make scheduler)", err)
	}
	return useScheduler(ctx, bed)
}

// useScheduler installs nri-vgpu with its scheduler, or changes the mode of scheduling.
func useScheduler(ctx context.Context, bed *testbed.Bed) error {
	// Both replicas must be on this node, because only this node has the image.
	return bed.HelmInstall(ctx, helm, "--set", "config.scheduling.mode=scheduler",
		"--set-json", `config.resize.maximum=[{"namespace":"default","memory_mib":16384,"cores":100}]`,
		"--set", "scheduler.enabled=true", "--set", "scheduler.image.tag="+version.Version,
		"--set", `scheduler.nodeSelector.kubernetes\.io/hostname=`+bed.Cluster.NodeName)
}

// useFit changes the mode of scheduling to fit.
func useFit(ctx context.Context, bed *testbed.Bed) error {
	return bed.HelmInstall(ctx, helm, "--set", "config.scheduling.mode=fit")
}
