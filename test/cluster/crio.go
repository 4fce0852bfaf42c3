// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
)

const (
	crioSocket       = "/run/crio/crio.sock"
	containerdSocket = "/run/containerd/containerd.sock"
)

// crioPrograms returns the programs of CRI-O in a directory.
func crioPrograms(dir string) (components.Binaries, error) {
	binaries := components.Binaries{}
	var missing []error
	for _, name := range []string{"crio", "pinns"} {
		binaries[name] = filepath.Join(dir, name)
		if _, err := os.Stat(binaries[name]); err != nil {
			missing = append(missing, fmt.Errorf("find a program of CRI-O: %w", err))
		}
	}
	for _, name := range []string{"conmon", "skopeo"} {
		if _, err := exec.LookPath(name); err != nil {
			missing = append(missing, fmt.Errorf("%s, which a node with CRI-O needs, is not in PATH: apt-get install %s", name, name))
		}
	}
	return binaries, errors.Join(missing...)
}

// crioConfig makes NVIDIA's runtime the default, as containerdConfig does. NRI is on by CRI-O's
// default.
func crioConfig() string {
	return strings.ReplaceAll(`[crio.runtime]
cgroup_manager = 'cgroupfs'
default_runtime = 'nvidia'
hooks_dir = []

[crio.runtime.runtimes.nvidia]
runtime_path = '/usr/local/bin/nvidia-container-runtime'
monitor_cgroup = 'pod'

[crio.runtime.runtimes.runc]
runtime_path = '/usr/local/sbin/runc'
monitor_cgroup = 'pod'

[crio.image]
pause_image = 'SANDBOX'

[crio.network]
plugin_dirs = ['/opt/cni/bin']
`, "SANDBOX", SandboxImage)
}

// These are the configurations of the library by which CRI-O and skopeo keep images. The policy
// accepts images without signatures, as the nodes have no registry.
const (
	imageStorage = `[storage]
driver = 'overlay'
graphroot = '/var/lib/containers/storage'
runroot = '/run/containers/storage'
`
	imagePolicy = `{"default": [{"type": "insecureAcceptAnything"}]}
`
)

// crioImport returns the command that imports an archive from its standard input. CRI-O only pulls
// images, so skopeo imports them.
func crioImport(archive string) ([]string, error) {
	name, err := image.Name(archive)
	if err != nil {
		return nil, err
	}
	const script = `file=$(mktemp) && trap 'rm -f "$file"' EXIT && cat >"$file" &&
skopeo copy --quiet "oci-archive:$file" "containers-storage:$1"`
	return []string{"sh", "-c", script, "skopeo", name}, nil
}
