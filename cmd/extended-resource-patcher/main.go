// SPDX-License-Identifier: Apache-2.0

// Command extended-resource-patcher advertises the capacity of the node's GPUs
// on its Node object as extended resources.
package main

import (
	"context"
	"errors"
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
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
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
		Short: "Advertise the node's GPU capacity as extended resources of its Node",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	set := cmd.PersistentFlags()
	set.StringVar(&f.config, "config", "", "path of config.toml; defaults apply without a file")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "path of a kubeconfig; default: the pod's service account")
	set.StringVar(&f.nodeName, "node-name", os.Getenv("NODE_NAME"), "name of the Node to update; default: $NODE_NAME")
	set = cmd.Flags()
	set.StringVar(&f.report, "report", "", "path of the agent's report; default: "+nodereport.FileName+" in paths.run_dir")
	set.DurationVar(&f.staleAfter, "stale-after", 30*time.Second, "withdraw the resources when the agent's heartbeat is older than this")
	set.StringVar(&f.address, "http-address", ":9395", "address that serves /metrics, /healthz and /readyz; empty: do not serve")
	set.StringVar(&f.probes, "probe-address", ":9397", "address that serves /healthz and /readyz to kubelet; empty: do not serve")
	set.StringVar(&f.certificates, "metrics-certificate-dir", "", "directory of tls.crt and tls.key for metrics.authentication; default: a self-signed certificate")
	cmd.AddCommand(removeCommand(&f))
	return cmd
}

func removeCommand(f *flags) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Remove everything that the patcher wrote to the Node; stop the patcher first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			p, err := assemble(ctx, f)
			if err != nil {
				return err
			}
			return p.patcher.Remove(ctx)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "time after which to stop retrying")
	return cmd
}

// parts holds the patcher, the client for reviews and the log.
type parts struct {
	patcher *nodestatus.Patcher
	reviews kubernetes.Interface // see endpoint.Options
	log     *slog.Logger
}

// assemble creates the parts that the flags describe.
func assemble(ctx context.Context, f *flags) (parts, error) {
	file, err := daemon.ConfigFile(f.config)
	if err != nil {
		return parts{}, err
	}
	var p parts
	if p.log, err = daemon.Logger(file.Config.Log, os.Stderr); err != nil {
		return parts{}, err
	}
	api, err := daemon.APIServer(f.kubeconfig, nodestatus.FieldManager)
	if err != nil {
		return parts{}, err
	}
	client, err := nodestatus.NewClient(api)
	if err != nil {
		return parts{}, err
	}
	if file.Config.Metrics.Authentication == config.AuthenticateCluster {
		if p.reviews, err = endpoint.Reviews(api); err != nil {
			return parts{}, err
		}
	}
	if f.nodeName == "" {
		return parts{}, errors.New("no node name: set --node-name or NODE_NAME")
	}
	cfg, err := daemon.Pool(ctx, file, client, f.nodeName, p.log)
	if err != nil {
		return parts{}, err
	}
	if f.report == "" {
		f.report = filepath.Join(cfg.Paths.RunDir, nodereport.FileName)
	}
	p.patcher, err = nodestatus.New(nodestatus.Options{
		Client: client, NodeName: f.nodeName, Config: cfg.Config, Moved: cfg.Moved, ReportPath: f.report, StaleAfter: f.staleAfter, Log: p.log,
	})
	return p, err
}

func run(ctx context.Context, f flags) error {
	p, err := assemble(ctx, &f)
	if err != nil {
		return err
	}
	p.log.Info("starting", "version", version.Version, "node", f.nodeName, "report", f.report)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		p.patcher.Run(ctx)
		if ctx.Err() == nil {
			return daemon.ErrMoved
		}
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
