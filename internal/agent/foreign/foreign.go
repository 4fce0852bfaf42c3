// SPDX-License-Identifier: Apache-2.0

// Package foreign finds the GPUs that other device plugins of the node offer. Kubelet lists the
// devices of all plugins on its PodResources socket, and the Node's capacity counts the devices.
package foreign

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

const (
	// interval is the time between two queries of kubelet.
	interval = 5 * time.Second
	// patience bounds a query of kubelet.
	patience = 2 * time.Second
	// absence is the time for which a claim outlives the plugin's registration with kubelet. A plugin
	// registers again after its own restart and after a restart of kubelet. Until then, a restarted
	// kubelet neither lists nor counts the plugin's devices.
	absence = 2 * time.Minute
)

// unknown is the reason why no GPU gets new containers until kubelet or the API server has
// answered.
const unknown = "it is not known yet whether another device plugin offers it: neither kubelet (paths.pod_resources_dir in config.toml) nor the API server answers"

// Kubelet lists devices.
type Kubelet interface {
	// Devices returns the ids of the devices that are healthy or in use, by resource.
	Devices(context.Context) (map[string][]string, error)
}

// Node returns the agent's Node, or nil if the Node is unknown. Node must not block.
type Node func() *corev1.Node

// Options configures a Watcher.
type Options struct {
	Config config.Node
	// Own are the resources that nri-vgpu offers. nri-vgpu registers no device with kubelet, so that
	// kubelet's devices of these resources belong to another plugin.
	Own     []string
	Kubelet Kubelet
	Node    Node
	// Changed, if set, is called when the claims have changed. Changed must not block.
	Changed func()
	Log     *slog.Logger
}

// Watcher knows which GPUs other device plugins offer.
type Watcher struct {
	Options
	poke    loop.Wakeup
	failure loop.Failure

	mu     sync.Mutex
	claims claims
	// absent are the times since when resources lack devices and have no capacity.
	absent map[string]time.Time
	known  bool // kubelet or the API server has answered
}

// New returns a Watcher that knows nothing until Look or Run.
func New(opts Options) *Watcher {
	return &Watcher{Options: opts, poke: loop.NewWakeup(), absent: map[string]time.Time{}}
}

// Poke requests an immediate look. Poke never blocks.
func (w *Watcher) Poke() { w.poke.Signal() }

// Run looks at every interval and Poke until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		w.Look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-w.poke:
		}
	}
}

// Look asks kubelet and reads the Node once.
func (w *Watcher) Look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	listed, err := w.listed(ctx)
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	if w.failure.Note(err) == loop.Failed {
		w.Log.Warn("failed to ask kubelet for the devices of other plugins; the Node's capacity alone counts", "error", err)
	}
	if w.update(w.capacity(), listed) && w.Changed != nil {
		w.Changed()
	}
}

// update stores the new claims, and reports whether they differ from the earlier claims.
func (w *Watcher) update(capacity map[string]int64, listed listing) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, known := w.claims, w.known
	w.claims = judge(before, capacity, listed)
	w.keepAbsent(before, capacity)
	w.known = known || capacity != nil || listed != nil
	return known != w.known || !w.claims.equal(before)
}

// keepAbsent keeps the earlier claims of plugins that are not registered, for the time absence. The
// caller holds w.mu.
func (w *Watcher) keepAbsent(before claims, capacity map[string]int64) {
	for name, devices := range before {
		if capacity[name] > 0 || !w.claims.lacks(name, devices) {
			delete(w.absent, name)
			continue
		}
		if _, known := w.absent[name]; !known {
			w.absent[name] = time.Now()
		}
		if time.Since(w.absent[name]) >= absence {
			delete(w.absent, name)
			continue
		}
		w.claims.add(name, devices)
	}
}

// listed returns kubelet's devices of the foreign and the own resources, or nil if kubelet does not
// answer.
func (w *Watcher) listed(ctx context.Context) (listing, error) {
	all, err := w.Kubelet.Devices(ctx)
	if err != nil {
		return nil, err
	}
	found := listing{}
	for name, devices := range all {
		if (w.Config.Foreign(name) || slices.Contains(w.Own, name)) && len(devices) > 0 {
			found[name] = devices
		}
	}
	return found, nil
}

// capacity returns the Node's capacity of the foreign resources, or nil if the Node is unknown. capacity
// omits the resources of disabled dialects that nri-vgpu has advertised and not yet withdrawn.
func (w *Watcher) capacity() map[string]int64 {
	node := w.Node()
	if node == nil {
		return nil
	}
	found := map[string]int64{}
	own := strings.Split(node.Annotations[ownnode.Advertised], ",")
	for name, quantity := range node.Status.Capacity {
		if w.Config.Foreign(string(name)) && !slices.Contains(own, string(name)) {
			found[string(name)] = quantity.Value()
		}
	}
	return found
}

// Claimed returns the reason why another device plugin has a GPU, "" if no plugin has the GPU.
func (w *Watcher) Claimed(g gpu.GPU) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.known {
		return unknown
	}
	if resource := w.claims.on(g); resource != "" {
		return reason(resource, g)
	}
	return ""
}
