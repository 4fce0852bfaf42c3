// Command image makes the OCI image of nri-vgpu out of a build, without a
// container engine: the binaries, the interposer, and the part of glibc that
// the agent and NVML need. The same build gives the same image.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

func main() {
	var o options
	flag.StringVar(&o.build, "build", "build", "directory of what was built: bin and lib")
	flag.StringVar(&o.source, "source", ".", "the repository's root")
	flag.StringVar(&o.version, "version", version.Version, "release; the image's tag")
	output := flag.String("output", "", "archive to write; image/nri-vgpu.tar in the build directory by default")
	flag.Parse()
	if *output == "" {
		*output = filepath.Join(o.build, "image", "nri-vgpu.tar")
	}
	if err := makeImage(o, *output); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s: %s\n", *output, version.Image(o.version))
}
