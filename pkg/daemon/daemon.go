// Package daemon is what the programs that run on every node have in common:
// how they begin and end, log and reach the API server.
package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

// Main runs a command until it returns or the process is told to end, and
// gives the process's exit status.
func Main(command *cobra.Command) int {
	command.Version, command.SilenceUsage, command.SilenceErrors = version.Version, true, true
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", command.Name(), err)
		return 1
	}
	return 0
}

// Config reads config.toml. Without a path the defaults hold.
func Config(path string) (config.Config, error) {
	if path == "" {
		return config.Default(), nil
	}
	return config.Load(path)
}

// Logger logs to the standard error, what client-go has to say as well.
func Logger(cfg config.Log) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewTextHandler(os.Stderr, options)
	if cfg.Format == "json" {
		handler = slog.NewJSONHandler(os.Stderr, options)
	}
	log := slog.New(handler)
	klog.SetSlogLogger(log)
	return log, nil
}

// APIServer tells how to reach the API server: the pod's own, by its service
// account, unless a kubeconfig is named. The program's name is what the API
// server's audit log has.
func APIServer(kubeconfig, program string) (*rest.Config, error) {
	reach := rest.InClusterConfig
	if kubeconfig != "" {
		reach = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags("", kubeconfig) }
	}
	cfg, err := reach()
	if err != nil {
		return nil, fmt.Errorf("find the API server (--kubeconfig): %w", err)
	}
	cfg.UserAgent = program + "/" + version.Version
	return cfg, nil
}
