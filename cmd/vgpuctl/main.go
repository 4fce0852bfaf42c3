// SPDX-License-Identifier: Apache-2.0

// Command vgpuctl runs programs under GPU limits without Kubernetes, and shows limits and
// usage.
package main

import (
	"os"

	"github.com/nri-vgpu/nri-vgpu/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args))
}
