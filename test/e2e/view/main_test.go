// SPDX-License-Identifier: Apache-2.0

// Package view tests nri-vgpu-view on a local cluster: its rights, kubectl vgpu without pods/exec,
// and the web page in Chromium.
package view

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/debian"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	gpus      = 2
	gpuMemory = 16 << 30
	patience  = 2 * time.Minute
	// browser is the program of the package of the same name.
	browser = "chromium-headless-shell"
)

// name is the name of the cluster. Concurrent runs need different names.
var name = flag.String("view.name", "view", "name of the cluster that the tests start")

// bed is the cluster of all tests of the package.
var bed *testbed.Bed

func TestMain(m *testing.M) { testbed.Main(m, "view", &bed, up) }

// up makes the cluster, and installs nri-vgpu with the view by the chart.
func up(ctx context.Context) error {
	if err := debian.Install("test/e2e/view", "a browser, some 400 MB", browser); err != nil {
		return err
	}
	source, err := testbed.SourceRoot()
	if err != nil {
		return err
	}
	helm, err := components.HelmProgram(ctx, source, os.Stdout)
	if err != nil {
		return err
	}
	bed, err = testbed.Up(ctx, testbed.Options{
		Name: *name, Source: source, GPUs: gpus, GPUMemory: gpuMemory,
		Log: func(format string, args ...any) { fmt.Printf("view: "+format+"\n", args...) },
		Install: func(ctx context.Context, bed *testbed.Bed) error {
			return bed.HelmInstall(ctx, helm, "--set", "view.enabled=true")
		},
	})
	return err
}
