// SPDX-License-Identifier: Apache-2.0

// Command image makes the OCI images of nri-vgpu and of nri-vgpu-scheduler from a
// build, without a container engine. The image of nri-vgpu contains the binaries, the interposer, and the
// part of glibc that the agent and NVML need. Equal builds result in equal
// images. Builds for several architectures result in one image with an index.
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
	flag.StringVar(&o.revision, "revision", "", "commit of the sources; no label without a commit")
	output := flag.String("output", "", "archive to write; image/nri-vgpu.tar in the build directory by default")
	var others []string
	flag.Func("and", "directory of a build for another architecture; repeat for more", func(dir string) error {
		others = append(others, dir)
		return nil
	})
	scheduler := flag.Bool("scheduler", false, "make the image of nri-vgpu-scheduler")
	flag.Parse()
	describe, name := agentSpec, version.Image(o.version)
	if *scheduler {
		describe, name = schedulerSpec, version.SchedulerImage(o.version)
	}
	if *output == "" {
		*output = filepath.Join(o.build, "image", "nri-vgpu.tar")
	}
	var err error
	if len(others) > 0 {
		err = makeIndex(describe, o, append([]string{o.build}, others...), *output)
	} else {
		err = makeImage(describe, o, *output)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %s\n", *output, name)
}
