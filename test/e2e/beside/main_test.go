// SPDX-License-Identifier: Apache-2.0

// Package beside tests nri-vgpu on a node beside NVIDIA's device plugin. The cluster is separate from
// the other tests' cluster, because kubelet keeps a plugin's resource for minutes after the plugin's
// end.
package beside

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

const (
	gpus      = 2
	gpuMemory = 16 << 30
	mib       = 1 << 20
	patience  = 2 * time.Minute
	// pluginImage is the image of NVIDIA's device plugin.
	pluginImage = "localhost/nvidia-device-plugin:test"
)

// name is the name of the cluster. Concurrent runs need different names.
var name = flag.String("beside.name", "beside", "name of the cluster that the tests start")

// bed is the cluster of all tests of the package.
var bed *testbed.Bed

func TestMain(m *testing.M) { testbed.Main(m, "beside", &bed, up) }

// up makes the cluster and loads the image of NVIDIA's device plugin.
func up(ctx context.Context) error {
	source, err := testbed.SourceRoot()
	if err != nil {
		return err
	}
	built, err := (&components.Builder{Root: source, Out: os.Stdout}).Build(ctx, []components.Module{components.DevicePlugin()})
	if err != nil {
		return err
	}
	files, err := image.Programs(map[string]string{"/usr/bin/" + components.DevicePluginProgram: built[components.DevicePluginProgram]})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "beside-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	archive := dir + "/plugin.tar"
	if err := image.Build(archive, image.Spec{Name: pluginImage, Files: append(image.BaseLayout(), files...), Plain: true}); err != nil {
		return err
	}
	bed, err = testbed.Up(ctx, testbed.Options{
		Name: *name, Source: source, GPUs: gpus, GPUMemory: gpuMemory,
		Log: func(format string, args ...any) { fmt.Printf("beside: "+format+"\n", args...) },
	})
	if err != nil {
		return err
	}
	return bed.Cluster.LoadImage(ctx, archive)
}
