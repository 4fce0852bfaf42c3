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
	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon"
	"github.com/nri-vgpu/nri-vgpu/internal/install"
)

func main() {
	os.Exit(daemon.Main(command()))
}

// run runs the agent that the flags describe.
func run(ctx context.Context, f flags) error {
	file, err := daemon.ConfigFile(f.config)
	if err != nil {
		return err
	}
	log, err := daemon.Logger(file.Config.Log, os.Stderr)
	if err != nil {
		return err
	}
	if f.nodeName == "" {
		return errors.New("no node name: set --node-name or NODE_NAME")
	}
	return agent.Run(ctx, agent.Options{
		File: file, DriverRoot: f.driverRoot, Node: f.nodeName, PodNamespace: f.podNamespace, PodName: f.podName,
		Kubeconfig: f.kubeconfig, CertificateDir: f.certificates, OverviewAddress: f.overview, Log: log,
	})
}

// flags are the values of the command-line flags.
type flags struct {
	config     string
	kubeconfig string
	nodeName   string
	podName    string
	// podNamespace is the namespace of the agent's pod.
	podNamespace string
	driverRoot   string
	// certificates is the directory of the metrics server's certificate.
	certificates string
	// overview is the address at which nri-vgpu-view reads the agent's data.
	overview string
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "nri-vgpu",
		Short: "Assign parts of the node's GPUs to its containers",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	cmd.PersistentFlags().StringVar(&f.config, "config", "", "path of config.toml; defaults apply without a file")
	set := cmd.Flags()
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "path of a kubeconfig; default: the pod's service account")
	set.StringVar(&f.nodeName, "node-name", os.Getenv("NODE_NAME"), "name of this node's Node object; default: $NODE_NAME")
	set.StringVar(&f.podName, "pod-name", os.Getenv("POD_NAME"), "name of the agent's pod, for scheduling.mode \"fit\"; default: $POD_NAME")
	set.StringVar(&f.podNamespace, "pod-namespace", os.Getenv("POD_NAMESPACE"), "namespace of the agent's pod; default: $POD_NAMESPACE")
	set.StringVar(&f.driverRoot, "driver-root", "", "root file system of the driver; overrides driver.root of config.toml")
	set.StringVar(&f.certificates, "metrics-certificate-dir", "", "directory of tls.crt and tls.key for metrics.authentication; default: a self-signed certificate")
	set.StringVar(&f.overview, "overview-address", "", "address that serves the node's GPUs and containers to nri-vgpu-view, over TLS and to tokens with the right to get "+agentapi.OverviewPath+"; empty: do not serve")
	cmd.AddCommand(installCommand(&f), uninstallCommand(&f))
	return cmd
}

func installCommand(f *flags) *cobra.Command {
	var source, dir, namespace string
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the guard, and the libraries and vgpuctl in a directory of this version, on the host",
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
	cmd.Flags().StringVar(&source, "source", "/usr/local/nri-vgpu", "directory whose lib and bin have the files to install")
	cmd.Flags().StringVar(&dir, "dir", "", "directory to install into; default: paths.install_dir")
	cmd.Flags().StringVar(&namespace, "namespace", "", "namespace of this pod; the guard of the previous release starts agents in this namespace only")
	return cmd
}
