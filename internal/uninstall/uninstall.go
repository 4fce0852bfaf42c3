// SPDX-License-Identifier: Apache-2.0

// Package uninstall removes nri-vgpu from a node. Package cluster handles the cluster before and
// after the removal from its nodes. Package nodefiles removes the files of a node.
package uninstall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/mps"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/internal/uninstall/nodefiles"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/cdispec"
)

// Options describes the removal from a node.
type Options struct {
	Config config.Config
	// Root is the node's root directory. An empty Root stands for the root of this process.
	Root string
	// Out receives messages about pods that keep files and about foreign files. Err receives errors
	// about processes that Node could not end.
	Out, Err io.Writer
}

// Node removes the installed files from the node, except the files that living pods use. Node
// changes this process's root to the node's root.
func Node(ctx context.Context, o Options) error {
	cfg := o.Config
	if err := enter(o.Root); err != nil {
		return err
	}
	admin := paths.AdminSocket(cfg.Paths.RunDir)
	if err := (agentapi.Client{Socket: admin}).Ask(ctx, agentapi.Ping, new(agentapi.Pong)); !errors.Is(err, agentapi.ErrAway) {
		return fmt.Errorf("the agent runs on this node: delete its DaemonSet first (%s answers: %w)", admin, err)
	}
	remover := nodefiles.Remover{Proc: string(registry.HostProc)}
	if dir := cmp.Or(cfg.Guard.PluginDir, config.Default().Guard.PluginDir); cfg.Guard.PluginDir != "" || exists(filepath.Join(dir, paths.GuardProgram)) {
		remover.Program = filepath.Join(dir, paths.GuardProgram)
	}
	live, err := remover.Living(guardfile.SettingsFrom(cfg))
	if err != nil {
		return err
	}
	if len(live) == 0 && exists(paths.MPS(cfg.Paths.RunDir)) {
		if err := mps.Quit(ctx, cfg); err != nil {
			fmt.Fprintln(o.Err, "failed to stop an MPS control daemon:", err)
		}
	}
	if err := cdispec.Remove(cfg.Injection.CDIOutputDir); err != nil {
		return err
	}
	left, err := remover.Remove(guardfile.SettingsFrom(cfg))
	if err != nil {
		return err
	}
	if len(left.Pods) > 0 {
		fmt.Fprintf(o.Out, "pods still use nri-vgpu's files, which remain until the pods end: %s\n", strings.Join(left.Pods, ", "))
	}
	if len(left.Others) > 0 {
		fmt.Fprintf(o.Out, "files that nri-vgpu did not write remain in %s\n", strings.Join(left.Others, ", "))
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// enter changes the root directory, because links on the node, such as /var/run, are relative to
// the node's root.
func enter(root string) error {
	if root == "" {
		return nil
	}
	if err := errors.Join(unix.Chroot(root), os.Chdir("/")); err != nil {
		return fmt.Errorf("enter the node's root (--root): %w", err)
	}
	return nil
}
