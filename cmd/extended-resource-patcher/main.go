// SPDX-License-Identifier: Apache-2.0

// Command extended-resource-patcher advertises the capacity of the node's GPUs
// on its Node object as extended resources.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/internal/daemon"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon/endpoint"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodestatus"
)

func main() {
	os.Exit(daemon.Main(command()))
}

// flags are the values of the command-line flags.
type flags struct {
	config     string
	kubeconfig string
	nodeName   string
	report     string
	staleAfter time.Duration
	address    string
	probes     string
	// certificates is the directory of the metrics server's certificate.
	certificates string
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "extended-resource-patcher",
		Short: "Keep the node's GPU capacity on its Node object",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	set := cmd.PersistentFlags()
	set.StringVar(&f.config, "config", "", "config.toml; without it the defaults hold")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig; without it the pod's service account is used")
	set.StringVar(&f.nodeName, "node-name", os.Getenv("NODE_NAME"), "the Node to keep; $NODE_NAME by default")
	set = cmd.Flags()
	set.StringVar(&f.report, "report", "", "the agent's report; "+nodereport.FileName+" in paths.run_dir by default")
	set.DurationVar(&f.staleAfter, "stale-after", 30*time.Second, "age of the agent's heartbeat at which the resources are withdrawn")
	set.StringVar(&f.address, "http-address", ":9395", "where /metrics, /healthz and /readyz are served; empty for nowhere")
	set.StringVar(&f.probes, "probe-address", ":9397", "where /healthz and /readyz are served to kubelet; empty for nowhere")
	set.StringVar(&f.certificates, "metrics-certificate-dir", "", "tls.crt and tls.key for metrics.authentication; without it the certificate is self-signed")
	cmd.AddCommand(removeCommand(&f))
	return cmd
}

func removeCommand(f *flags) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Take off the Node all that patchers have put there; none may run beside it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := assemble(f)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return p.patcher.Remove(ctx)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to try")
	return cmd
}

// parts are the parts of the program.
type parts struct {
	patcher *nodestatus.Patcher
	reviews kubernetes.Interface // see endpoint.Options
	log     *slog.Logger
}

// assemble creates the parts that the flags describe.
func assemble(f *flags) (parts, error) {
	cfg, err := daemon.Config(f.config)
	if err != nil {
		return parts{}, err
	}
	var p parts
	if p.log, err = daemon.Logger(cfg.Log, os.Stderr); err != nil {
		return parts{}, err
	}
	api, err := daemon.APIServer(f.kubeconfig, nodestatus.FieldManager)
	if err != nil {
		return parts{}, err
	}
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return parts{}, fmt.Errorf("make a Kubernetes client: %w", err)
	}
	if p.reviews, err = endpoint.Reviews(api, cfg.Metrics); err != nil {
		return parts{}, err
	}
	if f.nodeName == "" {
		return parts{}, errors.New("no node name: set --node-name or NODE_NAME")
	}
	if f.report == "" {
		f.report = filepath.Join(cfg.Paths.RunDir, nodereport.FileName)
	}
	p.patcher, err = nodestatus.New(nodestatus.Options{
		Client: client, NodeName: f.nodeName, Config: cfg, ReportPath: f.report, StaleAfter: f.staleAfter, Log: p.log,
	})
	return p, err
}

func run(ctx context.Context, f flags) error {
	p, err := assemble(&f)
	if err != nil {
		return err
	}
	p.log.Info("starting", "version", version.Version, "node", f.nodeName, "report", f.report)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		p.patcher.Run(ctx)
		return nil
	})
	group.Go(func() error {
		return endpoint.Run(ctx, endpoint.Options{
			Address: f.address, ProbeAddress: f.probes, Probes: p.patcher.Probes(), Metrics: p.patcher.Metrics(),
			Reviews: p.reviews, CertificateDir: f.certificates, Log: p.log,
		})
	})
	return group.Wait()
}
