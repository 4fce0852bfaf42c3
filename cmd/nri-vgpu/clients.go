package main

import (
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/pkg/census"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/contexts"
	"github.com/nri-vgpu/nri-vgpu/pkg/detection"
	"github.com/nri-vgpu/nri-vgpu/pkg/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
	"github.com/nri-vgpu/nri-vgpu/pkg/held"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/mps"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/selfcheck"
)

// newClients makes the socket at which containers' processes register, and ask.
func newClients(cfg config.Config, driver nvml.Options, h *hook.Hook, answers registry.Answers, metrics prometheus.Registerer, log *slog.Logger) (*registry.Server, error) {
	server := &registry.Server{
		Path: layout.AgentSocket(cfg.Paths.RunDir), Registry: registry.New(), Answers: answers, Proc: registry.HostProc, Log: log,
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

// newCensus knows who uses the GPUs, for those who ask and for metrics.
func newCensus(cfg config.Config, node string, inventory *gpu.Inventory, ledger *placement.Ledger, p *parts) *census.Census {
	return census.New(census.Options{
		Node: node, Config: cfg, GPUs: inventory, Containers: p.hook, Ledger: ledger, Pods: p.pods,
		Dir: p.hook.Store.Dir, Proc: registry.HostProc, Meter: p.checker.Verdict,
	})
}

// newChecker compares metered GPU time with what the driver observes.
func newChecker(inventory *gpu.Inventory, running *hook.Hook, log *slog.Logger) *selfcheck.Checker {
	return selfcheck.New(selfcheck.Options{
		GPUs: inventory, Containers: running, Dir: running.Store.Dir, Look: registry.HostProc.Look,
		Window: selfcheck.Window, Log: log,
	})
}

// newAdmin makes the socket at which the node's root asks.
func newAdmin(cfg config.Config, answers registry.Answers, log *slog.Logger) *registry.Admin {
	return &registry.Admin{Path: layout.AdminSocket(cfg.Paths.RunDir), Answers: answers, Log: log}
}

// contextRoom is what must be left of a GPU on which containers are for a context to
// be made there: none takes so much.
const contextRoom = 1 << 30

// newContexts knows how large CUDA contexts are.
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
		File:     layout.Contexts(cfg.Paths.StateDir),
		GPUs:     inventory.GPUs,
		Room: func(uuid string) bool {
			for _, room := range ledger.Free() {
				if room.UUID == uuid {
					return room.Holders == 0 || room.FreeMemoryBytes >= contextRoom
				}
			}
			return true // it is new, and nobody has it
		},
		Log: log,
	}), child, nil
}

// newMPS keeps the Multi-Process Service's daemon running for the GPUs that are
// shared through it.
func newMPS(cfg config.Config, inventory *gpu.Inventory, driver nvml.Options, sizes *contexts.Sizes, recorder *events.Recorder, log *slog.Logger) *mps.Supervisor {
	dirs := mps.DirsOf(cfg.Paths)
	shared := func() []string {
		var uuids []string
		for _, g := range inventory.GPUs() {
			// A GPU that the service has to itself lets no context be measured.
			if g.UUID != "" && cfg.Sharing.ByMPS(g.UUID) && sizes.Tried(g.UUID) {
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

// newDetector looks from outside who uses the GPUs.
func newDetector(cfg config.Config, inventory *gpu.Inventory, p *parts, log *slog.Logger) *detection.Detector {
	return detection.New(detection.Options{
		Config: cfg.Detection, Exempt: cfg.Node.ExemptNamespaces, Allowed: detection.Allowed(cfg.Injection.DriverCapabilities), GPUs: inventory, Containers: p.hook, Pods: p.pods,
		Own:        func(process registry.Process) bool { return mps.Own(process) || p.child.Is(process.PID) },
		Registered: p.clients.Registry.Has, Dir: p.hook.Store.Dir, Proc: registry.HostProc, Events: p.events, Log: log,
	})
}
