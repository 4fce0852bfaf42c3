// SPDX-License-Identifier: Apache-2.0

// Package mig tests nri-vgpu on a node with GPUs in MIG mode: pods get MIG devices, whole and in
// parts.
package mig

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	mib      = 1 << 20
	gib      = 1 << 30
	patience = 2 * time.Minute
)

// These are the entries of testdata/gpusim.conf in the simulator's list.
const (
	small  = 1 // a MIG device of GPU 0
	large  = 2 // another MIG device of GPU 0
	empty  = 3 // GPU 1, in MIG mode without MIG devices
	normal = 4 // GPU 2, not in MIG mode
)

// name is the name of the cluster. Concurrent runs need different names.
var name = flag.String("mig.name", "mig", "name of the cluster that the tests start")

// bed is the cluster of all tests of the package.
var bed *testbed.Bed

func TestMain(m *testing.M) { testbed.Main(m, "mig", &bed, up) }

func up(ctx context.Context) error {
	source, err := testbed.SourceRoot()
	if err != nil {
		return err
	}
	bed, err = testbed.Up(ctx, testbed.Options{
		Name: *name, Source: source, GPUConfig: filepath.Join(source, "test/e2e/mig/testdata/gpusim.conf"),
		Log: func(format string, args ...any) { fmt.Printf("mig: "+format+"\n", args...) },
	})
	return err
}
