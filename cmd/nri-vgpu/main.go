// SPDX-License-Identifier: Apache-2.0

// Command nri-vgpu is the agent of a node. The agent allocates the node's GPUs
// to containers as an NRI plugin.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/internal/agent"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon"
	"github.com/nri-vgpu/nri-vgpu/internal/install"
)

func main() {
	os.Exit(daemon.Main(command()))
}

// run runs the agent that the flags describe.
func run(ctx context.Context, f flags) error {
	cfg, err := daemon.Config(f.config)
	if err != nil {
		return err
	}
	if f.driverRoot != "" {
		cfg.Driver.Root = f.driverRoot
	}
	log, err := daemon.Logger(cfg.Log, os.Stderr)
	if err != nil {
		return err
	}
	if f.nodeName == "" {
		return errors.New("no node name: set --node-name or NODE_NAME")
	}
	return agent.Run(ctx, agent.Options{
		Config: cfg, Node: f.nodeName, Kubeconfig: f.kubeconfig, CertificateDir: f.certificates, Log: log,
	})
}

// flags are the values of the command-line flags.
type flags struct {
	config     string
	kubeconfig string
	nodeName   string
	driverRoot string
	// certificates is the directory of the metrics server's certificate.
	certificates string
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "nri-vgpu",
		Short: "Give the node's containers their parts of its GPUs",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	cmd.PersistentFlags().StringVar(&f.config, "config", "", "config.toml; without it the defaults hold")
	set := cmd.Flags()
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig; without it the pod's service account is used")
	set.StringVar(&f.nodeName, "node-name", os.Getenv("NODE_NAME"), "the own Node; $NODE_NAME by default")
	set.StringVar(&f.driverRoot, "driver-root", "", "the driver's root file system, instead of driver.root in config.toml")
	set.StringVar(&f.certificates, "metrics-certificate-dir", "", "tls.crt and tls.key for metrics.authentication; without it the certificate is self-signed")
	cmd.AddCommand(installCommand(&f), uninstallCommand(&f))
	return cmd
}

func installCommand(f *flags) *cobra.Command {
	var source, dir, namespace string
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the libraries and vgpuctl on the host, in a directory of this version, and the guard",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := daemon.Config(f.config)
			if err != nil {
				return err
			}
			return install.Node(install.Options{
				Config: cfg, Source: source, Dir: dir, Namespace: namespace, Out: cmd.OutOrStdout(),
			})
		},
	}
	cmd.Flags().StringVar(&source, "source", "/usr/local/nri-vgpu", "where the files are, in lib and bin")
	cmd.Flags().StringVar(&dir, "dir", "", "where to install; paths.install_dir by default")
	cmd.Flags().StringVar(&namespace, "namespace", "", "the own namespace, for a guard of the previous release, which lets no agent start elsewhere")
	return cmd
}
