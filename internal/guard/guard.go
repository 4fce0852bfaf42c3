// SPDX-License-Identifier: Apache-2.0

// Package guard is a plugin that the container runtime itself starts, before any container, from
// the runtime's plugin directory. The guard runs behind the agent's plugin and fails closed. If the
// agent is late, hung or dead, the guard refuses containers that may want a GPU until the agent
// returns. All other containers start without a GPU.
//
// The guard queries neither the API server nor the driver nor the agent. The guard reads three
// small files, and allows everything if nri-vgpu was removed.
package guard

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	"github.com/containerd/nri/pkg/stub"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/container/runtimes"
	"github.com/nri-vgpu/nri-vgpu/internal/deadline"
	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/nri"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/pinned"
)

// Guard is the plugin that answers the runtime.
type Guard struct {
	// program is the guard's path. The guard's settings are in the directory of the program.
	program string
	proc    string

	read       watched[guardfile.Settings]
	asking     watched[[]guardfile.Pod]
	rt         atomic.Pointer[runtimes.Runtime]
	nriVersion func() string
	configured loop.Wakeup
	bound      *deadline.Bound
	looks      *ourfiles.Looks
	messages   *messages
}

// The guard reads small files of the host, and looks up paths in containers. Reads and look-ups may
// hang, and a runtime drops a plugin after a single late answer.
const (
	// patience is the guard's time limit for an answer. The agent, which answers before the guard,
	// and the stand-in, which answers after the guard, have equal limits. The runtime allows each
	// plugin 2 s.
	patience = 900 * time.Millisecond
	// maxAtWork bounds the number of concurrent requests. The runtime sends requests one by one, so
	// several requests are open only if some of them hang.
	maxAtWork = 64
)

// New returns a guard whose program has that path.
func New(program string) *Guard {
	return &Guard{
		program: program, proc: "/proc", configured: loop.NewWakeup(), nriVersion: func() string { return "" },
		bound: deadline.New(patience, maxAtWork), looks: ourfiles.NewLooks(), messages: newMessages(),
	}
}

// Run answers the runtime over the connection that the process inherited, until the connection is
// lost. A runtime that restarts starts a new guard.
func (g *Guard) Run(ctx context.Context, opts ...stub.Option) error {
	nrilog.Set(silent{}) // the runtime discards its plugins' output
	st, err := stub.New(g, append([]stub.Option{
		// Runtimes with NRI 0.12.4 or newer honour the policy. Older runtimes ignore the policy.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}),
		stub.WithLogger(silent{}),
		nri.Synchronizing(g.messages.synchronizing()),
	}, opts...)...)
	if err != nil {
		return fmt.Errorf("set up the guard: %w", err)
	}
	g.nriVersion = st.RuntimeNRIVersion
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go g.keepStatus(ctx)
	// The agent keeps the libraries open, too, and may be down for any time.
	go pinned.New(g.installDir, slog.New(slog.DiscardHandler)).Run(ctx)
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

// Configure detects the runtime, and subscribes to the events that the runtime supports.
func (g *Guard) Configure(_ context.Context, _, name, version string) (api.EventMask, error) {
	rt := runtimes.Detect(name, version, g.nriVersion())
	g.rt.Store(&rt)
	g.configured.Signal()
	var events api.EventMask
	events.Set(api.Event_RUN_POD_SANDBOX, api.Event_REMOVE_POD_SANDBOX, api.Event_CREATE_CONTAINER,
		api.Event_POST_CREATE_CONTAINER, api.Event_START_CONTAINER, api.Event_REMOVE_CONTAINER)
	if rt.Validation {
		events.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	}
	return events, nil
}

// Synchronize does nothing: the agent handles running containers.
func (g *Guard) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	return nil, nil
}

// answer is the guard's decision on a container.
type answer struct {
	hide bool
	err  error
}

// within judges a container within the time limit, and refuses the container after the limit.
func (g *Guard) within(ctx context.Context, c Container, judge func(rules) (bool, error)) (bool, error) {
	ctx, cancel := deadline.Before(ctx)
	defer cancel()
	a, late := deadline.Do(ctx, g.bound, func() answer {
		r, installed := g.rules()
		if !installed {
			return answer{}
		}
		hide, err := judge(r)
		return answer{hide, err}
	})
	if late != nil {
		return false, rules{program: g.program}.refuse(c, "the guard did not answer in time (%w): check the node's disks", late)
	}
	return a.hide, a.err
}

// RunPodSandbox refuses a pod that could prevent a restarting runtime from loading the guard. If a
// later plugin refuses a pod, containerd 2.4 does not report the pod's removal. The guard then
// counts the pod until the guard registers again. The guard is the last plugin by its index, except
// for the stand-in, which makes equal decisions.
func (g *Guard) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	size := pod.SizeVT()
	long, many := nri.CheckPod(pod), g.messages.check(pod.GetNamespace(), size)
	if long == nil && many == nil {
		g.messages.add(podKey(pod.GetId()), pod.GetNamespace(), size)
		return nil // even while files hang
	}
	_, err := g.within(ctx, describe(pod, nil), func(r rules) (bool, error) {
		if long == nil && r.trusts(pod.GetNamespace()) {
			return false, nil
		}
		return false, fmt.Errorf("nri-vgpu's guard refuses the pod: %w", cmp.Or(long, many))
	})
	if err == nil {
		g.messages.add(podKey(pod.GetId()), pod.GetNamespace(), size)
	}
	return err
}

// RemovePodSandbox drops the recorded size of a pod.
func (g *Guard) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	g.messages.remove(podKey(pod.GetId()))
	return nil
}

// CreateContainer judges a container after the changes of the earlier plugins.
func (g *Guard) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	c := describe(pod, container)
	hide, err := g.within(ctx, c, func(r rules) (bool, error) {
		err := nri.CheckContainer(container)
		if err == nil && !r.trusts(c.Namespace) {
			err = g.messages.check(c.Namespace, container.SizeVT())
		}
		if err != nil {
			return false, fmt.Errorf("nri-vgpu's guard refuses container %q: %w", c.Name, err)
		}
		return r.Judge(c, g.asks(r, c))
	})
	if err != nil || !hide {
		return nil, nil, err
	}
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv(gpuaccess.VisibleDevices, gpuaccess.NoDevices)
	return adjust, nil, nil
}

// PostCreateContainer counts the size of a container that the runtime has created. CreateContainer
// does not count the size, because containerd 2.4 reports no removal of a container that a plugin
// refused.
func (g *Guard) PostCreateContainer(_ context.Context, pod *api.PodSandbox, container *api.Container) error {
	g.messages.add(containerKey(container.GetId()), pod.GetNamespace(), container.SizeVT())
	return nil
}

// RemoveContainer drops the recorded size of a container.
func (g *Guard) RemoveContainer(_ context.Context, _ *api.PodSandbox, container *api.Container) error {
	g.messages.remove(containerKey(container.GetId()))
	return nil
}

// ValidateContainerAdjustment judges the joint result of all plugins, with the owner of each
// change. Only this request shows the CDI devices of all plugins. A mark counts only if the agent
// owns it.
func (g *Guard) ValidateContainerAdjustment(ctx context.Context, req *api.ValidateContainerAdjustmentRequest) error {
	_, err := g.within(ctx, describe(req.GetPod(), req.GetContainer()), func(r rules) (bool, error) {
		c := describe(req.GetPod(), nri.Merge(req.GetContainer(), req.GetAdjust()))
		if by := req.GetOwners(); by != nil {
			owner, _ := by.AnnotationOwner(req.GetContainer().GetId(), paths.AdjustedAnnotation)
			c.Marked = c.Marked && owner == r.Plugin
		}
		hide, err := r.Judge(c, g.asks(r, c))
		if err == nil && hide {
			err = r.refuse(c, "no plugin has hidden the GPUs from the container")
		}
		return false, err
	})
	return err
}

// StartContainer refuses a container in which its limits are hidden or could be removed.
func (g *Guard) StartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	c := describe(pod, container)
	_, err := g.within(ctx, c, func(r rules) (bool, error) { return false, r.JudgeStart(c, g.looks, g.proc) })
	return err
}

// describe extracts the fields of NRI's messages on which the guard decides.
func describe(pod *api.PodSandbox, container *api.Container) Container {
	c := Container{
		PodUID:         pod.GetUid(),
		Namespace:      pod.GetNamespace(),
		Pod:            pod.GetName(),
		Name:           container.GetName(),
		Env:            container.GetEnv(),
		PodAnnotations: pod.GetAnnotations(),
		Annotations:    container.GetAnnotations(),
		CDIDevices:     nri.CDIDevices(container),
		Devices:        nri.DevicePaths(container),
		PID:            int(container.GetPid()),
	}
	// A user may write an annotation with the name of the mark on the pod.
	_, marked := container.GetAnnotations()[paths.AdjustedAnnotation]
	_, forged := pod.GetAnnotations()[paths.AdjustedAnnotation]
	c.Marked = marked && !forged
	for _, m := range container.GetMounts() {
		c.Mounts = append(c.Mounts, ourfiles.Mount{Source: m.GetSource(), Destination: m.GetDestination(), Options: m.GetOptions()})
	}
	return c
}

// silent is a log that discards everything.
type silent struct{}

func (silent) Debugf(context.Context, string, ...any) {}
func (silent) Infof(context.Context, string, ...any)  {}
func (silent) Warnf(context.Context, string, ...any)  {}
func (silent) Errorf(context.Context, string, ...any) {}
