// Command extended-resource-patcher keeps the capacity of the node's GPUs on
// its Node object as extended resources.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodestatus"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "extended-resource-patcher:", err)
		os.Exit(1)
	}
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
		Use:           "extended-resource-patcher",
		Short:         "Keep the node's GPU capacity on its Node object",
		Version:       version.Version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	set := cmd.Flags()
	set.StringVar(&f.config, "config", "", "config.toml; without it the defaults hold")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig; without it the pod's service account is used")
	set.StringVar(&f.nodeName, "node-name", os.Getenv("NODE_NAME"), "the Node to keep; $NODE_NAME by default")
	set.StringVar(&f.report, "report", "", "the agent's report; "+nodereport.FileName+" in paths.run_dir by default")
	set.DurationVar(&f.staleAfter, "stale-after", 30*time.Second, "age of the agent's heartbeat at which the resources are withdrawn")
	set.StringVar(&f.address, "http-address", ":9395", "where /healthz, /readyz and /metrics are served; empty for nowhere")
	return cmd
}

func run(ctx context.Context, f flags) error {
	cfg, err := loadConfig(f.config)
	if err != nil {
		return err
	}
	log, err := logger(cfg.Log)
	if err != nil {
		return err
	}
	klog.SetSlogLogger(log) // what client-go has to say
	client, err := connect(f.kubeconfig)
	if err != nil {
		return err
	}
	if f.nodeName == "" {
		return errors.New("no node name: set --node-name or NODE_NAME")
	}
	if f.report == "" {
		f.report = filepath.Join(cfg.Paths.RunDir, nodereport.FileName)
	}
	patcher, err := nodestatus.New(nodestatus.Options{
		Client: client, NodeName: f.nodeName, Config: cfg, ReportPath: f.report, StaleAfter: f.staleAfter, Log: log,
	})
	if err != nil {
		return err
	}
	log.Info("starting", "version", version.Version, "node", f.nodeName, "report", f.report)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		patcher.Run(ctx)
		return nil
	})
	if f.address != "" {
		group.Go(func() error { return serve(ctx, f.address, patcher.Handler()) })
	}
	return group.Wait()
}

func loadConfig(path string) (config.Config, error) {
	if path == "" {
		return config.Default(), nil
	}
	return config.Load(path)
}

func logger(cfg config.Log) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	options := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
}

func connect(kubeconfig string) (kubernetes.Interface, error) {
	cfg, err := apiServer(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server (--kubeconfig): %w", err)
	}
	cfg.UserAgent = nodestatus.FieldManager + "/" + version.Version
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a Kubernetes client: %w", err)
	}
	return client, nil
}

// apiServer is the pod's own cluster unless a kubeconfig is named.
func apiServer(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// serve serves until ctx ends.
func serve(ctx context.Context, address string, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}
