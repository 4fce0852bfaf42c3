// SPDX-License-Identifier: Apache-2.0

package components

import (
	"context"
	"fmt"
	"io"
	"time"
)

// These are versions of a node's programs, by their lines. The end-to-end matrix replaces the
// defaults, which are the newest versions, by these versions. The modules of these lines are
// tools/containerd-<line> and tools/kubernetes-<line>.
var (
	ContainerdVersions = map[string]string{"1.7": "v1.7.35", "2.0": "v2.0.14", "2.2": "v2.2.9", DefaultContainerd: "v2.4.2"}
	KubeletVersions    = map[string]string{"1.34": "v1.34.4", DefaultKubelet: KubernetesVersion}
)

// These are the lines of the default Modules.
const (
	DefaultContainerd = "2.4"
	DefaultKubelet    = "1.37"
)

// ContainerdModule returns containerd of a line other than the default.
func ContainerdModule(line string) (Module, error) {
	if _, known := ContainerdVersions[line]; !known || line == DefaultContainerd {
		return Module{}, fmt.Errorf("containerd %s has no tools module", line)
	}
	m := Module{Name: "containerd-" + line, FirstBuild: time.Minute}
	source := "github.com/containerd/containerd/v2/cmd/"
	if line == "1.7" {
		source = "github.com/containerd/containerd/cmd/"
		m.Tags = "no_btrfs"
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		m.Programs = append(m.Programs, Program{name, source + name})
	}
	return m, nil
}

// KubeletModule returns the kubelet of a line other than the default. The kubelet works with the
// default API server, because kubelets may be three lines older.
func KubeletModule(line string) (Module, error) {
	version, known := KubeletVersions[line]
	if !known || line == DefaultKubelet {
		return Module{}, fmt.Errorf("kubelet %s has no tools module", line)
	}
	return Module{
		Name:       "kubernetes-" + line,
		Programs:   []Program{{"kubelet", "k8s.io/kubernetes/cmd/kubelet"}},
		LDFlags:    kubernetesStamp(version),
		FirstBuild: 4 * time.Minute,
	}, nil
}

// NodeModules returns a node's modules, with containerd and kubelet of these lines. An empty line
// means the default.
func NodeModules(containerd, kubelet string) ([]Module, error) {
	all := Modules()
	if containerd != "" && containerd != DefaultContainerd {
		m, err := ContainerdModule(containerd)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	if kubelet != "" && kubelet != DefaultKubelet {
		m, err := KubeletModule(kubelet)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// Helm returns the program that installs the chart in tests.
func Helm() Module {
	return Module{
		Name: "helm", Programs: []Program{{"helm", "helm.sh/helm/v4/cmd/helm"}},
		LDFlags:    "-X helm.sh/helm/v4/internal/version.version=" + HelmVersion,
		FirstBuild: time.Minute,
	}
}

// HelmVersion is the version that tools/helm requires.
const HelmVersion = "v4.3.1"

// Crane returns the program that pushes the images of a release to a registry.
func Crane() Module {
	return Module{
		Name: "crane", Programs: []Program{{"crane", "github.com/google/go-containerregistry/cmd/crane"}},
		FirstBuild: 20 * time.Second,
	}
}

// HelmProgram returns the path of helm, and builds helm if needed.
func HelmProgram(ctx context.Context, root string, out io.Writer) (string, error) {
	binaries, err := (&Builder{Root: root, Out: out}).Build(ctx, []Module{Helm()})
	return binaries["helm"], err
}
