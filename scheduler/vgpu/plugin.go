// SPDX-License-Identifier: Apache-2.0

// Package vgpu is the plugin of nri-vgpu-scheduler. The plugin fits pods to single GPUs by the
// ledger that the nodes use, too.
//
// The pods are the ledger. Whenever the scheduler's cache has changed, the plugin derives the use
// of a node's GPUs from the node's pods in the cache. The plugin keeps only caches and the
// assignments of pods that the scheduler is binding. Therefore no state can be stale or lost, and
// preemption and nominated pods work as with other resources.
package vgpu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/utils/lru"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Name is the plugin's name in KubeSchedulerConfiguration.
const Name = "VGPU"

// Args are the plugin's arguments in KubeSchedulerConfiguration.
type Args struct {
	// ConfigFile is the path of the nodes' config.toml; empty: the default configuration.
	ConfigFile string `json:"configFile,omitempty"`
	// Policy decides which nodes and GPUs the scheduler prefers: "binpack", "spread" or
	// "fragmentation"; empty: the placement.policy of the nodes.
	Policy string `json:"policy,omitempty"`
}

// Fragmentation is the policy that keeps room for the pods that the cluster usually gets.
const Fragmentation = "fragmentation"

// Plugin fits pods to single GPUs.
type Plugin struct {
	handle fwk.Handle
	// nodes is the configuration of the nodes.
	nodes  config.File
	policy string
	// history counts the kinds of the recent pods, for the policy fragmentation.
	history *history
	// views are the nodes' GPUs and their use, by the node's name.
	views *lru.Cache
	// specs are the requests of the specs of pods that have a node, by UID.
	specs *lru.Cache
	// memos are the memos of the shapes of recent pods.
	memos *lru.Cache
	// reserved are the assignments of the pods that the scheduler is binding, by UID. All profiles of the
	// scheduler share reserved, because each profile sees the pods of the others on the nodes.
	reserved *sync.Map
	// unseen are the pods that were reserved since the last snapshot of the scheduler's cache, by
	// node. The scheduler reserves several pods without a new snapshot only for the members of a
	// group.
	unseen unseen
}

// unseen are reserved pods that the snapshot of the scheduler's cache lacks. The zero value of
// unseen is empty.
type unseen struct {
	mu   sync.Mutex
	pods map[string][]*corev1.Pod
}

func (u *unseen) clear() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.pods = nil
}

func (u *unseen) add(node string, pod *corev1.Pod) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pods == nil {
		u.pods = map[string][]*corev1.Pod{}
	}
	u.pods[node] = append(u.pods[node], pod)
}

func (u *unseen) remove(node string, uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if on, ok := u.pods[node]; ok {
		u.pods[node] = slices.DeleteFunc(on, func(pod *corev1.Pod) bool { return pod.UID == uid })
	}
}

func (u *unseen) on(node string) []*corev1.Pod {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.pods[node])
}

var (
	_ fwk.PreFilterPlugin   = (*Plugin)(nil)
	_ fwk.FilterPlugin      = (*Plugin)(nil)
	_ fwk.PreScorePlugin    = (*Plugin)(nil)
	_ fwk.ScorePlugin       = (*Plugin)(nil)
	_ fwk.ReservePlugin     = (*Plugin)(nil)
	_ fwk.BindPlugin        = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
	_ fwk.SignPlugin        = (*Plugin)(nil)
)

// New returns the plugin VGPU.
func New(_ context.Context, raw runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	var args Args
	if err := frameworkruntime.DecodeInto(raw, &args); err != nil {
		return nil, fmt.Errorf("read the arguments of plugin %s: %w", Name, err)
	}
	nodes, err := args.load(Name)
	if err != nil {
		return nil, err
	}
	p := newPlugin(handle, nodes.Config)
	p.nodes, p.reserved = nodes, reservedBy(handle)
	if args.Policy != "" {
		p.policy = args.Policy
	}
	if !slices.Contains([]string{config.PlaceBinpack, config.PlaceSpread, Fragmentation}, p.policy) {
		return nil, fmt.Errorf("policy %q of plugin %s: want %s, %s or %s", p.policy, Name, config.PlaceBinpack, config.PlaceSpread, Fragmentation)
	}
	return p, errors.Join(p.forgetDeleted(handle), p.countPods(handle))
}

// reservations are the assignments in Plugin.reserved of each scheduler, by the scheduler's informers.
var reservations sync.Map

// reservedBy returns the assignments of the pods that a scheduler is binding.
func reservedBy(handle fwk.Handle) *sync.Map {
	reserved, _ := reservations.LoadOrStore(handle.SharedInformerFactory(), &sync.Map{})
	return reserved.(*sync.Map)
}

// countPods counts the kinds of the existing pods and of each new pod.
func (p *Plugin) countPods(handle fwk.Handle) error {
	if p.policy != Fragmentation {
		return nil
	}
	_, err := handle.SharedInformerFactory().Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return
		}
		if asked, asks, err := p.requestOf(pod); err == nil && asks {
			p.history.add(kindOf(asked, pod))
		}
	}})
	if err != nil {
		return fmt.Errorf("watch new pods: %w", err)
	}
	return nil
}

// load returns the configuration of the nodes.
func (a Args) load(plugin string) (config.File, error) {
	if a.ConfigFile == "" {
		return config.File{Config: config.Default()}, nil
	}
	nodes, err := config.LoadFile(a.ConfigFile)
	if err != nil {
		return config.File{}, fmt.Errorf("read the configuration of the nodes (configFile of plugin %s): %w", plugin, err)
	}
	return nodes, nil
}

func newPlugin(handle fwk.Handle, cfg config.Config) *Plugin {
	return &Plugin{handle: handle, nodes: config.File{Config: cfg}, policy: cfg.Placement.Policy, history: newHistory(), reserved: &sync.Map{}, memos: lru.New(mostShapes), views: lru.New(mostNodes), specs: lru.New(mostPods)}
}

// mostShapes bounds the number of memos, because pods can have any number of shapes.
const mostShapes = 64

// mostNodes and mostPods bound the caches, and exceed the numbers of the largest clusters. The
// plugin drops the entry of a deleted pod or Node, but an older snapshot may add the entry again.
const (
	mostNodes = 1 << 14
	mostPods  = 1 << 18
)

// forgetDeleted drops the cached state of pods and Nodes when they are deleted.
func (p *Plugin) forgetDeleted(handle fwk.Handle) error {
	informers := handle.SharedInformerFactory().Core().V1()
	for _, kind := range []struct {
		informer cache.SharedIndexInformer
		forget   func(any)
	}{
		{informers.Pods().Informer(), func(object any) {
			if pod, ok := object.(*corev1.Pod); ok {
				p.specs.Remove(specKey{uid: pod.UID})
				for _, pool := range p.nodes.Pools {
					p.specs.Remove(specKey{pod.UID, pool.Name})
				}
				p.reserved.Delete(pod.UID)
			}
		}},
		{informers.Nodes().Informer(), func(object any) {
			if node, ok := object.(*corev1.Node); ok {
				p.views.Remove(node.Name)
				p.history.outlook().forget(node.Name)
			}
		}},
	} {
		_, err := kind.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			kind.forget(object)
		}})
		if err != nil {
			return fmt.Errorf("watch deletions: %w", err)
		}
	}
	return nil
}

// Name returns the plugin's name.
func (*Plugin) Name() string { return Name }

// asking is the request of a pod in the pod's CycleState, while the scheduler schedules the pod.
type asking struct {
	request.Pod
	plugin *Plugin
	// group reports whether the scheduler schedules the pod with the other members of its group.
	// During the cycle of a group, the snapshot changes without new generations.
	group bool
	spec  *corev1.Pod
	memo  *memo // the memo of the pod's shape and of the outlook
	// kind and outlook are for the policy fragmentation.
	kind    kind
	outlook *outlook
	// units are the pod's amounts of the dialects' resources, and names are the sorted keys of
	// units.
	units map[string]int64
	names []string
}

// newAsking returns the asking of a pod.
func (p *Plugin) newAsking(asked request.Pod, pod *corev1.Pod) *asking {
	units := request.Used([]*corev1.Pod{pod}, p.nodes.Config.Dialects)
	a := &asking{Pod: asked, plugin: p, spec: pod, units: units, names: slices.Sorted(maps.Keys(units))}
	key := memoKey{shape: shapeOf(asked, pod, units)}
	if p.policy == Fragmentation {
		a.kind, a.outlook = kindOf(asked, pod), p.history.outlook()
		key.kind, key.outlook = a.kind, a.outlook.number
	}
	a.memo = p.memoOf(key)
	return a
}

// memoKey identifies all that a verdict and its value depend on, except the node.
type memoKey struct {
	shape
	// kind and outlook are for the policy fragmentation. outlook is the number of an outlook. The
	// key does not keep the outlook itself, which has the accounts of all nodes, in memory.
	kind    kind
	outlook uint64
}

// memoOf returns the memo of a key.
func (p *Plugin) memoOf(key memoKey) *memo {
	if known, ok := p.memos.Get(key); ok {
		return known.(*memo)
	}
	m := &memo{}
	p.memos.Add(key, m)
	return m
}

// Clone returns a itself, which never changes.
func (a *asking) Clone() fwk.StateData { return a }

const stateKey fwk.StateKey = Name

// askingOf returns the asking that PreFilter has written.
func askingOf(state fwk.CycleState) (*asking, bool) {
	data, err := state.Read(stateKey)
	if err != nil {
		return nil, false
	}
	a, ok := data.(*asking)
	return a, ok
}

// requestOf returns the request of a pod, and whether any of the pod's containers requests GPUs.
func (p *Plugin) requestOf(pod *corev1.Pod) (request.Pod, bool, error) {
	asked, err := request.Read(pod, p.nodes.Config)
	return asked, err == nil && asksForAny(asked), err
}

// specKey identifies the request of a pod's spec by the configuration of a pool.
type specKey struct {
	uid  types.UID
	pool string
}

// specOf returns the request of a pod's spec, which does not change, by the dialects of a pool.
func (p *Plugin) specOf(pod *corev1.Pod, pool string, dialects config.Dialects) (request.Pod, error) {
	key := specKey{pod.UID, pool}
	if known, ok := p.specs.Get(key); ok {
		return known.(request.Pod), nil
	}
	asked, err := request.FromPod(pod, dialects)
	if err == nil && asksForAny(asked) {
		p.specs.Add(key, asked)
	}
	return asked, err
}

func asksForAny(pod request.Pod) bool {
	for _, c := range pod.Containers {
		if c.Asks() {
			return true
		}
	}
	return false
}

// reservedFor returns the assignment of a pod that the scheduler is binding.
func (p *Plugin) reservedFor(uid types.UID) (string, bool) {
	assigned, ok := p.reserved.Load(uid)
	if !ok {
		return "", false
	}
	return assigned.(string), true
}
