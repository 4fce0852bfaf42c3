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
	// bootGrace is how long a guard waits for kubelet to restart pods while kubelet has no pod
	// directories.
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
			// A failed removal is retried.
			_, _ = nodefiles.Remover{Proc: g.proc, Program: g.program}.Remove(r.Settings)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// removed reports whether both program and settings are gone: an upgrade replaces each of them
// atomically.
func (g *Guard) removed() bool {
	for _, path := range []string{g.program, paths.GuardSettings(g.program)} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}
