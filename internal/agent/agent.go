// SPDX-License-Identifier: Apache-2.0

// Package agent assembles the agent from its parts and runs it.
package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/announce"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/answer"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/detect"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/evict"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/foreign"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/heartbeat"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/resize"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/selfcheck"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/usage"
	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/contexts"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon/endpoint"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/lender"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/mps"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/pinned"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/cdispec"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/store"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// firstLook bounds the wait for the driver before the plugin registers. The runtime creates
// containers without the plugin until the plugin has registered.
const firstLook = 3 * time.Second

// Options configures an agent.
type Options struct {
	File config.File
	// DriverRoot, if set, overrides driver.root of the configuration.
	DriverRoot string
	// Node is the name of the agent's node.
	Node string
	// PodNamespace and PodName name the agent's pod, for the mode fit.
	PodNamespace, PodName string
	// Kubeconfig is the path of a kubeconfig, or empty for the pod's service account.
	Kubeconfig string
	// CertificateDir contains the certificate of the metrics, or is empty.
	CertificateDir string
	// OverviewAddress is the address at which nri-vgpu-view reads the agent's data, or empty.
	OverviewAddress string
	Log             *slog.Logger
}

// Run runs the agent until ctx ends.
func Run(ctx context.Context, o Options) error {
	clients, err := connect(o.Kubeconfig)
	if err != nil {
		return err
	}
	o.Log.Info("starting", "version", version.Version, "node", o.Node)
	pooled, err := daemon.Pool(ctx, o.File, clients.reads, o.Node, o.Log)
	if err != nil {
		return err
	}
	if o.DriverRoot != "" {
		pooled.Driver.Root = o.DriverRoot
	}
	parts, err := assemble(ctx, o, pooled, clients)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return parts.stays(ctx) })
	for _, part := range []func(context.Context){
		parts.watch, parts.node.Run, parts.foreign.Run, parts.events.Run, parts.evictor.Run, parts.pods.Run, parts.heartbeat.Run, parts.hook.Run, parts.hook.KeepAsking, parts.hook.Serve, parts.lender.Run,
		parts.registry.Run, parts.admin.Run, parts.detector.Run, parts.mps.Run, parts.volcano.Run, parts.announcer.Run, parts.resizer.Run, parts.contexts.Run, parts.checker.Run, parts.pinned.Run,
	} {
		group.Go(func() error {
			part(ctx)
			return nil
		})
	}
	group.Go(func() error {
		return endpoint.Run(ctx, parts.endpoint(pooled.Config, o.CertificateDir, clients, o.Log))
	})
	if o.OverviewAddress != "" {
		group.Go(func() error {
			access := endpoint.Access{Reviews: clients.reviews, Audience: agentapi.OverviewAudience}
			return endpoint.ServeAuthorized(ctx, o.OverviewAddress, parts.overview(ctx, o.Log), access, "", o.Log)
		})
	}
	err = group.Wait()
	o.Log.Info("stopped; running containers keep their limits")
	return err
}

// parts are the agent's components.
type parts struct {
	watch     func(context.Context)
	node      *ownnode.Cache
	moved     loop.Wakeup // the Node's labels select another pool
	foreign   *foreign.Watcher
	events    *events.Recorder
	evictor   *evict.Evictor
	pods      *pods.Cache
	ledger    *placement.Ledger
	files     *store.Store
	hook      *hook.Hook
	heartbeat *heartbeat.Heartbeat
	lender    *lender.Lender
	checker   *selfcheck.Checker
	registry  *registry.Server
	admin     *registry.Admin
	detector  *detect.Detector
	mps       *mps.Supervisor
	volcano   *answer.Answerer
	announcer *announce.Announcer
	resizer   *resize.Resizer
	usage     *usage.Collector
	contexts  *contexts.Sizes
	pinned    *pinned.Files   // the libraries, which containers mount
	child     *contexts.Child // creates contexts to measure them
	metrics   *prometheus.Registry
}

// endpoint returns the options of the agent's HTTP servers.
func (p *parts) endpoint(cfg config.Config, certificates string, clients clients, log *slog.Logger) endpoint.Options {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", p.heartbeat.Healthz)
	mux.HandleFunc("GET /readyz", p.heartbeat.Readyz)
	options := endpoint.Options{
		Address: cfg.HTTP.Address, ProbeAddress: cfg.HTTP.ProbeAddress, Probes: mux, Metrics: p.metrics,
		Socket: paths.MetricsSocket(cfg.Paths.RunDir), CertificateDir: certificates, Log: log,
	}
	if cfg.Metrics.Authentication == config.AuthenticateCluster {
		options.Reviews = clients.reviews
	}
	return options
}

// overviewPatience bounds the wait for the driver. nri-vgpu-view waits 2 s for the agent.
const overviewPatience = time.Second

// overview returns the handler that serves the agent's data to nri-vgpu-view.
func (p *parts) overview(ctx context.Context, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+agentapi.OverviewPath, endpoint.Pages("application/json", func() []byte {
		ctx, cancel := context.WithTimeout(ctx, overviewPatience)
		defer cancel()
		text, err := json.Marshal(p.usage.Overview(ctx))
		if err != nil {
			log.Error("failed to encode the overview", "error", err)
		}
		return text
	}))
	return mux
}

// stays waits until ctx ends, or until the Node has moved to another pool.
func (p *parts) stays(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.moved:
		return daemon.ErrMoved
	}
}

func assemble(ctx context.Context, o Options, pooled daemon.Pooled, clients clients) (*parts, error) {
	cfg, node, log := pooled.Config, o.Node, o.Log
	p := parts{metrics: prometheus.NewRegistry(), moved: loop.NewWakeup()}
	p.events = events.New(events.Options{Client: clients.writes, Node: node, Log: log})
	driver := nvml.Options{Root: cfg.Driver.Root, Library: cfg.Driver.NVMLLibrary}
	inventory := gpu.NewInventory(nvml.New(driver), gpu.DefaultTimeout)
	p.watch = func(ctx context.Context) {
		inventory.Watch(ctx, nvml.NewEvents(driver), gpu.WatchOptions{
			Ignored: cfg.Health.IgnoredXIDs, Changed: func() { p.heartbeat.Poke() }, Log: log,
		})
	}
	var err error
	if p.node, p.foreign, err = newForeign(pooled, node, clients.reads, &p, log); err != nil {
		return nil, err
	}
	inventory.Select(gpu.Selection{
		Offers:  func(g gpu.GPU) bool { return cfg.Node.GPUs.Has(g.Index, g.Name, g.UUID, g.Card()) },
		Claimed: p.foreign.Claimed,
	})
	p.foreign.Look(ctx)
	gpus := look(ctx, inventory, log)
	if err := cdispec.Write(cfg.Injection.CDIOutputDir, gpus, cfg.Injection.DriverCapabilities); err != nil {
		return nil, err
	}
	if p.pods, err = newPods(cfg, node, clients.reads, &p); err != nil {
		return nil, err
	}
	p.ledger = placement.New(gpus, cfg)
	if p.contexts, p.child, err = newContexts(cfg, driver, inventory, p.ledger, log); err != nil {
		return nil, err
	}
	p.pinned = pinned.New(func() string { return cfg.Paths.InstallDir }, log)
	interposer := newInterposer(cfg, p.events, p.pinned.Poke, log)
	interposer.Dir() // early, so that no container waits for the libraries
	p.evictor = evict.New(evict.Options{
		Client: clients.writes, Pods: p.pods, Events: p.events, After: cfg.Placement.EvictAfter, Log: log,
	})
	p.mps = newMPS(cfg, inventory, driver, p.contexts, p.events, log)
	if p.hook, err = newHook(cfg, inventory, interposer, &p, log); err != nil {
		return nil, err
	}
	// The ledger now contains the containers on the GPUs, and no new container can arrive yet.
	prepare(ctx, p.contexts, gpus)
	newAnswers(cfg, clients.answers, &p, log)
	p.lender = lender.New(lender.Options{Dirs: p.hook.LiveDirs, Given: p.hook.Given, Log: log})
	p.heartbeat = newHeartbeat(o, pooled, inventory, clients.labels, &p)
	p.checker = newChecker(inventory, &p, log)
	p.usage = newUsage(pooled, node, inventory, &p)
	if p.registry, err = newRegistry(cfg, driver, p.hook, p.usage, p.metrics, log); err != nil {
		return nil, err
	}
	p.admin = newAdmin(cfg, p.usage, log)
	p.detector = newDetector(cfg, inventory, &p, log)
	all := []prometheus.Collector{p.events, p.evictor, p.resizer, p.detector.Metrics, p.mps, p.usage, p.checker, contexts.Metrics{Sizes: p.contexts}}
	for _, exporter := range slices.Compact(slices.Sorted(slices.Values(cfg.Metrics.LegacyNames))) {
		all = append(all, p.usage.Legacy(exporter))
	}
	return &p, collect(p.metrics, p.heartbeat, all...)
}

// look queries the driver for the first time, with a short timeout: containers without a GPU
// request need the plugin as well.
func look(ctx context.Context, inventory *gpu.Inventory, log *slog.Logger) []gpu.GPU {
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	gpus, err := inventory.Refresh(ctx)
	if err != nil {
		log.Warn("found no GPUs yet", "error", err)
	}
	return gpus
}

func collect(registry *prometheus.Registry, h *heartbeat.Heartbeat, others ...prometheus.Collector) error {
	all := append([]prometheus.Collector{
		h, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}, others...)
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("set up metrics: %w", err)
		}
	}
	return nil
}
