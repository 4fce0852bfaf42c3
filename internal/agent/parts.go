// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/announce"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/answer"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/detect"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/foreign"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/full"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/heartbeat"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/resize"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/selfcheck"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/usage"
	"github.com/nri-vgpu/nri-vgpu/internal/contexts"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon"
	"github.com/nri-vgpu/nri-vgpu/internal/driverlib"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	kuberesize "github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/internal/mps"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/internal/registry/held"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/cdispec"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/store"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// newForeign returns the watch of the agent's Node, and the Watcher of the GPUs that other device
// plugins offer.
func newForeign(cfg daemon.Pooled, name string, client kubernetes.Interface, p *parts, log *slog.Logger) (*ownnode.Cache, *foreign.Watcher, error) {
	var watcher *foreign.Watcher
	var node *ownnode.Cache
	node, err := ownnode.New(client, name, func() {
		watcher.Poke()
		if now := node.Node(); now != nil && cfg.Moved(now.Labels) {
			p.moved.Signal()
		}
	})
	if err != nil {
		return nil, nil, err
	}
	watcher = foreign.New(foreign.Options{
		Config:  cfg.Node,
		Own:     request.Names(cfg.Dialects),
		Kubelet: foreign.PodResources{Socket: filepath.Join(cfg.Paths.PodResourcesDir, "kubelet.sock")},
		Node:    node.Node,
		Changed: func() {
			if p.heartbeat != nil {
				p.heartbeat.Poke()
			}
		},
		Log: log,
	})
	return node, watcher, nil
}

// newRegistry returns the server of the socket at which containers' processes register and ask.
func newRegistry(cfg config.Config, driver nvml.Options, h *hook.Hook, answers registry.Answers, metrics prometheus.Registerer, log *slog.Logger) (*registry.Server, error) {
	server := &registry.Server{
		Path: paths.AgentSocket(cfg.Paths.RunDir), Registry: registry.New(), Answers: answers, Proc: registry.HostProc, Log: log,
		// The inventory's driver serves one caller at a time, and may be slow.
		Holdings: held.Holdings{Looks: gpu.NewLooks(nvml.NewHoldings(driver)), GPUs: h.GPUsOf},
	}
	names := func() map[string]registry.Name {
		names := map[string]registry.Name{}
		for id, held := range h.Holders() {
			names[id] = registry.Name{Namespace: held.Namespace, Pod: held.Pod, Container: held.Container}
		}
		return names
	}
	if err := metrics.Register(registry.Metrics{Registry: server.Registry, Names: names}); err != nil {
		return nil, fmt.Errorf("set up metrics: %w", err)
	}
	return server, nil
}

// newUsage returns the Collector that answers questions and exports metrics.
func newUsage(cfg daemon.Pooled, node string, inventory *gpu.Inventory, p *parts) *usage.Collector {
	return usage.New(usage.Options{
		Node: node, Pool: cfg.Pool, Foreign: p.heartbeat.Foreign, Config: cfg.Config, GPUs: inventory, Containers: p.hook, Ledger: p.ledger, Pods: p.pods,
		Dir: p.files.Dir, Proc: registry.HostProc, Meter: p.checker.Verdict,
	})
}

// newChecker returns the Checker that compares metered GPU time with the driver's observations.
func newChecker(inventory *gpu.Inventory, p *parts, log *slog.Logger) *selfcheck.Checker {
	return selfcheck.New(selfcheck.Options{
		GPUs: inventory, Containers: p.hook, Dir: p.files.Dir, Look: registry.HostProc.Look,
		Window: selfcheck.Window, Log: log,
	})
}

// newAdmin returns the server of the socket for root on the node.
func newAdmin(cfg config.Config, answers registry.Answers, log *slog.Logger) *registry.Admin {
	return &registry.Admin{Path: paths.AdminSocket(cfg.Paths.RunDir), Answers: answers, Log: log}
}

// contextRoom is the free memory that a GPU with containers must have before the agent measures a
// context. No context takes more memory.
const contextRoom = 1 << 30

// newContexts returns the sizes of CUDA contexts, and the child process that measures them.
func newContexts(cfg config.Config, driver nvml.Options, inventory *gpu.Inventory, ledger *placement.Ledger, log *slog.Logger) (*contexts.Sizes, *contexts.Child, error) {
	program, err := contexts.Program()
	if err != nil {
		return nil, nil, err
	}
	child := &contexts.Child{Program: program, Library: func() (string, error) { return nvml.FindCUDALibrary(driver) }}
	holdings := nvml.NewHoldings(driver)
	return contexts.New(contexts.Options{
		Override: cfg.Memory.ContextBytes(),
		Measurer: &contexts.Measurer{Driver: holdings, Maker: child},
		Version:  holdings.Version,
		File:     paths.Contexts(cfg.Paths.StateDir),
		GPUs:     inventory.GPUs,
		Room: func(uuid string) bool {
			for _, room := range ledger.Free() {
				if room.UUID == uuid {
					return room.Holders == 0 || room.FreeMemoryBytes >= contextRoom
				}
			}
			return true // the GPU is new and has no containers
		},
		Log: log,
	}), child, nil
}

// firstContexts bounds the wait for measurements of CUDA contexts. Slower measurements continue
// while containers are placed.
const firstContexts = 5 * time.Second

// prepare measures the contexts of new GPUs.
func prepare(ctx context.Context, sizes *contexts.Sizes, gpus []gpu.GPU) {
	ctx, cancel := context.WithTimeout(ctx, firstContexts)
	defer cancel()
	sizes.Prepare(ctx, gpus)
}

// newMPS returns the supervisor of the Multi-Process Service's daemon. The supervisor serves the
// GPUs that containers share through the service.
func newMPS(cfg config.Config, inventory *gpu.Inventory, driver nvml.Options, sizes *contexts.Sizes, recorder *events.Recorder, log *slog.Logger) *mps.Supervisor {
	dirs := mps.DirsOf(cfg.Paths)
	shared := func() []string {
		var uuids []string
		for _, g := range inventory.GPUs() {
			// The agent cannot measure a context on a GPU that the service holds exclusively. The
			// service must not change a GPU of other programs.
			if g.UUID != "" && !inventory.Foreign(g.UUID) && cfg.Sharing.ByMPS(g.UUID) && sizes.Tried(g.UUID) {
				uuids = append(uuids, g.UUID)
			}
		}
		return uuids
	}
	return mps.New(mps.Options{
		Config: cfg.Sharing, Dirs: dirs, Host: mps.Node{Config: cfg.Sharing.MPS, Dirs: dirs}, GPUs: shared,
		Modes: nvml.Modes{Options: driver}, Proc: registry.HostProc, Events: recorder, Log: log,
	})
}

// newDetector returns the Detector of processes that use a GPU without permission.
func newDetector(cfg config.Config, inventory *gpu.Inventory, p *parts, log *slog.Logger) *detect.Detector {
	return detect.New(detect.Options{
		Config: cfg.Detection, Exempt: cfg.Node.ExemptNamespaces, Foreign: inventory.Foreign, Allowed: detect.Allowed(cfg.Injection.DriverCapabilities), GPUs: inventory, Containers: p.hook, Pods: p.pods,
		Own:        func(process registry.Process) bool { return mps.Own(process) || p.child.Is(process.PID) },
		Registered: p.registry.Registry.Has, Dir: p.files.Dir, Proc: registry.HostProc, Events: p.events, Log: log,
	})
}

// newHook returns the plugin that answers the container runtime. newHook reaches Volcano's answerer
// and the lender through closures, because assemble makes them later.
func newHook(cfg config.Config, inventory *gpu.Inventory, interposer *driverlib.Node, p *parts, log *slog.Logger) (*hook.Hook, error) {
	var err error
	if p.files, err = store.New(paths.Containers(cfg.Paths.RunDir)); err != nil {
		return nil, err
	}
	p.files.MountUsage(paths.Usage(cfg.Paths.RunDir))
	p.files.ContextBytes = p.contexts.Of
	devices, err := cdispec.NewDevices(cfg.Injection.CDISpecDirs)
	if err != nil {
		return nil, err
	}
	metrics, err := hook.NewMetrics(p.metrics)
	if err != nil {
		return nil, err
	}
	options := hook.Options{
		Config: cfg,
		Rules: adjust.Rules{
			Injection:    cfg.Injection,
			LibraryDir:   paths.Versioned(cfg.Paths.InstallDir, version.Version),
			Interposer:   interposer.Dir,
			AgentDir:     paths.Agent(cfg.Paths.RunDir),
			MPSDir:       paths.MPSClients(cfg.Paths.RunDir),
			SHMDir:       paths.MPSSHM(cfg.Paths.RunDir),
			HasCDIDevice: devices.Has,
		},
		Pods: p.pods, Ledger: p.ledger, GPUs: inventory.GPUs, Foreign: inventory.Foreign, Store: p.files, Metrics: metrics, Events: p.events, Room: p.evictor,
		Changed: func() { p.heartbeat.Poke() },
		Outcome: func(podUID, container string, refused bool) {
			p.volcano.Outcome(podUID, container, refused)
			p.announcer.Poke()
		},
		Released:    func() { p.heartbeat.PodsChanged() },
		LiveChanged: func() { p.lender.Poke() },
		Log:         log,
	}
	if cfg.Sharing.Method == config.ShareByMPS {
		options.MPS = p.mps
	}
	return hook.New(options), nil
}

// newPods returns the cache of the node's pods, which informs the other parts of changes.
func newPods(cfg config.Config, node string, client kubernetes.Interface, p *parts) (*pods.Cache, error) {
	return pods.New(client, pods.Options{
		Node: node, Wait: cfg.NRI.PodWait.Duration,
		Gone: func(uid string) {
			p.hook.PodGone(uid)
			p.evictor.PodGone(uid)
		},
		Changed: func() {
			p.hook.PodsChanged()
			p.heartbeat.PodsChanged()
			p.volcano.Poke()
			p.announcer.Poke()
			p.resizer.Poke()
		},
		Reads: func(annotation string) bool {
			return request.Reads(annotation) || choice.Reads(annotation) || annotation == assign.Annotation ||
				annotation == kuberesize.Annotation || annotation == kuberesize.ReportAnnotation
		},
		Affinity: request.FitAffinity,
	})
}

// newAnswers sets the parts that answer the scheduler and report sizes on pods.
func newAnswers(cfg config.Config, client kubernetes.Interface, p *parts, log *slog.Logger) {
	changed := func() { p.heartbeat.Poke() }
	p.volcano = answer.New(answer.Options{
		Client: client, Config: cfg, Pods: p.pods, Places: p.hook, Changed: changed, Log: log,
	})
	p.announcer = announce.New(announce.Options{Client: client, Config: cfg, Pods: p.pods, Places: p.hook, Log: log})
	p.resizer = resize.New(resize.Options{
		Client: client, Config: cfg, Pods: p.pods, Places: p.hook, Ledger: p.ledger, Events: p.events, Changed: changed, Log: log,
	})
}

func newHeartbeat(o Options, pooled daemon.Pooled, inventory *gpu.Inventory, client kubernetes.Interface, p *parts) *heartbeat.Heartbeat {
	cfg := pooled.Config
	return heartbeat.New(heartbeat.Options{
		Node: o.Node, Pool: pooled.Pool, Config: cfg, Inventory: inventory, Ledger: p.ledger, Pods: p.pods, Plugin: p.hook, Events: p.events, Log: o.Log,
		Full:    full.New(client, o.PodNamespace, o.PodName).Set,
		Volcano: p.volcano.State,
		Prepare: func(ctx context.Context, gpus []gpu.GPU) { prepare(ctx, p.contexts, gpus) },
		Changed: func(gpus []gpu.GPU) error {
			return cdispec.Write(cfg.Injection.CDIOutputDir, gpus, cfg.Injection.DriverCapabilities)
		},
	})
}
