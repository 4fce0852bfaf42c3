package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/pkg/agent"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/contexts"
	"github.com/nri-vgpu/nri-vgpu/pkg/daemon"
	"github.com/nri-vgpu/nri-vgpu/pkg/detection"
	"github.com/nri-vgpu/nri-vgpu/pkg/driverlib"
	"github.com/nri-vgpu/nri-vgpu/pkg/endpoint"
	"github.com/nri-vgpu/nri-vgpu/pkg/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/evict"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/lender"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/mps"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/pkg/selfcheck"
	"github.com/nri-vgpu/nri-vgpu/pkg/usagefs"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/volcano"
)

// firstContexts bounds the wait for CUDA contexts to be measured: what takes longer is
// gone on with while containers are placed.
const firstContexts = 5 * time.Second

// firstLook bounds the wait for the driver before the plugin registers: until
// then the runtime creates containers without it.
const firstLook = 3 * time.Second

func run(ctx context.Context, f flags) error {
	cfg, err := daemon.Config(f.config)
	if err != nil {
		return err
	}
	if f.driverRoot != "" {
		cfg.Driver.Root = f.driverRoot
	}
	log, err := daemon.Logger(cfg.Log)
	if err != nil {
		return err
	}
	if f.nodeName == "" {
		return errors.New("no node name: set --node-name or NODE_NAME")
	}
	clients, err := connect(f.kubeconfig, cfg.Metrics)
	if err != nil {
		return err
	}
	log.Info("starting", "version", version.Version, "node", f.nodeName)
	parts, err := assemble(ctx, cfg, f.nodeName, clients, log)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range []func(context.Context){
		parts.watch, parts.events.Run, parts.evictor.Run, parts.pods.Run, parts.agent.Run, parts.hook.Run, parts.hook.KeepAsking, parts.hook.Serve, parts.lender.Run,
		parts.clients.Run, parts.admin.Run, parts.detector.Run, parts.mps.Run, parts.volcano.Run, parts.contexts.Run, parts.checker.Run,
	} {
		group.Go(func() error {
			part(ctx)
			return nil
		})
	}
	group.Go(func() error { return endpoint.Run(ctx, parts.endpoint(cfg, f.certificates, clients, log)) })
	err = group.Wait()
	log.Info("stopped; running containers keep their limits")
	return err
}

// parts of the agent, wired together.
type parts struct {
	watch    func(context.Context)
	events   *events.Recorder
	evictor  *evict.Evictor
	pods     *pods.Cache
	hook     *hook.Hook
	agent    *agent.Agent
	lender   *lender.Lender
	checker  *selfcheck.Checker
	clients  *registry.Server
	admin    *registry.Admin
	detector *detection.Detector
	mps      *mps.Supervisor
	volcano  *volcano.Answerer
	contexts *contexts.Sizes
	child    *contexts.Child // that makes contexts to measure them
	metrics  *prometheus.Registry
}

// endpoint is what is served over HTTP.
func (p *parts) endpoint(cfg config.Config, certificates string, clients clients, log *slog.Logger) endpoint.Options {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", p.agent.Healthz)
	mux.HandleFunc("GET /readyz", p.agent.Readyz)
	return endpoint.Options{
		Address: cfg.HTTP.Address, ProbeAddress: cfg.HTTP.ProbeAddress, Probes: mux, Metrics: p.metrics,
		Reviews: clients.reviews, Socket: layout.MetricsSocket(cfg.Paths.RunDir), CertificateDir: certificates, Log: log,
	}
}

func assemble(ctx context.Context, cfg config.Config, node string, clients clients, log *slog.Logger) (*parts, error) {
	p := parts{metrics: prometheus.NewRegistry()}
	p.events = events.New(events.Options{Client: clients.writes, Node: node, Log: log})
	driver := nvml.Options{Root: cfg.Driver.Root, Library: cfg.Driver.NVMLLibrary}
	inventory := gpu.NewInventory(nvml.New(driver), gpu.DefaultTimeout)
	p.watch = func(ctx context.Context) {
		inventory.Watch(ctx, nvml.NewEvents(driver), gpu.WatchOptions{
			Ignored: cfg.Health.IgnoredXIDs, Changed: func() { p.agent.Poke() }, Log: log,
		})
	}
	gpus := look(ctx, inventory, log)
	if err := hook.WriteEnvSpec(cfg.Injection.CDIOutputDir, gpus, cfg.Injection.DriverCapabilities); err != nil {
		return nil, err
	}
	var err error
	p.pods, err = pods.New(clients.reads, pods.Options{
		Node: node, Wait: cfg.NRI.PodWait.Duration,
		Gone: func(uid string) {
			p.hook.PodGone(uid)
			p.evictor.PodGone(uid)
		},
		Changed: func() {
			p.hook.PodsChanged()
			p.agent.PodsChanged()
			p.volcano.Poke()
		},
		Reads: func(annotation string) bool { return request.Reads(annotation) || volcano.Reads(annotation) },
	})
	if err != nil {
		return nil, err
	}
	ledger := placement.New(gpus, cfg)
	if p.contexts, p.child, err = newContexts(cfg, driver, inventory, ledger, log); err != nil {
		return nil, err
	}
	interposer := newInterposer(cfg, p.events, log)
	interposer.Dir() // now, not while a container waits
	p.hook, err = newHook(cfg, p.contexts, p.pods, ledger, inventory, interposer, p.events, p.metrics, func() { p.agent.Poke() }, log)
	if err != nil {
		return nil, err
	}
	// The ledger knows now who is on the GPUs, and nobody new can come yet.
	prepare(ctx, p.contexts, gpus)
	p.volcano = volcano.New(volcano.Options{
		Client: clients.answers, Config: cfg, Pods: p.pods, Places: p.hook, Changed: func() { p.agent.Poke() }, Log: log,
	})
	p.hook.Outcome = p.volcano.Outcome
	p.lender = lender.New(lender.Options{Dirs: p.hook.LiveDirs, Given: p.hook.Given, Log: log})
	p.hook.LiveChanged = p.lender.Poke
	p.agent = agent.New(agent.Options{
		Node: node, Config: cfg, Inventory: inventory, Ledger: ledger, Pods: p.pods, Plugin: p.hook, Events: p.events, Log: log,
		Volcano: p.volcano.State,
		Prepare: func(ctx context.Context, gpus []gpu.GPU) { prepare(ctx, p.contexts, gpus) },
		Changed: func(gpus []gpu.GPU) error {
			return hook.WriteEnvSpec(cfg.Injection.CDIOutputDir, gpus, cfg.Injection.DriverCapabilities)
		},
	})
	p.evictor = evict.New(evict.Options{
		Client: clients.writes, Pods: p.pods, Events: p.events, After: cfg.Placement.EvictAfter, Log: log,
	})
	p.hook.Room = p.evictor
	p.mps = newMPS(cfg, inventory, driver, p.contexts, p.events, log)
	if cfg.Sharing.Method == config.ShareByMPS {
		p.hook.MPS = p.mps
	}
	p.checker = newChecker(inventory, p.hook, log)
	users := newCensus(cfg, node, inventory, ledger, &p)
	if p.clients, err = newClients(cfg, driver, p.hook, users, p.metrics, log); err != nil {
		return nil, err
	}
	p.admin = newAdmin(cfg, users, log)
	p.detector = newDetector(cfg, inventory, &p, log)
	told := []prometheus.Collector{p.events, p.evictor, p.detector.Metrics, p.mps, users, p.checker, contexts.Metrics{Sizes: p.contexts}}
	for _, exporter := range slices.Compact(slices.Sorted(slices.Values(cfg.Metrics.LegacyNames))) {
		told = append(told, users.Legacy(exporter))
	}
	return &p, collect(p.metrics, p.agent, told...)
}

// look asks the driver for the first time, and not for long: the plugin should
// be there for containers that ask for nothing, too.
func look(ctx context.Context, inventory *gpu.Inventory, log *slog.Logger) []gpu.GPU {
	ctx, cancel := context.WithTimeout(ctx, firstLook)
	defer cancel()
	gpus, err := inventory.Refresh(ctx)
	if err != nil {
		log.Warn("there are no GPUs yet", "error", err)
	}
	return gpus
}

// prepare measures the contexts of GPUs that are new.
func prepare(ctx context.Context, sizes *contexts.Sizes, gpus []gpu.GPU) {
	ctx, cancel := context.WithTimeout(ctx, firstContexts)
	defer cancel()
	sizes.Prepare(ctx, gpus)
}

func newHook(cfg config.Config, sizes *contexts.Sizes, cache *pods.Cache, ledger *placement.Ledger, inventory *gpu.Inventory, interposer *driverlib.Node, recorder *events.Recorder, registry prometheus.Registerer, changed func(), log *slog.Logger) (*hook.Hook, error) {
	store, err := hook.NewStore(layout.Containers(cfg.Paths.RunDir))
	if err != nil {
		return nil, err
	}
	store.Usage = usagefs.New(layout.Usage(cfg.Paths.RunDir), limits.UsageFile, limits.UsageBytes)
	store.ContextBytes = sizes.Of
	devices, err := hook.NewCDIDevices(cfg.Injection.CDISpecDirs)
	if err != nil {
		return nil, err
	}
	metrics, err := hook.NewMetrics(registry)
	if err != nil {
		return nil, err
	}
	return hook.New(hook.Options{
		Config: cfg,
		Rules: hook.Rules{
			Injection:    cfg.Injection,
			LibraryDir:   layout.Versioned(cfg.Paths.InstallDir, version.Version),
			Interposer:   interposer.Dir,
			AgentDir:     layout.Agent(cfg.Paths.RunDir),
			MPSDir:       layout.MPSClients(cfg.Paths.RunDir),
			SHMDir:       layout.MPSSHM(cfg.Paths.RunDir),
			HasCDIDevice: devices.Has,
		},
		Pods: cache, Ledger: ledger, GPUs: inventory.GPUs, Store: store, Metrics: metrics, Events: recorder, Changed: changed, Log: log,
	}), nil
}

func collect(registry *prometheus.Registry, a *agent.Agent, others ...prometheus.Collector) error {
	all := append([]prometheus.Collector{
		a, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}, others...)
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("set up metrics: %w", err)
		}
	}
	return nil
}

// clients of the API server. Each has a rate limiter of its own: a handler that
// has to read a pod must not wait behind Events, nor a scheduler for its answer.
// reviews is nil unless the API server says who may read metrics.
type clients struct{ reads, writes, answers, reviews kubernetes.Interface }

// How often each client asks. Tenants cause Events and evictions.
const (
	requestsPerSecond = 5
	requestBurst      = 10
)

func connect(kubeconfig string, metrics config.Metrics) (clients, error) {
	cfg, err := daemon.APIServer(kubeconfig, "nri-vgpu")
	if err != nil {
		return clients{}, err
	}
	// Protobuf costs a fraction of JSON's time and memory.
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	// Client-go's own defaults, which docs/security.md states.
	cfg.QPS, cfg.Burst = requestsPerSecond, requestBurst
	var c clients
	for _, client := range []*kubernetes.Interface{&c.reads, &c.writes, &c.answers} {
		made, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return clients{}, fmt.Errorf("make a Kubernetes client: %w", err)
		}
		*client = made
	}
	c.reviews, err = endpoint.Reviews(cfg, metrics)
	return c, err
}
