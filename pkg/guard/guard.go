// Package guard is a plugin that the container runtime starts itself, before
// any container, from its directory of plugins. It stands behind the agent's
// plugin and sees to it that a container which the agent did not answer for,
// as it is late, hung or dead, gets no GPU: what may want one is refused until
// the agent is back, all else goes on without.
//
// It asks nobody: no API server, no driver, no agent. It reads three small
// files, and where nri-vgpu was removed it lets everything pass.
package guard

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/stub"

	"github.com/nri-vgpu/nri-vgpu/pkg/deadline"
	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
	"github.com/nri-vgpu/nri-vgpu/pkg/runtimes"
)

// Guard answers the runtime.
type Guard struct {
	// program is where the guard is installed; its settings lie beside it.
	program string
	proc    string

	read       watched[Settings]
	asking     watched[[]Pod]
	rt         atomic.Pointer[runtimes.Runtime]
	nriVersion func() string
	configured chan struct{}
	bound      *deadline.Bound
	looks      *injected.Looks
}

// The guard reads small files of the host, and looks up paths in containers: both may
// hang, and a runtime drops a plugin that once answers late.
const (
	// patience is how long the guard may take. The agent has as long before it, and
	// the stand-in behind it: the runtime gives each its own 2 s.
	patience = 900 * time.Millisecond
	// maxAtWork is how many requests may be at work at once. The runtime makes one at
	// a time; more are there only if some hang.
	maxAtWork = 64
)

// New gives a guard whose program is at that path.
func New(program string) *Guard {
	return &Guard{
		program: program, proc: "/proc", configured: make(chan struct{}, 1), nriVersion: func() string { return "" },
		bound: deadline.New(patience, maxAtWork), looks: injected.NewLooks(),
	}
}

// Run answers the runtime over the connection that it gave the process, until
// that is lost: a runtime that starts again starts a guard, too.
func (g *Guard) Run(ctx context.Context, opts ...stub.Option) error {
	nrilog.Set(silent{}) // the runtime reads nothing that its plugins print
	st, err := stub.New(g, append([]stub.Option{
		// Of a runtime with NRI 0.12.4 or newer. Older ones ignore it.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}),
		stub.WithLogger(silent{}),
		runtimes.Synchronizing(func(told *api.SynchronizeRequest) { told.Pods, told.Containers = nil, nil }),
	}, opts...)...)
	if err != nil {
		return fmt.Errorf("set up the guard: %w", err)
	}
	g.nriVersion = st.RuntimeNRIVersion
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go g.keepStatus(ctx)
	if err := st.Run(ctx); err != nil {
		return fmt.Errorf("serve the runtime: %w", err)
	}
	return nil
}

func (g *Guard) runtime() string {
	rt := g.rt.Load()
	if rt == nil {
		return ""
	}
	return rt.Name + " " + rt.Version
}

// Configure learns which runtime this is, and asks for the events that it
// knows.
func (g *Guard) Configure(_ context.Context, _, name, version string) (api.EventMask, error) {
	rt := runtimes.Detect(name, version, g.nriVersion())
	g.rt.Store(&rt)
	select {
	case g.configured <- struct{}{}:
	default:
	}
	var events api.EventMask
	events.Set(api.Event_RUN_POD_SANDBOX, api.Event_CREATE_CONTAINER, api.Event_START_CONTAINER)
	if rt.Validation {
		events.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	}
	return events, nil
}

// Synchronize is asked for by the runtime; what runs is the agent's business.
func (g *Guard) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

// answer is what a guard says of a container.
type answer struct {
	hide bool
	err  error
}

// within judges a container in time, or refuses it.
func (g *Guard) within(ctx context.Context, c Container, judge func(Settings) (bool, error)) (bool, error) {
	ctx, cancel := deadline.Before(ctx)
	defer cancel()
	a, late := deadline.Do(ctx, g.bound, func() answer {
		s, installed := g.settings()
		if !installed {
			return answer{}
		}
		hide, err := judge(s)
		return answer{hide, err}
	})
	if late != nil {
		return false, Settings{program: g.program}.refuse(c, "it could not be decided on: %w: see whether the node's disks answer", late)
	}
	return a.hide, a.err
}

// RunPodSandbox refuses a pod that the runtime's next guard might not be told of.
func (g *Guard) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	long := runtimes.CheckPod(pod)
	if long == nil {
		return nil // whatever hangs
	}
	_, err := g.within(ctx, describe(pod, nil), func(Settings) (bool, error) {
		return false, fmt.Errorf("nri-vgpu's guard refuses the pod: %w", long)
	})
	return err
}

// CreateContainer judges a container as the plugins before have left it.
func (g *Guard) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	c := describe(pod, container)
	hide, err := g.within(ctx, c, func(s Settings) (bool, error) {
		if err := runtimes.CheckContainer(container); err != nil {
			return false, fmt.Errorf("nri-vgpu's guard refuses container %q: %w", c.Name, err)
		}
		return s.Judge(c, g.asks(s, c))
	})
	if err != nil || !hide {
		return nil, nil, err
	}
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv(reach.VisibleDevices, reach.NoDevices)
	return adjust, nil, nil
}

// ValidateContainerAdjustment judges what all plugins together made of a
// container, and knows who did what: CDI devices are seen nowhere else, and a
// mark counts only if it is the agent's.
func (g *Guard) ValidateContainerAdjustment(ctx context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	_, err := g.within(ctx, describe(req.GetPod(), req.GetContainer()), func(s Settings) (bool, error) {
		c := describe(req.GetPod(), runtimes.Merge(req.GetContainer(), req.GetAdjust()))
		if by := req.GetOwners(); by != nil {
			owner, _ := by.AnnotationOwner(req.GetContainer().GetId(), layout.AdjustedAnnotation)
			c.Marked = c.Marked && owner == s.Plugin
		}
		hide, err := s.Judge(c, g.asks(s, c))
		if err == nil && hide {
			err = s.refuse(c, "no plugin has hidden the GPUs from it")
		}
		return false, err
	})
	return err
}

// StartContainer looks whether a container will find its limits.
func (g *Guard) StartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	c := describe(pod, container)
	_, err := g.within(ctx, c, func(s Settings) (bool, error) { return false, s.JudgeStart(c, g.looks, g.proc) })
	return err
}

// describe takes from NRI's messages what decides.
func describe(pod *api.PodSandbox, container *api.Container) Container {
	c := Container{
		PodUID:         pod.GetUid(),
		Namespace:      pod.GetNamespace(),
		Pod:            pod.GetName(),
		Name:           container.GetName(),
		Env:            container.GetEnv(),
		PodAnnotations: pod.GetAnnotations(),
		Annotations:    container.GetAnnotations(),
		CDIDevices:     runtimes.CDIDevices(container),
		Devices:        runtimes.DevicePaths(container),
		PID:            int(container.GetPid()),
	}
	// What a pod says under this name, a user has written.
	_, marked := container.GetAnnotations()[layout.AdjustedAnnotation]
	_, forged := pod.GetAnnotations()[layout.AdjustedAnnotation]
	c.Marked = marked && !forged
	for _, m := range container.GetMounts() {
		c.Mounts = append(c.Mounts, injected.Mount{Source: m.GetSource(), Destination: m.GetDestination(), Options: m.GetOptions()})
	}
	return c
}

// silent is a log that nobody reads.
type silent struct{}

func (silent) Debugf(context.Context, string, ...any) {}
func (silent) Infof(context.Context, string, ...any)  {}
func (silent) Warnf(context.Context, string, ...any)  {}
func (silent) Errorf(context.Context, string, ...any) {}
