package hook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/runtimes"
)

// events are what the plugin subscribes to. All of them are known since NRI
// 0.2: a runtime rejects a plugin that asks for one that it does not know.
// That is why the mask is spelled out: the stub would ask for every event for
// which its plugin has a method.
var events = []api.Event{
	api.Event_RUN_POD_SANDBOX,
	api.Event_CREATE_CONTAINER,
	api.Event_START_CONTAINER,
	api.Event_POST_START_CONTAINER,
	api.Event_STOP_CONTAINER,
	api.Event_REMOVE_CONTAINER,
	api.Event_STOP_POD_SANDBOX,
	api.Event_REMOVE_POD_SANDBOX,
}

// subscription is what to ask of a runtime.
func subscription(rt Runtime) api.EventMask {
	var m api.EventMask
	m.Set(events...)
	if rt.Validation {
		m.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	}
	return m
}

// edge speaks NRI for a Hook, during one connection.
type edge struct {
	*Hook
	// nriVersion gives the runtime's NRI version, once it is known.
	nriVersion func() string
	// synced is closed when the runtime has told its containers.
	synced chan struct{}
}

// Configure learns which runtime this is.
func (e *edge) Configure(_ context.Context, _, name, version string) (api.EventMask, error) {
	rt := runtimes.Detect(name, version, e.nriVersion())
	e.runtime.Store(&rt)
	e.Log.Info("connected to the container runtime", "runtime", name, "version", version, "nri", e.nriVersion(), "cdi", rt.CDI, "validation", rt.Validation)
	return subscription(rt), nil
}

// Synchronize takes the runtime's containers over.
func (e *edge) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	begin := time.Now()
	sandboxes := make(map[string]*api.PodSandbox, len(pods))
	for _, pod := range pods {
		sandboxes[pod.GetId()] = pod
	}
	var running []runningContainer
	for _, c := range containers {
		if c.GetState() == api.ContainerState_CONTAINER_STOPPED {
			continue
		}
		running = append(running, runningContainer{
			Container: describe(sandboxes[c.GetPodSandboxId()], c), id: c.GetId(), sandbox: c.GetPodSandboxId(),
			created: c.GetState() == api.ContainerState_CONTAINER_CREATED,
		})
	}
	done, late := within(ctx, e.Hook, func(ctx context.Context) error { return e.synchronize(ctx, running) })
	err := errors.Join(done, late)
	e.Metrics.observe("Synchronize", outcomeDone.or(err), begin)
	if err != nil {
		// The runtime drops us, and is connected to again.
		return nil, fmt.Errorf("take over the runtime's containers: %w", err)
	}
	e.setRegistered(true)
	close(e.synced)
	return nil, nil
}

// RunPodSandbox refuses a pod that the next agent might not be told of.
func (e *edge) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	begin := time.Now()
	err := runtimes.CheckPod(pod)
	e.Metrics.observe("RunPodSandbox", outcomeDone.or(err), begin)
	if err != nil {
		e.Log.Warn("refused a pod", "namespace", pod.GetNamespace(), "pod", pod.GetName(), "error", err)
		return fmt.Errorf("nri-vgpu refuses the pod: %w", err)
	}
	return nil
}

// CreateContainer adjusts a container, or refuses it.
func (e *edge) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	begin := time.Now()
	c := describe(pod, container)
	done, late := within(ctx, e.Hook, func(ctx context.Context) created {
		if err := runtimes.CheckContainer(container); err != nil {
			return created{result: outcomeRefused, err: c.refuse(ReasonRequest, "%w", err)}
		}
		return e.createContainer(ctx, c, container.GetId(), pod.GetId())
	})
	if late != nil {
		done = created{result: outcomeRefused, err: c.lateRefusal(late)}
	}
	e.Metrics.observe("CreateContainer", done.result, begin)
	return done.adjust, nil, e.report(c, done.result, done.err)
}

// created is what came of the creation of a container.
type created struct {
	adjust *api.ContainerAdjustment
	result outcome
	err    error
}

func (e *edge) createContainer(ctx context.Context, c Container, id, sandbox string) created {
	a, result, err := e.create(ctx, c, id, sandbox)
	if err != nil {
		return created{result: result, err: err}
	}
	adjust, err := c.convert(a)
	return created{adjust, result.or(err), err}
}

// StartContainer refuses a container that was created without us.
func (e *edge) StartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	begin := time.Now()
	c := describe(pod, container)
	err, late := within(ctx, e.Hook, func(ctx context.Context) error {
		fresh := e.started(ctx, c, container.GetId(), pod.GetId())
		err := e.checkStart(c)
		if err != nil && fresh {
			e.stopped(container.GetId())
		}
		return err
	})
	if late != nil {
		err = c.lateRefusal(late)
	}
	result := outcomeDone.or(err)
	e.Metrics.observe("StartContainer", result, begin)
	return e.report(c, result, err)
}

// PostStartContainer notes that a container lives, should we have registered
// while it was being started.
func (e *edge) PostStartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	e.note(ctx, "PostStartContainer", func(ctx context.Context) {
		e.started(ctx, describe(pod, container), container.GetId(), pod.GetId())
	})
	return nil
}

// note does what follows from what the runtime tells. What is late is done later; what
// is not done at all, a sweep finds out.
func (e *edge) note(ctx context.Context, handler string, work func(context.Context)) {
	begin := time.Now()
	_, late := within(ctx, e.Hook, func(ctx context.Context) bool { work(ctx); return true })
	if late != nil {
		e.Log.Error("the runtime was answered before what it told was taken in", "handler", handler, "error", late)
	}
	e.Metrics.observe(handler, outcomeDone, begin)
}

func (e *edge) report(c Container, result outcome, err error) error {
	log := e.Log.With("namespace", c.Namespace, "pod", c.Pod, "container", c.Name)
	if e.Outcome != nil && (err != nil || result == outcomeGranted) {
		e.Outcome(c.PodUID, c.Name, err != nil)
	}
	switch {
	case err != nil:
		e.Metrics.refused(err)
		e.tellRefusal(c, err)
		log.Warn("refused a container", "error", err)
	case result == outcomeGranted:
		e.tellGrant(c)
		log.Info("gave a container its part of a GPU")
	default:
		log.Debug("looked at a container", "outcome", result)
	}
	return err
}

// StopContainer notes that a container has ended. Its pod may be empty.
func (e *edge) StopContainer(ctx context.Context, _ *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	e.note(ctx, "StopContainer", func(context.Context) { e.stopped(container.GetId()) })
	return nil, nil
}

// RemoveContainer notes that a container has ended.
func (e *edge) RemoveContainer(ctx context.Context, _ *api.PodSandbox, container *api.Container) error {
	e.note(ctx, "RemoveContainer", func(context.Context) { e.stopped(container.GetId()) })
	return nil
}

// StopPodSandbox notes that all of a pod's containers have ended.
func (e *edge) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	e.note(ctx, "StopPodSandbox", func(context.Context) { e.sandboxStopped(pod.GetId(), pod.GetUid()) })
	return nil
}

// RemovePodSandbox notes that all of a pod's containers have ended.
func (e *edge) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	e.note(ctx, "RemovePodSandbox", func(context.Context) { e.sandboxStopped(pod.GetId(), pod.GetUid()) })
	return nil
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
		Assignment:     container.GetAnnotations()[AssignmentAnnotation],
		CDIDevices:     runtimes.CDIDevices(container),
		Devices:        runtimes.DevicePaths(container),
		PID:            int(container.GetPid()),
	}
	// What a pod says under this name, a user has written.
	_, forged := pod.GetAnnotations()[layout.AdjustedAnnotation]
	c.Exempted = !forged && container.GetAnnotations()[layout.AdjustedAnnotation] == string(outcomeExempt)
	for _, m := range container.GetMounts() {
		c.Mounts = append(c.Mounts, Mount{Source: m.GetSource(), Destination: m.GetDestination(), Options: m.GetOptions()})
	}
	return c
}

// convert says an adjustment in NRI's words.
func (c Container) convert(a Adjustment) (*api.ContainerAdjustment, error) {
	adjust := &api.ContainerAdjustment{}
	for _, v := range a.Env {
		adjust.AddEnv(v.Name, v.Value)
	}
	for _, name := range a.CDIDevices {
		adjust.AddCDIDevice(&api.CDIDevice{Name: name})
	}
	for _, m := range a.Mounts {
		adjust.AddMount(&api.Mount{Source: m.Source, Destination: m.Destination, Type: "bind", Options: m.Options})
	}
	for _, path := range a.DeviceNodes {
		device, err := deviceNode(path)
		if err != nil {
			return nil, c.refuse(ReasonInjection, "%w: see injection.direct.devices in config.toml", err)
		}
		adjust.AddDevice(device)
	}
	for key, value := range a.Annotations {
		adjust.AddAnnotation(key, value)
	}
	return adjust, nil
}

// deviceNode describes a character device of the host.
func deviceNode(path string) (*api.LinuxDevice, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return nil, fmt.Errorf("device node %s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return nil, fmt.Errorf("%s is not a character device", path)
	}
	return &api.LinuxDevice{
		Path:     path,
		Type:     "c",
		Major:    int64(unix.Major(stat.Rdev)),
		Minor:    int64(unix.Minor(stat.Rdev)),
		FileMode: api.FileMode(os.FileMode(0o666)),
	}, nil
}
