// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// Quit ends the node's control daemon, which must have no clients. Quit does not change the compute
// modes.
func Quit(ctx context.Context, cfg config.Config) error {
	dirs := DirsOf(cfg.Paths)
	s := &Supervisor{Options: Options{Config: cfg.Sharing, Dirs: dirs, Host: Node{Config: cfg.Sharing.MPS, Dirs: dirs}}}
	if _, err := s.control(ctx, "quit"); err != nil {
		return err
	}
	return onNode(func() error {
		if err := unix.Unmount(dirs.SHM, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount the shared memory of MPS: %w", err)
		}
		return nil
	})
}
