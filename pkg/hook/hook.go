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

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/deadline"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/pkg/volcano"
)

// Pods are the node's pods as the API server has them.
type Pods interface {
	// Cached gives a pod without waiting for anything.
	Cached(pods.Ref) (*corev1.Pod, bool)
	// Get may ask the API server, for a bounded time.
	Get(context.Context, pods.Ref) (*corev1.Pod, error)
	Alive(uid string) bool
	// List gives all pods of the node.
	List() []*corev1.Pod
	HasSynced() bool
}

// Options of a Hook.
type Options struct {
	Config config.Config
	Rules  Rules
	Pods   Pods
	Ledger *placement.Ledger
	// GPUs gives the inventory as last seen, without asking the driver.
	GPUs    func() []gpu.GPU
	Store   *Store
	Metrics *Metrics
	// Events, where set, tells of what was refused. It must not block.
	Events Events
	// MPS, where set, tells of the Multi-Process Service.
	MPS MPS
	// Room, where set, is told who finds none.
	Room Room
	// Proc is where the host's processes are seen, /proc if empty.
	Proc string
	// Changed, where set, is called when Registered changes; it must not
	// block.
	Changed func()
	// Outcome, where set, is told of each container of which it was decided
	// whether it may be; it must not block.
	Outcome func(podUID, container string, refused bool)
	// LiveChanged, where set, is called when LiveDirs changes; it must not block.
	LiveChanged func()
	Log         *slog.Logger
}

// Hook answers the container runtime. Its state lives in the ledger and in
// the store; in memory alone is which containers the runtime has now.
type Hook struct {
	Options

	runtime    atomic.Pointer[Runtime]
	registered atomic.Bool
	handlers   inFlight
	bound      *deadline.Bound
	looks      *injected.Looks
	// unadjustedCount is the number of unadjusted, without mu.
	unadjustedCount atomic.Int64
	// podsChanged wakes KeepAsking.
	podsChanged chan struct{}
	// askedBefore is whether each pod asks that was there when KeepAsking last looked.
	askedBefore map[*corev1.Pod]bool

	// mu makes one step of what belongs together: a place in the ledger, its
	// files, and that its container lives.
	mu   sync.Mutex
	live map[string]liveContainer // by the runtime's id
	// reserved are the pods, by UID, whose reservation has what the ledger has.
	reserved map[string]bool
	// synchronized: the runtime has told which containers it has.
	synchronized bool
	// compared: what the ledger has was held against the pods' specs.
	compared bool
	// unaudited are running containers that carry no injection, to be looked
	// at once the pods are known.
	unaudited []runningContainer
	// unadjusted are those that were found to run without their limits, by the
	// runtime's id.
	unadjusted map[string]liveContainer
}

// liveContainer is a container with a part of a GPU that may have processes.
type liveContainer struct {
	podUID, name, sandbox string
	// ours are its mounts that detection looks for.
	ours []Mount
	// process is known once the container has been created in full.
	process firstProcess
	// created is when its creation was asked for, by this agent.
	created time.Time
}

// New gives a hook with the state that the last agent left: what its files
// say is taken. Files that cannot be trusted are put aside, and named in the
// log. Call it before the runtime is asked to register.
func New(opts Options) *Hook {
	h := &Hook{
		Options: opts, live: map[string]liveContainer{}, reserved: map[string]bool{}, podsChanged: make(chan struct{}, 1),
		bound: deadline.New(handlerPatience, maxHandlers), looks: injected.NewLooks(),
	}
	h.Proc = cmp.Or(h.Proc, "/proc")
	h.runtime.Store(&Runtime{Name: "the runtime", Version: "?"})
	allocations, errs := opts.Store.Load()
	for _, err := range errs {
		h.Log.Error("the files of a container cannot be trusted", "error", err)
	}
	for _, a := range allocations {
		if err := h.Ledger.Restore(a); err != nil {
			h.Log.Error("an assignment was not restored", "error", err)
		}
	}
	return h
}

// Registered tells whether the runtime has the plugin and has told it all
// containers.
func (h *Hook) Registered() bool { return h.registered.Load() }

func (h *Hook) setRegistered(registered bool) {
	if h.registered.Swap(registered) != registered && h.Changed != nil {
		h.Changed()
	}
}

// Stuck gives how long the longest running handler has been running.
func (h *Hook) Stuck() time.Duration { return h.handlers.longest(time.Now()) }

// create decides on a container that is being created, and takes what it
// needs. The outcome is a label for metrics.
func (h *Hook) create(ctx context.Context, c Container, id, sandbox string) (Adjustment, outcome, error) {
	rt := *h.runtime.Load()
	pod, wants, err := h.request(ctx, c)
	if err != nil {
		return Adjustment{}, outcomeRefused, err
	}
	if !wants && h.exempt(c, pod.UID != "") {
		return Adjustment{Annotations: mark(outcomeExempt)}, outcomeExempt, nil
	}
	if !wants {
		a, err := h.Rules.Withhold(c, rt)
		a.Annotations = mark(outcomeWithheld)
		return a, outcomeWithheld.or(err), err
	}
	a, err := h.grant(ctx, c, rt, pod, liveContainer{podUID: c.PodUID, name: c.Name, sandbox: sandbox, created: time.Now()}, id)
	return a, outcomeGranted.or(err), err
}

// asks tells whether a container gets GPUs. One that the spec did not have
// when it was read, an ephemeral one say, gets none.
func asks(pod request.Pod, container string) bool {
	return slices.ContainsFunc(pod.Containers, func(c request.Container) bool {
		return c.Name == container && c.Kind != request.Ephemeral && len(c.Shares) > 0
	})
}

// request finds out what a pod asks for, and whether the container is to get
// a part of it. The pod is empty where its spec cannot be had: a container that
// was given something before gets that again.
func (h *Hook) request(ctx context.Context, c Container) (request.Pod, bool, error) {
	ref := pods.Ref{UID: c.PodUID, Namespace: c.Namespace, Name: c.Pod}
	pod, ok := h.Pods.Cached(ref)
	if !ok {
		if _, held := h.Ledger.Get(c.PodUID, c.Name); held {
			return request.Pod{}, true, nil
		}
		var err error
		if pod, err = h.Pods.Get(ctx, ref); err != nil {
			return request.Pod{}, false, h.unknown(c, err)
		}
	}
	asked, err := request.Read(pod, h.Config)
	if err != nil {
		return request.Pod{}, false, c.refuse(ReasonRequest, "%w", err)
	}
	asked.UID = c.PodUID
	if !asks(asked, c.Name) {
		return asked, false, nil
	}
	if _, held := h.Ledger.Get(c.PodUID, c.Name); held {
		return asked, true, nil // it keeps its GPUs, whatever annotations say now
	}
	if asked, err = volcano.Obey(asked, pod, h.GPUs(), h.Config); err != nil {
		return request.Pod{}, false, c.refuse(ReasonRequest, "%w", err)
	}
	return asked, true, nil
}

// unknown is what happens to a container of whose pod nothing is known. One
// of a static pod starts without GPUs, as the API server itself may be such a
// pod, and so does an agent. All others are refused until the API server answers.
func (h *Hook) unknown(c Container, err error) error {
	if h.commands(c) {
		return nil
	}
	if source := c.PodAnnotations[pods.SourceAnnotation]; source == "file" || source == "http" {
		h.Log.Warn("a static pod's container starts without GPUs: what it asks for is not known",
			"namespace", c.Namespace, "pod", c.Pod, "container", c.Name, "error", err)
		return nil
	}
	if errors.Is(err, pods.ErrNotFound) {
		return c.refuse(ReasonPodUnknown, "%w: it was deleted, or replaced by another of its name", err)
	}
	return c.refuse(ReasonPodUnknown, "what it asks for is not known (%w): kubelet will try again; if it goes on, see whether the node reaches the API server", err)
}

// grant gives a container its part of a GPU, and writes it down before the
// container can exist.
func (h *Hook) grant(ctx context.Context, c Container, rt Runtime, pod request.Pod, me liveContainer, id string) (Adjustment, error) {
	if err := h.Rules.Check(c); err != nil {
		return Adjustment{}, err
	}
	if h.Rules.Injection.InterposeWholeGPUs || h.asksForPart(c, pod) {
		if err := checkAbove(c); err != nil { // before it takes anybody's room
			return Adjustment{}, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return Adjustment{}, c.lateRefusal(ctx.Err())
	}
	allocation, err := h.place(c, pod)
	if err != nil {
		return Adjustment{}, c.refuse(ReasonPlacement, "%w", err)
	}
	given, err := h.assignment(c, allocation)
	if err != nil {
		return Adjustment{}, err
	}
	if err := h.checkMPS(c, given); err != nil {
		return Adjustment{}, err
	}
	a, err := h.Rules.Grant(c, rt, given)
	if err != nil {
		return Adjustment{}, err
	}
	err = h.save(given, a.Preload)
	if errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w: free some of paths.run_dir's file system", err)
	}
	if err != nil {
		return Adjustment{}, c.refuse(ReasonState, "its limits cannot be written: %w", err)
	}
	h.live[id] = me
	h.liveChanged()
	h.PodsChanged()
	return a, nil
}

// asksForPart reports whether a container asks for less than a GPU, whichever it gets.
func (h *Hook) asksForPart(c Container, pod request.Pod) bool {
	part := func(s request.Share) bool {
		return s.ComputePPM > 0 && s.ComputePPM < request.Whole ||
			!slices.ContainsFunc(h.GPUs(), func(g gpu.GPU) bool { return s.Memory.On(g.MemoryBytes) >= g.MemoryBytes })
	}
	return slices.ContainsFunc(pod.Containers, func(asked request.Container) bool {
		return asked.Name == c.Name && slices.ContainsFunc(asked.Shares, part)
	})
}

func (h *Hook) place(c Container, pod request.Pod) (placement.Allocation, error) {
	if given, ok := h.Ledger.Get(c.PodUID, c.Name); ok {
		return given, nil
	}
	given, err := h.Ledger.Place(pod, c.Name)
	if err == nil {
		delete(h.reserved, c.PodUID)
	}
	return given, err
}

// assignment looks up the GPUs of an allocation.
func (h *Hook) assignment(c Container, allocation placement.Allocation) (Assignment, error) {
	dir, err := h.Store.Dir(allocation.PodUID, allocation.Container)
	if err != nil {
		return Assignment{}, c.refuse(ReasonState, "its files have no place: %w", err)
	}
	given := Assignment{Allocation: allocation, Dir: dir}
	known := h.GPUs()
	for _, d := range allocation.Devices {
		k := slices.IndexFunc(known, func(g gpu.GPU) bool { return g.UUID == d.UUID })
		if k < 0 {
			return Assignment{}, c.refuse(ReasonInjection, "its GPU %s is no longer in the node: delete the pod to have it placed anew", d.UUID)
		}
		given.GPUs = append(given.GPUs, known[k])
	}
	return given, nil
}

// save writes the container's files, and before them what its pod's other containers
// were given with it.
func (h *Hook) save(given Assignment, preload []string) error {
	if all := h.Ledger.Pod(given.PodUID); len(all) > 1 {
		if err := h.reserve(given.PodUID, all); err != nil {
			return err
		}
	}
	// Somebody may have emptied the directory of all that is ours.
	if err := os.MkdirAll(h.Rules.AgentDir, 0o755); err != nil {
		return fmt.Errorf("make the directory of the agent's socket: %w", err)
	}
	if !h.Rules.interposes(given) {
		return h.Store.SaveWhole(given.Allocation)
	}
	return h.Store.Save(given.Allocation, given.GPUs, preload)
}

// checkStart refuses to start a container that was created without us, while
// the plugin was away or too slow, or in which what we gave it is hidden.
func (h *Hook) checkStart(c Container) error {
	dir, carries := injected.Dir(c.Mounts)
	given, holds := h.Ledger.Get(c.PodUID, c.Name)
	if holds {
		want, err := h.Store.Dir(given.PodUID, given.Container)
		if err != nil || dir != want {
			return c.refuse(ReasonUnadjusted, "it was created without its limits: kubelet will create it anew")
		}
		return c.checkMounted(h.looks, h.Proc)
	}
	if carries {
		return c.refuse(ReasonUnadjusted, "its part of a GPU was given back meanwhile: kubelet will create it anew")
	}
	return h.checkUnadjusted(c, request.FromPod)
}

// checkUnadjusted looks at a container that holds nothing and carries nothing.
func (h *Hook) checkUnadjusted(c Container, read reader) error {
	known, nothing := h.asksNothing(c, read)
	if known && !nothing {
		return c.refuse(ReasonUnadjusted, "it asks for a GPU and was created without its limits: kubelet will create it anew")
	}
	if by := reach.ByVariable(c.Env); by != "" && !h.exempt(c, nothing) {
		return c.refuse(ReasonUnadjusted, "it asks for no GPU and was created with %s: kubelet will create it anew", by)
	}
	return nil
}
