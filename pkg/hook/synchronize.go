// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"encoding/json"
	"slices"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// reduce drops the fields that Synchronize does not read from the runtime's list of pods
// and containers.
func (h *Hook) reduce(told *api.SynchronizeRequest) {
	for i, p := range told.GetPods() {
		told.Pods[i] = &api.PodSandbox{
			Id: p.GetId(), Uid: p.GetUid(), Name: p.GetName(), Namespace: p.GetNamespace(),
			Annotations: only(p.GetAnnotations(), paths.AdjustedAnnotation),
		}
	}
	for i, c := range told.GetContainers() {
		reduced := &api.Container{
			Id: c.GetId(), PodSandboxId: c.GetPodSandboxId(), Name: c.GetName(), State: c.GetState(), Pid: c.GetPid(),
			Annotations: only(c.GetAnnotations(), paths.AdjustedAnnotation, adjust.AssignmentAnnotation),
			Env:         gpuaccess.Variables(c.GetEnv()),
			Linux:       &api.LinuxContainer{Devices: c.GetLinux().GetDevices()},
		}
		for _, m := range c.GetMounts() {
			if gpuaccess.IsDirectoryOf(m.GetSource(), h.opts.Config.NRI.SocketPath) ||
				slices.ContainsFunc(adjust.ProtectedPaths, func(dir string) bool { return gpuaccess.Within(m.GetDestination(), dir) }) {
				reduced.Mounts = append(reduced.Mounts, m)
			}
		}
		told.Containers[i] = reduced
	}
}

// only returns the annotations that have one of the names.
func only(annotations map[string]string, names ...string) map[string]string {
	kept := map[string]string{}
	for _, name := range names {
		if value, ok := annotations[name]; ok {
			kept[name] = value
		}
	}
	return kept
}

// withPod returns a container with the pod in its assignment. A restarted runtime that does not know
// the state of a pod lists the pod's containers without the pod. Only a container with its own
// nri-vgpu mounts has a pod.
func (h *Hook) withPod(c adjust.Container) adjust.Container {
	var given placement.Allocation
	if json.Unmarshal([]byte(c.Assignment), &given) != nil {
		return c
	}
	named := c
	named.PodUID, named.Namespace, named.Pod = given.PodUID, given.Namespace, given.Pod
	if !h.carriesOurs(named) {
		return c
	}
	return named
}
