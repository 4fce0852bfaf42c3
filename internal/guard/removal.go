// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/uninstall/nodefiles"
)

const (
	// retireInterval is the greatest delay with which the guard detects the end of the last pod.
	retireInterval = 5 * time.Second
	// bootGrace is the time that the guard allows kubelet to restart pods. The guard waits only
	// while kubelet has no pod directories.
	bootGrace = 10 * time.Minute
)

// AwaitRemoval returns once nri-vgpu has been removed from the node. AwaitRemoval completes a
// removal that pods delayed.
func (g *Guard) AwaitRemoval(ctx context.Context) {
	started := time.Now()
	ticker := time.NewTicker(retireInterval)
	defer ticker.Stop()
	for !g.removed() {
		r, installed := g.rules()
		_, err := os.Stat(nodefiles.KubeletPods)
		if installed && len(r.Retiring) > 0 && (err == nil || time.Since(started) > bootGrace) {
			// The next tick retries a failed removal.
			_, _ = nodefiles.Remover{Proc: g.proc, Program: g.program}.Remove(r.Settings)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// removed reports whether both the program and the settings are missing. An upgrade replaces each
// file atomically, so neither file is missing during an upgrade.
func (g *Guard) removed() bool {
	for _, path := range []string{g.program, paths.GuardSettings(g.program)} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}
