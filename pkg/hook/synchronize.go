package hook

import (
	"slices"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/reach"
)

// reduce drops from what a runtime tells of all pods and containers what Synchronize does
// not read.
func (h *Hook) reduce(told *api.SynchronizeRequest) {
	for i, p := range told.GetPods() {
		told.Pods[i] = &api.PodSandbox{
			Id: p.GetId(), Uid: p.GetUid(), Name: p.GetName(), Namespace: p.GetNamespace(),
			Annotations: only(p.GetAnnotations(), layout.AdjustedAnnotation),
		}
	}
	for i, c := range told.GetContainers() {
		reduced := &api.Container{
			Id: c.GetId(), PodSandboxId: c.GetPodSandboxId(), Name: c.GetName(), State: c.GetState(), Pid: c.GetPid(),
			Annotations: only(c.GetAnnotations(), layout.AdjustedAnnotation, AssignmentAnnotation),
			Env:         reach.Variables(c.GetEnv()),
			Linux:       &api.LinuxContainer{Devices: c.GetLinux().GetDevices()},
		}
		for _, m := range c.GetMounts() {
			if reach.IsDirectoryOf(m.GetSource(), h.Config.NRI.SocketPath) ||
				slices.ContainsFunc(protectedPaths, func(dir string) bool { return reach.Within(m.GetDestination(), dir) }) {
				reduced.Mounts = append(reduced.Mounts, m)
			}
		}
		told.Containers[i] = reduced
	}
}

// only returns those of some annotations that have one of the names.
func only(annotations map[string]string, names ...string) map[string]string {
	kept := map[string]string{}
	for _, name := range names {
		if value, ok := annotations[name]; ok {
			kept[name] = value
		}
	}
	return kept
}
