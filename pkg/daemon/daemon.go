// Package daemon is what the programs that run on every node have in common:
// how they begin and end, log, reach the API server and answer over HTTP.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

// patience is how long a client of the HTTP endpoint may take.
type patience struct {
	header time.Duration // to say what it wants
	read   time.Duration // …and all of the request
	write  time.Duration // to take the answer, from the request's header on
	idle   time.Duration // until it asks again
}

// A scrape takes some milliseconds, and every client is one on the cluster's network.
var usual = patience{header: 5 * time.Second, read: 10 * time.Second, write: 15 * time.Second, idle: time.Minute}

// MostScrapes is how many scrapes of a program's metrics are answered at a time: each costs a
// look at all containers of a node. Those beyond get 503.
const MostScrapes = 4

// mostHeaderBytes is more than Prometheus and kubelet send.
const mostHeaderBytes = 8 << 10

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

// Serve answers at an address until ctx ends; an empty address is nowhere. Clients that are
// slow to ask, to read or to ask again are disconnected.
func Serve(ctx context.Context, address string, handler http.Handler) error {
	if address == "" {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return serve(ctx, listener, handler, usual)
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler, p patience) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: p.header,
		ReadTimeout:       p.read,
		WriteTimeout:      p.write,
		IdleTimeout:       p.idle,
		MaxHeaderBytes:    mostHeaderBytes,
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}
