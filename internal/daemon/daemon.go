// SPDX-License-Identifier: Apache-2.0

// Package daemon is the common part of the programs that run on every node: start and end,
// logging, and access to the API server.
package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// Main runs a command until it returns or the process receives SIGINT or SIGTERM. Main
// returns the exit status.
func Main(command *cobra.Command) int {
	command.Version, command.SilenceUsage, command.SilenceErrors = version.Version, true, true
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return execute(ctx, command, os.Stderr)
}

// execute runs a command, and returns the exit status. After an error in the command line, execute
// names the command that prints the help.
func execute(ctx context.Context, command *cobra.Command, errs io.Writer) int {
	valid := false
	command.PersistentPreRun = func(*cobra.Command, []string) { valid = true }
	called, err := command.ExecuteContextC(ctx)
	if log := current.Load(); log != nil {
		log.flush()
	}
	switch {
	case err == nil:
		return 0
	case !valid:
		// cobra's errors may have several lines.
		fmt.Fprintf(errs, "%s: %s: run '%s --help'\n", command.Name(), strings.Join(strings.Fields(err.Error()), " "), called.CommandPath())
	default:
		fmt.Fprintf(errs, "%s: %v\n", command.Name(), err)
	}
	return 1
}

// Config reads config.toml for Nodes outside the pools. Without a path Config returns the defaults.
func Config(path string) (config.Config, error) {
	f, err := ConfigFile(path)
	return f.Config, err
}

// ConfigFile reads config.toml with its pools. Without a path ConfigFile returns the defaults.
func ConfigFile(path string) (config.File, error) {
	if path == "" {
		return config.File{Config: config.Default()}, nil
	}
	return config.LoadFile(path)
}

// Logger returns a logger that writes lines to a file, usually standard error. client-go logs to
// the same file. A caller never waits for the file. Main writes the remaining lines at the end.
func Logger(cfg config.Log, file io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, fmt.Errorf("parse log.level: %w", err)
	}
	to := func(file io.Writer) *slog.Logger {
		options := &slog.HandlerOptions{Level: level}
		if cfg.Format == "json" {
			return slog.New(slog.NewJSONHandler(file, options))
		}
		return slog.New(slog.NewTextHandler(file, options))
	}
	direct := to(file)
	aside := newLines(file, func(dropped int64) {
		direct.Error("dropped log lines, because no program read the log in time", "lines", dropped)
	})
	current.Store(aside)
	log := to(aside)
	klog.SetSlogLogger(log)
	return log, nil
}

// current is the log that Main flushes.
var current atomic.Pointer[lines]

// APIServer returns the client configuration for the API server. Without a kubeconfig APIServer
// uses the pod's service account. The API server's audit log contains the program's name.
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
