// SPDX-License-Identifier: Apache-2.0

// Command nri-vgpu-view serves the GPUs of a cluster, their containers and their use, as JSON and
// as a web page. The program changes nothing.
package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon/endpoint"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/internal/view"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// agentToken is the path at which the chart mounts the token for the agents.
const agentToken = "/var/run/secrets/nri-vgpu-agent/token" //nolint:gosec // a path, not a token

// answersShare is the number of times that the answers of all agents fit into the memory limit. The
// page, its copies for slow readers, and answers that are decoded take the rest.
const answersShare = 16

func main() {
	os.Exit(daemon.Main(command()))
}

// flags are the values of the command-line flags.
type flags struct {
	kubeconfig, namespace, agentPort, tokenFile, address, probes, certificates string
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "nri-vgpu-view",
		Short: "Serve the GPUs of a cluster, their containers and their use, as JSON and as a web page",
		Long: `Serve the GPUs of a cluster, their containers and their use, as JSON and as a web page.

Clients need a token with the right to get the nonResourceURL /view/*. Clients
connect directly, or through the API server: kubectl vgpu view.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	set := cmd.Flags()
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "path of a kubeconfig; default: the pod's service account")
	set.StringVar(&f.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "namespace of the agents; default: $POD_NAMESPACE")
	set.StringVar(&f.agentPort, "agent-port", "9398", "port of the agents' --overview-address")
	set.StringVar(&f.tokenFile, "token-file", agentToken, "file with the token for the agents, which needs the audience "+agentapi.OverviewAudience+" and the right to get "+agentapi.OverviewPath)
	set.StringVar(&f.address, "address", ":9443", "address that serves the data and the page, over TLS")
	set.StringVar(&f.probes, "probe-address", ":9397", "address that serves /healthz, /readyz and /metrics; empty: do not serve")
	set.StringVar(&f.certificates, "certificate-dir", "", "directory of tls.crt and tls.key; default: a self-signed certificate")
	return cmd
}

func run(ctx context.Context, f flags) error {
	if f.namespace == "" {
		return errors.New("no namespace of the agents: set --namespace or POD_NAMESPACE")
	}
	log, err := daemon.Logger(config.Default().Log, os.Stderr)
	if err != nil {
		return err
	}
	api, err := daemon.APIServer(f.kubeconfig, "nri-vgpu-view")
	if err != nil {
		return err
	}
	agents, err := fleet.New(api, f.namespace)
	if err != nil {
		return err
	}
	reviews, err := endpoint.Reviews(api)
	if err != nil {
		return err
	}
	v, err := view.New(view.Options{Agents: agents, Port: f.agentPort, TokenFile: f.tokenFile, MostBytes: debug.SetMemoryLimit(-1) / answersShare, Log: log})
	if err != nil {
		return err
	}
	log.Info("starting", "version", version.Version, "namespace", f.namespace)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		access := endpoint.Access{
			Reviews: reviews, Path: agentapi.ViewPath + "*",
			SharedAccount: "system:serviceaccount:" + f.namespace + ":" + fleet.Viewer,
		}
		return endpoint.ServeAuthorized(ctx, f.address, v.Handler(ctx), access, f.certificates, log)
	})
	group.Go(func() error {
		return endpoint.Run(ctx, endpoint.Options{Address: f.probes, Probes: probes(), Metrics: metrics(), Log: log})
	})
	return group.Wait()
}

// probes returns the handler of kubelet's probes. The view has no state, so the view is healthy
// while it answers.
func probes() http.Handler {
	mux := http.NewServeMux()
	for _, path := range []string{"GET /healthz", "GET /readyz"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	}
	return mux
}

func metrics() prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
