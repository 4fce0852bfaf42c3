// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
	corev1 "k8s.io/api/core/v1"
)

// nodeRuntime is NRI's code for runtimes, over a real socket.
type nodeRuntime struct {
	*adaptation.Adaptation
	mu         sync.Mutex
	sandboxes  []*api.PodSandbox
	containers []*api.Container
}

func newRuntime(dir, socket string) (*nodeRuntime, error) {
	nrilog.Set(silence{})
	r := &nodeRuntime{}
	sync := func(ctx context.Context, cb adaptation.SyncCB) error {
		r.mu.Lock()
		sandboxes, containers := r.sandboxes, r.containers
		r.mu.Unlock()
		_, err := cb(ctx, sandboxes, containers)
		return err
	}
	update := func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil }
	var err error
	r.Adaptation, err = adaptation.New("containerd", "v2.4.2", sync, update,
		adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath(filepath.Join(dir, "plugins")),
		adaptation.WithPluginConfigPath(filepath.Join(dir, "conf.d")))
	if err != nil {
		return nil, fmt.Errorf("make a runtime: %w", err)
	}
	if err := r.Start(); err != nil {
		return nil, fmt.Errorf("start the runtime: %w", err)
	}
	return r, nil
}

// silence discards NRI's log.
type silence struct{}

func (silence) Debugf(context.Context, string, ...any) {}
func (silence) Infof(context.Context, string, ...any)  {}
func (silence) Warnf(context.Context, string, ...any)  {}
func (silence) Errorf(context.Context, string, ...any) {}

func (r *nodeRuntime) close() { r.Stop() }

// containerOf returns a pod's container as containerd describes it.
func containerOf(pod *corev1.Pod, instance int) (*api.PodSandbox, *api.Container) {
	return containerNamed(pod, "main", instance)
}

func containerNamed(pod *corev1.Pod, name string, instance int) (*api.PodSandbox, *api.Container) {
	sandbox := &api.PodSandbox{
		Id: "sandbox-" + string(pod.UID), Uid: string(pod.UID), Name: pod.Name, Namespace: pod.Namespace,
		Labels: pod.Labels, Annotations: map[string]string{"kubernetes.io/config.source": "api"},
	}
	container := &api.Container{
		Id: fmt.Sprintf("%s-%s-%d", pod.UID, name, instance), PodSandboxId: sandbox.Id, Name: name,
		Args:   []string{"main"},
		Labels: map[string]string{"io.kubernetes.pod.name": pod.Name, "io.kubernetes.pod.namespace": pod.Namespace},
	}
	for i := range 20 {
		container.Env = append(container.Env, fmt.Sprintf("SERVICE_%d_HOST=10.96.0.%d", i, i))
	}
	for _, destination := range []string{"/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys", "/sys/fs/cgroup",
		"/etc/hosts", "/dev/termination-log", "/etc/hostname", "/etc/resolv.conf", "/dev/shm",
		"/var/run/secrets/kubernetes.io/serviceaccount"} {
		container.Mounts = append(container.Mounts, &api.Mount{Destination: destination, Source: destination, Type: "bind", Options: []string{"rbind", "rprivate", "rw"}})
	}
	return sandbox, container
}

// createAll creates every pod's container repeatedly. createAll measures the
// time from the request to the answer, for which the runtime waits.
func (n *node) createAll(ctx context.Context) ([]creations, error) {
	var granted, withheld []time.Duration
	for instance := range n.rounds {
		for i := range n.pods {
			took, adjusted, err := n.create(ctx, &n.pods[i], instance)
			if err != nil {
				return nil, err
			}
			if given := i < n.asking; given != adjusted {
				return nil, fmt.Errorf("pod %d: mounts added: %t, want %t", i, adjusted, given)
			} else if given {
				granted = append(granted, took)
			} else {
				withheld = append(withheld, took)
			}
		}
	}
	all := append(append([]time.Duration{}, granted...), withheld...)
	return []creations{newCreations("all", all), newCreations("granted", granted), newCreations("withheld", withheld)}, nil
}

// create creates a container that replaces the pod's previous container.
func (n *node) create(ctx context.Context, pod *corev1.Pod, instance int) (took time.Duration, adjusted bool, err error) {
	sandbox, container := containerOf(pod, instance)
	if instance > 0 {
		_, before := containerOf(pod, instance-1)
		if _, err := n.runtime.StopContainer(ctx, &api.StopContainerRequest{Pod: sandbox, Container: before}); err != nil {
			return 0, false, fmt.Errorf("stop a container: %w", err)
		}
	}
	begin := time.Now()
	answer, err := n.runtime.CreateContainer(ctx, &api.CreateContainerRequest{Pod: sandbox, Container: container})
	took = time.Since(begin)
	if err != nil {
		return 0, false, fmt.Errorf("create a container: %w", err)
	}
	return took, len(answer.GetAdjust().GetMounts()) > 0, nil
}
