// Command extended-resource-patcher keeps the capacity of the node's GPUs on
// its Node object as extended resources.
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

	"github.com/nri-vgpu/nri-vgpu/pkg/daemon"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodestatus"
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
	report     string
	staleAfter time.Duration
	address    string
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
	set.StringVar(&f.address, "http-address", ":9395", "where /healthz, /readyz and /metrics are served; empty for nowhere")
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
			patcher, _, err := assemble(f)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			return patcher.Remove(ctx)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to try")
	return cmd
}

// assemble makes the patcher that the flags describe.
func assemble(f *flags) (*nodestatus.Patcher, *slog.Logger, error) {
	cfg, err := daemon.Config(f.config)
	if err != nil {
		return nil, nil, err
	}
	log, err := daemon.Logger(cfg.Log)
	if err != nil {
		return nil, nil, err
	}
	client, err := connect(f.kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	if f.nodeName == "" {
		return nil, nil, errors.New("no node name: set --node-name or NODE_NAME")
	}
	if f.report == "" {
		f.report = filepath.Join(cfg.Paths.RunDir, nodereport.FileName)
	}
	patcher, err := nodestatus.New(nodestatus.Options{
		Client: client, NodeName: f.nodeName, Config: cfg, ReportPath: f.report, StaleAfter: f.staleAfter, Log: log,
	})
	return patcher, log, err
}

func run(ctx context.Context, f flags) error {
	patcher, log, err := assemble(&f)
	if err != nil {
		return err
	}
	log.Info("starting", "version", version.Version, "node", f.nodeName, "report", f.report)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		patcher.Run(ctx)
		return nil
	})
	group.Go(func() error { return daemon.Serve(ctx, f.address, patcher.Handler()) })
	return group.Wait()
}

func connect(kubeconfig string) (kubernetes.Interface, error) {
	cfg, err := daemon.APIServer(kubeconfig, nodestatus.FieldManager)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a Kubernetes client: %w", err)
	}
	return client, nil
}
