// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

// DefaultName is the name of the default cluster.
const DefaultName = "nri-vgpu"

// stateRoot contains the state of all clusters.
const stateRoot = "/var/lib/nri-vgpu-clusters"

// maxStateDir keeps the paths of sockets below the state directory shorter than the kernel's limit.
const maxStateDir = 80

// Options describe a cluster. The zero value is a cluster named nri-vgpu without GPUs, built from
// the checkout in which the program runs.
type Options struct {
	// Name is the name of the cluster and of its node: lower-case letters, digits and "-".
	Name string
	// StateDir contains all files that the cluster writes. StateDir must be missing, empty, or a
	// cluster's state directory. The default is DefaultStateDir(Name).
	StateDir string
	// Root is the checkout that pins the components. The default is the checkout of the working
	// directory.
	Root string
	// Control makes the node a worker of a running cluster.
	Control *Cluster
	// Binaries are the node's programs. The default is the programs that Root pins. Up builds
	// programs that the cache lacks.
	Binaries components.Binaries
	// Downloads is the address of the Kubernetes project's programs, or "" to build Kubernetes from
	// its sources; see components.Builder.
	Downloads string
	// ContainerdLine and KubeletLine choose other versions of containerd and kubelet than the
	// newest, such as "1.7" and "1.34".
	ContainerdLine, KubeletLine string
	// CRIO is a directory with CRI-O's programs crio and pinns. CRI-O then is the node's runtime,
	// with the machine's conmon and skopeo. "" makes containerd the runtime.
	CRIO string
	// GPU equips the node with GPUs. The default is no GPU.
	GPU *GPU
	// Containerd and Kubelet are texts that Up appends to the configurations of containerd and
	// kubelet.
	Containerd, Kubelet string
	// APIServer are additional flags of the API server. Files maps paths of additional files on the
	// node to files on this machine.
	APIServer []string
	Files     map[string]string
	// Images are archives of images that Up imports before the cluster is ready.
	Images []string
	// Reuse keeps a running cluster of this name instead of replacing it.
	Reuse bool
	// KeepLogs makes Down keep the logs in the state directory.
	KeepLogs bool
	// Out receives the progress. If Out is nil, Up discards the progress.
	Out io.Writer
}

// DefaultStateDir returns the state directory of a cluster of this name.
func DefaultStateDir(name string) string { return filepath.Join(stateRoot, name) }

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// complete sets defaults and returns an error for invalid options.
func (o Options) complete() (Options, error) {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if !validName.MatchString(o.Name) {
		return o, fmt.Errorf("cluster name %q: want at most 40 lower-case letters, digits and inner \"-\"", o.Name)
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir(o.Name)
	}
	var err error
	if o.StateDir, err = filepath.Abs(o.StateDir); err != nil {
		return o, fmt.Errorf("resolve the state directory: %w", err)
	}
	if len(o.StateDir) > maxStateDir || strings.ContainsAny(o.StateDir, ",:\\ ") {
		return o, fmt.Errorf("state directory %q: want at most %d characters, none of them a comma, colon, backslash or blank",
			o.StateDir, maxStateDir)
	}
	return o, nil
}

// withRoot finds the checkout, which only the start of a cluster needs.
func (o Options) withRoot() (Options, error) {
	if o.Root != "" {
		return o, nil
	}
	wd, err := os.Getwd()
	if err != nil {
		return o, fmt.Errorf("find the checkout: %w", err)
	}
	o.Root, err = components.FindRoot(wd)
	return o, err
}
