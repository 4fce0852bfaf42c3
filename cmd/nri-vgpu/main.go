// Command nri-vgpu is the agent of a node: it gives containers their parts of
// the node's GPUs, over NRI.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/daemon"
	"github.com/nri-vgpu/nri-vgpu/pkg/guard"
	"github.com/nri-vgpu/nri-vgpu/pkg/install"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

func main() {
	os.Exit(daemon.Main(command()))
}

// flags of the command line.
type flags struct {
	config     string
	kubeconfig string
	nodeName   string
	driverRoot string
	// certificates has the certificate of the metrics.
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
			if dir == "" {
				dir = cfg.Paths.InstallDir
			}
			target, err := install.Install(source, dir, version.Version)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), target)
			return installGuard(cmd, cfg, source, dir, namespace)
		},
	}
	cmd.Flags().StringVar(&source, "source", "/usr/local/nri-vgpu", "where the files are, in lib and bin")
	cmd.Flags().StringVar(&dir, "dir", "", "where to install; paths.install_dir by default")
	cmd.Flags().StringVar(&namespace, "namespace", "", "the own namespace, for a guard of the previous release, which lets no agent start elsewhere")
	return cmd
}

// installGuard installs the guard, or removes it where it is not wanted.
func installGuard(cmd *cobra.Command, cfg config.Config, source, dir, namespace string) error {
	if cfg.Guard.PluginDir == "" {
		return install.RemoveGuard(config.Default().Guard.PluginDir)
	}
	settings := guard.SettingsFrom(cfg)
	settings.InstallDir = dir
	if namespace != "" {
		settings.ExemptNamespaces = append(settings.ExemptNamespaces, namespace)
	}
	program, err := install.Guard(source, cfg.Guard.PluginDir, settings)
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), program)
	return nil
}
