// SPDX-License-Identifier: Apache-2.0

// Command image makes the OCI images of nri-vgpu and of nri-vgpu-scheduler from a
// build, without a container engine. The image of nri-vgpu contains the binaries, the interposer, and the
// part of glibc that the agent and NVML need. Equal builds result in equal
// images.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

func main() {
	var o options
	flag.StringVar(&o.build, "build", "build", "directory of the build, with bin and lib")
	flag.StringVar(&o.source, "source", ".", "the repository's root")
	flag.StringVar(&o.version, "version", version.Version, "release; the image's tag")
	output := flag.String("output", "", "archive to write; image/nri-vgpu.tar in the build directory by default")
	scheduler := flag.Bool("scheduler", false, "make the image of nri-vgpu-scheduler")
	flag.Parse()
	write, name := makeImage, version.Image(o.version)
	if *scheduler {
		write, name = makeScheduler, version.SchedulerImage(o.version)
	}
	if *output == "" {
		*output = filepath.Join(o.build, "image", "nri-vgpu.tar")
	}
	if err := write(o, *output); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %s\n", *output, name)
}
