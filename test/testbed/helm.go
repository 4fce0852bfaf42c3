// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// HelmInstall installs nri-vgpu by its chart, or changes the installation. HelmInstall waits until the
// Node offers its GPUs. helm is the path of the program.
func (b *Bed) HelmInstall(ctx context.Context, helm string, args ...string) error {
	home, err := os.MkdirTemp("", "helm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	cmd := exec.CommandContext(ctx, helm, append([]string{
		"upgrade", "--install", "nri-vgpu", filepath.Join(b.options.Source, "deploy", "chart"),
		"--namespace", Namespace, "--create-namespace", "--wait", "--timeout", "5m", "--set", "image.tag=" + version.Version,
	}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+b.Cluster.Kubeconfig(), "HELM_CACHE_HOME="+home,
		"HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "NO_PROXY=*", "no_proxy=*")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("helm install: %w: %s", err, bytes.TrimSpace(out))
	}
	return b.WaitAdvertised(ctx)
}
