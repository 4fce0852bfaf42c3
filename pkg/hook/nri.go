// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/container/runtimes"
	"github.com/nri-vgpu/nri-vgpu/internal/nri"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

// events are the NRI events that the plugin subscribes to. Every NRI release since 0.2 has all
// these events: a runtime rejects a plugin that subscribes to an unknown event. Without an explicit
// mask, the stub would subscribe to every event for which the plugin has a method.
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

// subscription returns the events to subscribe to at a runtime.
func subscription(rt runtimes.Runtime) api.EventMask {
	var m api.EventMask
	m.Set(events...)
	if rt.Validation {
		m.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	}
	return m
}

// edge implements NRI for a Hook, during one connection.
type edge struct {
	*Hook
	// nriVersion returns the NRI version that the runtime has reported.
	nriVersion func() string
	// synced is closed when the runtime has listed its containers.
	synced chan struct{}
}

// Configure records the name, version and features of the runtime.
func (e *edge) Configure(_ context.Context, _, name, version string) (api.EventMask, error) {
	rt := runtimes.Detect(name, version, e.nriVersion())
	e.runtime.Store(&rt)
	e.opts.Log.Info("connected to the container runtime", "runtime", name, "version", version, "nri", e.nriVersion(), "cdi", rt.CDI, "validation", rt.Validation)
	return subscription(rt), nil
}

// Synchronize takes over the runtime's containers.
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
		described := describe(sandboxes[c.GetPodSandboxId()], c)
		if sandboxes[c.GetPodSandboxId()] == nil {
			described = e.withPod(described)
		}
		running = append(running, runningContainer{
			Container: described, id: c.GetId(), sandbox: c.GetPodSandboxId(),
			created: c.GetState() == api.ContainerState_CONTAINER_CREATED,
		})
	}
	done, late := within(ctx, e.Hook, func(ctx context.Context) error { return e.synchronize(ctx, running) })
	err := errors.Join(done, late)
	e.opts.Metrics.observe("Synchronize", outcomeDone.or(err), begin)
	if err != nil {
		// The runtime drops the plugin, and Serve reconnects.
		return nil, fmt.Errorf("take over the runtime's containers: %w", err)
	}
	e.setRegistered(true)
	close(e.synced)
	return nil, nil
}

// RunPodSandbox refuses a pod that is too large for the runtime to list to the next
// agent.
func (e *edge) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	begin := time.Now()
	err := nri.CheckPod(pod)
	e.opts.Metrics.observe("RunPodSandbox", outcomeDone.or(err), begin)
	if err != nil {
		e.opts.Log.Warn("refused a pod", "namespace", pod.GetNamespace(), "pod", pod.GetName(), "error", err)
		return fmt.Errorf("nri-vgpu refuses the pod: %w", err)
	}
	return nil
}

// CreateContainer adjusts a container, or refuses it.
func (e *edge) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	begin := time.Now()
	c := describe(pod, container)
	done, late := within(ctx, e.Hook, func(ctx context.Context) created {
		if err := nri.CheckContainer(container); err != nil {
			return created{result: outcomeRefused, err: c.Refuse(adjust.ReasonRequest, "%w", err)}
		}
		return e.createContainer(ctx, c, container.GetId(), pod.GetId())
	})
	if late != nil {
		done = created{result: outcomeRefused, err: lateRefusal(c, late)}
	}
	e.opts.Metrics.observe("CreateContainer", done.result, begin)
	return done.adjust, nil, e.report(c, done.result, done.err)
}

// created is the result of a container's creation.
type created struct {
	adjust *api.ContainerAdjustment
	result outcome
	err    error
}

func (e *edge) createContainer(ctx context.Context, c adjust.Container, id, sandbox string) created {
	a, result, err := e.create(ctx, c, id, sandbox)
	if err != nil {
		return created{result: result, err: err}
	}
	adjust, err := convert(c, a)
	return created{adjust, result.or(err), err}
}

// StartContainer refuses a container that the runtime created without the plugin.
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
		err = lateRefusal(c, late)
	}
	result := outcomeDone.or(err)
	e.opts.Metrics.observe("StartContainer", result, begin)
	return e.report(c, result, err)
}

// PostStartContainer records that a container is live, in case the plugin registered
// during the container's start.
func (e *edge) PostStartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	e.note(ctx, "PostStartContainer", func(ctx context.Context) {
		e.started(ctx, describe(pod, container), container.GetId(), pod.GetId())
	})
	return nil
}

// note runs the work that follows a notification of the runtime. Late work continues after the
// answer; a sweep corrects the state if the work never ran.
func (e *edge) note(ctx context.Context, handler string, work func(context.Context)) {
	begin := time.Now()
	_, late := within(ctx, e.Hook, func(ctx context.Context) bool { work(ctx); return true })
	if late != nil {
		e.opts.Log.Error("answered the runtime before all its reports were processed", "handler", handler, "error", late)
	}
	e.opts.Metrics.observe(handler, outcomeDone, begin)
}

func (e *edge) report(c adjust.Container, result outcome, err error) error {
	log := e.opts.Log.With("namespace", c.Namespace, "pod", c.Pod, "container", c.Name)
	if e.opts.Outcome != nil && (err != nil || result == outcomeGranted) {
		e.opts.Outcome(c.PodUID, c.Name, err != nil)
	}
	switch {
	case err != nil:
		e.opts.Metrics.refused(err)
		e.reportRefusal(c, err)
		log.Warn("refused a container", "error", err)
	case result == outcomeGranted:
		e.reportGrant(c)
		log.Info("assigned a container its part of a GPU")
	default:
		log.Debug("checked a container without GPUs", "outcome", result)
	}
	return err
}

// StopContainer records that a container has ended. The pod may be empty.
func (e *edge) StopContainer(ctx context.Context, _ *api.PodSandbox, container *api.Container) ([]*api.ContainerUpdate, error) {
	e.note(ctx, "StopContainer", func(context.Context) { e.stopped(container.GetId()) })
	return nil, nil
}

// RemoveContainer records that a container has ended.
func (e *edge) RemoveContainer(ctx context.Context, _ *api.PodSandbox, container *api.Container) error {
	e.note(ctx, "RemoveContainer", func(context.Context) { e.stopped(container.GetId()) })
	return nil
}

// StopPodSandbox records that all containers of a pod have ended.
func (e *edge) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	e.note(ctx, "StopPodSandbox", func(context.Context) { e.sandboxStopped(pod.GetId(), pod.GetUid()) })
	return nil
}

// RemovePodSandbox records that all containers of a pod have ended.
func (e *edge) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	e.note(ctx, "RemovePodSandbox", func(context.Context) { e.sandboxStopped(pod.GetId(), pod.GetUid()) })
	return nil
}

// describe converts NRI's messages to a Container.
func describe(pod *api.PodSandbox, container *api.Container) adjust.Container {
	c := adjust.Container{
		PodUID:         pod.GetUid(),
		Namespace:      pod.GetNamespace(),
		Pod:            pod.GetName(),
		Name:           container.GetName(),
		Env:            container.GetEnv(),
		PodAnnotations: pod.GetAnnotations(),
		Annotations:    container.GetAnnotations(),
		Assignment:     container.GetAnnotations()[adjust.AssignmentAnnotation],
		CDIDevices:     nri.CDIDevices(container),
		Devices:        nri.DevicePaths(container),
		PID:            int(container.GetPid()),
	}
	// A user can write the pod's annotation, so a pod with the annotation proves nothing.
	_, forged := pod.GetAnnotations()[paths.AdjustedAnnotation]
	if !forged {
		mark := outcome(container.GetAnnotations()[paths.AdjustedAnnotation])
		c.Exempted, c.Foreign = mark == outcomeExempt, mark == outcomeForeign
	}
	for _, m := range container.GetMounts() {
		c.Mounts = append(c.Mounts, adjust.Mount{Source: m.GetSource(), Destination: m.GetDestination(), Options: m.GetOptions()})
	}
	return c
}

// convert converts an adjustment to NRI's type.
func convert(c adjust.Container, a adjust.Adjustment) (*api.ContainerAdjustment, error) {
	told := &api.ContainerAdjustment{}
	for _, v := range a.Env {
		told.AddEnv(v.Name, v.Value)
	}
	for _, name := range a.CDIDevices {
		told.AddCDIDevice(&api.CDIDevice{Name: name})
	}
	for _, m := range a.Mounts {
		told.AddMount(&api.Mount{Source: m.Source, Destination: m.Destination, Type: "bind", Options: m.Options})
	}
	for _, path := range a.DeviceNodes {
		device, err := deviceNode(path)
		if err != nil {
			return nil, c.Refuse(adjust.ReasonInjection, "%w: see injection.direct.devices in config.toml", err)
		}
		told.AddDevice(device)
	}
	for key, value := range a.Annotations {
		told.AddAnnotation(key, value)
	}
	return told, nil
}

// deviceNode returns the NRI description of a character device of the host.
func deviceNode(path string) (*api.LinuxDevice, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return nil, fmt.Errorf("stat device node %s: %w", path, err)
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
