package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/daemon"
	"github.com/nri-vgpu/nri-vgpu/pkg/guard"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/mps"
	"github.com/nri-vgpu/nri-vgpu/pkg/query"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/release"
)

func uninstallCommand(f *flags) *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove from the node what was installed, but for what containers use that run",
		Long: `Remove from the node what was installed, but for what containers use that run.
Of these the guard keeps watch: they keep their limits, start no more, and when
the last of their pods has gone it removes what is left, and itself.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := daemon.Config(f.config)
			if err != nil {
				return err
			}
			// Links on the node, such as /var/run, are meant from its root.
			if root != "" {
				if err := errors.Join(unix.Chroot(root), os.Chdir("/")); err != nil {
					return fmt.Errorf("enter the node's root (--root): %w", err)
				}
			}
			return uninstall(cmd, cfg)
		},
	}
	cmd.Flags().StringVar(&root, "root", "", "where the node's root is; the own by default")
	cmd.AddCommand(releaseCommand(), idleCommand())
	return cmd
}

// idleCommand returns the command that keeps a pod of the DaemonSet Ready after its init
// containers have cleaned the node.
func idleCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "idle",
		Short:  "Do nothing until a signal ends it",
		Args:   cobra.NoArgs,
		Hidden: true,
		Run:    func(cmd *cobra.Command, _ []string) { <-cmd.Context().Done() },
	}
}

func uninstall(cmd *cobra.Command, cfg config.Config) error {
	admin := layout.AdminSocket(cfg.Paths.RunDir)
	if err := (query.Client{Socket: admin}).Ask(cmd.Context(), query.Ping, new(query.Pong)); !errors.Is(err, query.ErrAway) {
		return fmt.Errorf("the agent runs on this node: delete its DaemonSet first (%s answers: %w)", admin, err)
	}
	remover := guard.Remover{Proc: string(registry.HostProc)}
	if dir := cmp.Or(cfg.Guard.PluginDir, config.Default().Guard.PluginDir); cfg.Guard.PluginDir != "" || exists(filepath.Join(dir, layout.GuardProgram)) {
		remover.Program = filepath.Join(dir, layout.GuardProgram)
	}
	live, err := remover.Living(guard.SettingsFrom(cfg))
	if err != nil {
		return err
	}
	if len(live) == 0 && exists(layout.MPS(cfg.Paths.RunDir)) {
		if err := mps.Quit(cmd.Context(), cfg); err != nil {
			fmt.Fprintln(cmd.ErrOrStderr(), "an MPS control daemon could not be ended:", err)
		}
	}
	if err := hook.RemoveEnvSpec(cfg.Injection.CDIOutputDir); err != nil {
		return err
	}
	if live, err = remover.Remove(guard.SettingsFrom(cfg)); err != nil {
		return err
	}
	if len(live) > 0 {
		fmt.Fprintf(cmd.OutOrStdout(), "pods still use it, and keep it until they end: %s\n", strings.Join(live, ", "))
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func releaseCommand() *cobra.Command {
	var o release.Options
	var kubeconfig string
	cmd := &cobra.Command{
		Use:       "release [begin|await]",
		Short:     "What helm uninstall does in the cluster, before and after all nodes have run uninstall",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"begin", "await"},
		Hidden:    true,
		RunE: func(cmd *cobra.Command, args []string) error {
			clients, err := connect(kubeconfig, config.Metrics{})
			if err != nil {
				return err
			}
			o.Client, o.Out = clients.reads, cmd.OutOrStdout()
			ctx, cancel := context.WithTimeout(cmd.Context(), o.Timeout)
			defer cancel()
			if args[0] == "begin" {
				return o.Begin(ctx)
			}
			return o.Await(ctx)
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig; without it the pod's service account is used")
	cmd.Flags().StringVar(&o.Namespace, "namespace", "nri-vgpu-system", "where nri-vgpu is installed")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 5*time.Minute, "how long nodes have")
	return cmd
}
