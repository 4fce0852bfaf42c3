// SPDX-License-Identifier: Apache-2.0

// Package hook is the NRI plugin between the container runtime and the containers that the
// runtime creates. A container that requests a part of a GPU gets that part with its
// limits; any other container gets no GPU. Package adjust decides the changes to a
// container, and package store keeps its files. Package hook itself implements NRI and
// tracks the lifecycle of containers.
package hook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/container/runtimes"
	"github.com/nri-vgpu/nri-vgpu/internal/deadline"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/store"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Pods are the node's pods as the API server reports them.
type Pods interface {
	// Cached returns a pod from the cache without waiting.
	Cached(pods.Ref) (*corev1.Pod, bool)
	// Get may query the API server, for a bounded time.
	Get(context.Context, pods.Ref) (*corev1.Pod, error)
	Alive(uid string) bool
	// List returns all pods of the node.
	List() []*corev1.Pod
	HasSynced() bool
}

// Options configures a Hook.
type Options struct {
	Config config.Config
	Rules  adjust.Rules
	Pods   Pods
	Ledger *placement.Ledger
	// GPUs returns the latest inventory, without querying the driver.
	GPUs func() []gpu.GPU
	// Foreign, if set, reports whether another device plugin offers a GPU.
	Foreign func(uuid string) bool
	Store   *store.Store
	Metrics *Metrics
	// Events, if set, writes Events about refused containers. Events must not block.
	Events Events
	// MPS, if set, reports the state of the Multi-Process Service.
	MPS MPS
	// Room, if set, records which pods found room and which did not.
	Room Room
	// Proc is the proc file system of the host's processes. "" selects /proc.
	Proc string
	// Changed, if set, is called when Registered changes. Changed must not block.
	Changed func()
	// Outcome, if set, is called for each container that the hook has granted a part of a GPU or
	// refused. Outcome must not block.
	Outcome func(podUID, container string, refused bool)
	// Released, if set, is called after a pod has released its GPUs. Released must not block.
	Released func()
	// LiveChanged, if set, is called when LiveDirs changes. LiveChanged must not block.
	LiveChanged func()
	Log         *slog.Logger
}

// Hook answers the container runtime. The ledger and the store hold the hook's state. Only the set
// of the runtime's current containers exists in memory alone.
type Hook struct {
	opts Options

	runtime    atomic.Pointer[runtimes.Runtime]
	registered atomic.Bool
	handlers   inFlight
	bound      *deadline.Bound
	looks      *ourfiles.Looks
	// unadjustedCount is len(unadjusted). A reader of unadjustedCount does not need mu.
	unadjustedCount atomic.Int64
	// podsChanged wakes KeepAsking.
	podsChanged loop.Wakeup
	// askedBefore records whether each pod requests GPUs, as of the last run of KeepAsking.
	askedBefore map[*corev1.Pod]bool

	// mu makes the ledger entry, the files and the live entry of a container change
	// atomically.
	mu   sync.Mutex
	live map[string]liveContainer // by the runtime's id
	// reserved are the UIDs of the pods whose reservation file matches the ledger.
	reserved map[string]bool
	// synchronized is set once the runtime has listed its containers.
	synchronized bool
	// compared is set once the hook has compared the ledger with the pods' specs.
	compared bool
	// unaudited are running containers without injection; audit checks unaudited once the pods are
	// known.
	unaudited []runningContainer
	// unadjusted are the containers found running without their limits, by the runtime's
	// id.
	unadjusted map[string]liveContainer
	// incomplete are the resized containers whose files could not be written.
	incomplete map[containerName]bool
}

// containerName identifies a container of the ledger.
type containerName struct{ podUID, container string }

// liveContainer is a container with a part of a GPU that may have processes.
type liveContainer struct {
	podUID, name, sandbox string
	// ours are the container's mounts that detection looks for.
	ours []adjust.Mount
	// process is known once the runtime has created the container completely.
	process firstProcess
	// created is the time of the runtime's request to create the container, as this agent saw it.
	created time.Time
}

// New returns a hook with the saved state of the previous agent. New loads the containers' files,
// renames invalid files, and logs their names. Call New before the plugin registers with the
// runtime.
func New(opts Options) *Hook {
	h := &Hook{
		opts: opts, live: map[string]liveContainer{}, reserved: map[string]bool{}, incomplete: map[containerName]bool{}, podsChanged: loop.NewWakeup(),
		bound: deadline.New(handlerPatience, maxHandlers), looks: ourfiles.NewLooks(),
	}
	h.opts.Proc = cmp.Or(h.opts.Proc, "/proc")
	h.runtime.Store(&runtimes.Runtime{Name: "the runtime", Version: "?"})
	allocations, errs := opts.Store.Load()
	for _, err := range errs {
		h.opts.Log.Error("found a container's files invalid", "error", err)
	}
	for _, a := range allocations {
		if err := h.opts.Ledger.Restore(a); err != nil {
			h.opts.Log.Error("failed to restore an assignment", "error", err)
		}
	}
	return h
}

// Registered reports whether the runtime has registered the plugin and listed all
// containers.
func (h *Hook) Registered() bool { return h.registered.Load() }

func (h *Hook) setRegistered(registered bool) {
	if h.registered.Swap(registered) != registered && h.opts.Changed != nil {
		h.opts.Changed()
	}
}

// Stuck returns the running time of the longest running handler.
func (h *Hook) Stuck() time.Duration { return h.handlers.longest(time.Now()) }

// create decides on a container before its creation, and allocates its resources. The outcome is a
// label for metrics.
func (h *Hook) create(ctx context.Context, c adjust.Container, id, sandbox string) (adjust.Adjustment, outcome, error) {
	rt := *h.runtime.Load()
	pod, wants, err := h.request(ctx, c)
	if err != nil {
		return adjust.Adjustment{}, outcomeRefused, err
	}
	if !wants && h.exempt(c, pod.UID != "") {
		return adjust.Adjustment{Annotations: mark(outcomeExempt)}, outcomeExempt, nil
	}
	if resource := pod.Foreign(c.Name); !wants && resource != "" {
		a, err := h.opts.Rules.Yield(c, rt, resource, h.ownGPUs())
		a.Annotations = mark(outcomeForeign)
		return a, outcomeForeign.or(err), err
	}
	if !wants {
		a, err := h.opts.Rules.Withhold(c, rt)
		a.Annotations = mark(outcomeWithheld)
		return a, outcomeWithheld.or(err), err
	}
	a, err := h.grant(ctx, c, rt, pod, liveContainer{podUID: c.PodUID, name: c.Name, sandbox: sandbox, created: time.Now()}, id)
	return a, outcomeGranted.or(err), err
}

// request reads a pod's request and reports whether the container gets a part of a GPU. The
// pod is empty if the container already holds an allocation. The container keeps that allocation,
// whatever the pod's spec means by the current configuration.
func (h *Hook) request(ctx context.Context, c adjust.Container) (request.Pod, bool, error) {
	if _, held := h.opts.Ledger.Get(c.PodUID, c.Name); held {
		return request.Pod{}, true, nil
	}
	ref := pods.Ref{UID: c.PodUID, Namespace: c.Namespace, Name: c.Pod}
	pod, ok := h.opts.Pods.Cached(ref)
	if !ok {
		var err error
		if pod, err = h.opts.Pods.Get(ctx, ref); err != nil {
			return request.Pod{}, false, h.unknown(c, err)
		}
	}
	asked, err := request.Read(pod, h.opts.Config)
	if err != nil && h.namesNothing(c, pod) {
		foreign := request.Foreign(pod, c.Name, h.opts.Config.Node)
		return request.Pod{UID: c.PodUID, Containers: []request.Container{{Name: c.Name, Foreign: foreign}}}, false, nil
	}
	if err != nil {
		return request.Pod{}, false, c.Refuse(adjust.ReasonRequest, "%w", err)
	}
	asked.UID = c.PodUID
	if !asked.Asks(c.Name) {
		return asked, false, nil
	}
	if asked, err = h.obey(asked, pod); err != nil {
		return request.Pod{}, false, c.Refuse(adjust.ReasonRequest, "%w", err)
	}
	return asked, true, nil
}

// namesNothing reports whether a container names no resource and its pod holds GPUs. The container
// then requests nothing, even if the current configuration makes the requests of the pod's other
// containers invalid.
func (h *Hook) namesNothing(c adjust.Container, pod *corev1.Pod) bool {
	return h.opts.Ledger.Holds(c.PodUID) && len(request.Amounts(pod, c.Name, h.opts.Config.Dialects)) == 0
}

// unknown handles a container whose pod is unknown. A static pod's container starts without GPUs,
// since the API server itself may be a static pod. An agent's container also starts. unknown
// refuses any other container until the API server answers.
func (h *Hook) unknown(c adjust.Container, err error) error {
	if h.commands(c) {
		return nil
	}
	if source := c.PodAnnotations[pods.SourceAnnotation]; source == "file" || source == "http" {
		h.opts.Log.Warn("started a container of a static pod without GPUs: the pod's spec is unknown",
			"namespace", c.Namespace, "pod", c.Pod, "container", c.Name, "error", err)
		return nil
	}
	if errors.Is(err, pods.ErrNotFound) {
		return c.Refuse(adjust.ReasonPodUnknown, "%w: the pod was deleted, or a pod with the same name replaced it", err)
	}
	return c.Refuse(adjust.ReasonPodUnknown, "its pod's request is unknown (%w): kubelet will retry; if the refusals continue, check whether the node reaches the API server", err)
}

// grant allocates a container its part of a GPU, and persists the allocation before the
// container can exist.
func (h *Hook) grant(ctx context.Context, c adjust.Container, rt runtimes.Runtime, pod request.Pod, me liveContainer, id string) (adjust.Adjustment, error) {
	if err := h.opts.Rules.Check(c); err != nil {
		return adjust.Adjustment{}, err
	}
	if h.opts.Rules.Injection.InterposeWholeGPUs || h.asksForPart(c, pod) {
		if err := adjust.CheckAbove(c); err != nil { // before the container occupies capacity
			return adjust.Adjustment{}, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return adjust.Adjustment{}, lateRefusal(c, ctx.Err())
	}
	allocation, err := h.place(c, pod)
	if err != nil {
		return adjust.Adjustment{}, c.Refuse(adjust.ReasonPlacement, "%w", err)
	}
	given, err := h.assignment(c, allocation)
	if err != nil {
		return adjust.Adjustment{}, err
	}
	if err := h.checkMPS(c, given); err != nil {
		return adjust.Adjustment{}, err
	}
	a, err := h.opts.Rules.Grant(c, rt, given)
	if err != nil {
		return adjust.Adjustment{}, err
	}
	err = h.save(given, a.Preload)
	if errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w: free some of paths.run_dir's file system", err)
	}
	if err != nil {
		return adjust.Adjustment{}, c.Refuse(adjust.ReasonState, "the agent failed to write its limits: %w", err)
	}
	h.live[id] = me
	h.liveChanged()
	h.PodsChanged()
	return a, nil
}

// asksForPart reports whether a container requests less than a whole GPU on every GPU of
// the node.
func (h *Hook) asksForPart(c adjust.Container, pod request.Pod) bool {
	part := func(s request.Share) bool {
		return s.ComputePPM > 0 && s.ComputePPM < request.Whole ||
			!slices.ContainsFunc(h.opts.GPUs(), func(g gpu.GPU) bool { return s.Memory.On(g.MemoryBytes) >= g.MemoryBytes })
	}
	return slices.ContainsFunc(pod.Containers, func(asked request.Container) bool {
		return asked.Name == c.Name && slices.ContainsFunc(asked.Shares, part)
	})
}

func (h *Hook) place(c adjust.Container, pod request.Pod) (placement.Allocation, error) {
	if given, ok := h.opts.Ledger.Get(c.PodUID, c.Name); ok {
		return given, nil
	}
	given, err := h.opts.Ledger.Place(pod, c.Name)
	if err == nil {
		delete(h.reserved, c.PodUID)
	}
	return given, err
}

// assignment returns the assignment of an allocation, with the GPUs looked up by UUID.
func (h *Hook) assignment(c adjust.Container, allocation placement.Allocation) (adjust.Assignment, error) {
	dir, err := h.opts.Store.Dir(allocation.PodUID, allocation.Container)
	if err != nil {
		return adjust.Assignment{}, c.Refuse(adjust.ReasonState, "the agent failed to name the directory of its files: %w", err)
	}
	given := adjust.Assignment{Allocation: allocation, Dir: dir}
	known := h.opts.GPUs()
	for _, d := range allocation.Devices {
		k := slices.IndexFunc(known, func(g gpu.GPU) bool { return g.UUID == d.UUID })
		if k < 0 {
			return adjust.Assignment{}, c.Refuse(adjust.ReasonInjection, "its GPU %s is no longer in the node: recreate the pod", d.UUID)
		}
		if known[k].MemoryBytes == 0 {
			return adjust.Assignment{}, c.Refuse(adjust.ReasonInjection, "the driver does not describe its GPU %s (%s): kubelet will retry", d.UUID, known[k].Reason)
		}
		given.GPUs = append(given.GPUs, known[k])
	}
	return given, nil
}

// save writes the container's files. First, save writes the reservation of the pod's other
// containers.
func (h *Hook) save(given adjust.Assignment, preload []string) error {
	if all := h.opts.Ledger.Pod(given.PodUID); len(all) > 1 {
		if err := h.reserve(given.PodUID, all); err != nil {
			return err
		}
	}
	// Another program may have removed the directory.
	if err := os.MkdirAll(h.opts.Rules.AgentDir, 0o755); err != nil {
		return fmt.Errorf("make the directory of the agent's socket: %w", err)
	}
	if !h.opts.Rules.Interposes(given) {
		return h.opts.Store.SaveWhole(given.Allocation)
	}
	return h.opts.Store.Save(given.Allocation, given.GPUs, preload)
}

// checkStart refuses to start a container that the runtime created without the plugin, which was
// absent or too slow. checkStart also refuses a container with other files over nri-vgpu's mounts.
func (h *Hook) checkStart(c adjust.Container) error {
	dir, carries := ourfiles.Dir(c.Mounts)
	given, holds := h.opts.Ledger.Get(c.PodUID, c.Name)
	if holds {
		want, err := h.opts.Store.Dir(given.PodUID, given.Container)
		if err != nil || dir != want {
			return c.Refuse(adjust.ReasonUnadjusted, "it was created without its limits: kubelet will recreate the container")
		}
		return checkMounted(c, h.looks, h.opts.Proc)
	}
	if carries {
		return c.Refuse(adjust.ReasonUnadjusted, "the agent has released its part of a GPU: kubelet will recreate the container")
	}
	return h.checkUnadjusted(c, request.FromPod)
}

// checkUnadjusted refuses a container that has no allocation and no nri-vgpu mounts, but
// requests or sees a GPU.
func (h *Hook) checkUnadjusted(c adjust.Container, read reader) error {
	known, nothing := h.asksNothing(c, read)
	if known && !nothing {
		return c.Refuse(adjust.ReasonUnadjusted, "it requests a GPU and was created without its limits: kubelet will recreate the container")
	}
	if resource := h.foreign(c); resource != "" {
		return h.opts.Rules.CheckForeign(c, resource, h.ownGPUs())
	}
	if by := gpuaccess.ByVariable(c.Env); by != "" && !h.exempt(c, nothing) {
		return c.Refuse(adjust.ReasonUnadjusted, "it requests no GPU and was created with %s: kubelet will recreate the container", by)
	}
	return nil
}
