// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
)

// Merge returns the container that the runtime creates from a container and an adjustment. Merge
// covers the fields that affect GPUs: environment, mounts, annotations and devices. The last value
// of a repeated variable applies, as in runtimes.
func Merge(container *api.Container, adjust *api.ContainerAdjustment) *api.Container {
	merged := &api.Container{
		Id:           container.GetId(),
		PodSandboxId: container.GetPodSandboxId(),
		Name:         container.GetName(),
		Env:          mergeEnv(container.GetEnv(), adjust.GetEnv()),
		Mounts:       mergeMounts(container.GetMounts(), adjust.GetMounts()),
		Annotations:  mergeAnnotations(container.GetAnnotations(), adjust.GetAnnotations()),
		CDIDevices:   slices.Concat(container.GetCDIDevices(), adjust.GetCDIDevices()),
		Linux:        &api.LinuxContainer{},
	}
	for _, d := range slices.Concat(container.GetLinux().GetDevices(), adjust.GetLinux().GetDevices()) {
		if _, removed := d.IsMarkedForRemoval(); !removed {
			merged.Linux.Devices = append(merged.Linux.Devices, d)
		}
	}
	return merged
}

func mergeEnv(env []string, changes []*api.KeyValue) []string {
	changed := map[string]*api.KeyValue{}
	for _, change := range changes {
		name, _ := change.IsMarkedForRemoval()
		changed[name] = change
	}
	merged := make([]string, 0, len(env)+len(changes))
	at := make(map[string]int, len(env)) // the index of each variable in merged
	set := func(name, entry string) {
		if i, ok := at[name]; ok {
			merged[i] = entry
			return
		}
		at[name] = len(merged)
		merged = append(merged, entry)
	}
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		change, ok := changed[name]
		if !ok {
			set(name, entry)
			continue
		}
		// An adjustment changes only the first occurrence of a variable.
		delete(changed, name)
		if _, removed := change.IsMarkedForRemoval(); !removed {
			set(name, change.ToOCI())
		}
	}
	for _, change := range changes {
		if _, removed := change.IsMarkedForRemoval(); !removed && changed[change.GetKey()] == change {
			set(change.GetKey(), change.ToOCI())
		}
	}
	return merged
}

func mergeMounts(mounts, changes []*api.Mount) []*api.Mount {
	gone := map[string]bool{}
	var added []*api.Mount
	for _, change := range changes {
		destination, removed := change.IsMarkedForRemoval()
		gone[destination] = true
		if !removed {
			added = append(added, change)
		}
	}
	kept := slices.DeleteFunc(slices.Clone(mounts), func(m *api.Mount) bool { return gone[m.GetDestination()] })
	return append(kept, added...)
}

func mergeAnnotations(annotations, changes map[string]string) map[string]string {
	merged := map[string]string{}
	for key, value := range annotations {
		merged[key] = value
	}
	for key := range changes {
		if name, removed := api.IsMarkedForRemoval(key); removed {
			delete(merged, name)
		}
	}
	for key, value := range changes {
		if _, removed := api.IsMarkedForRemoval(key); !removed {
			merged[key] = value
		}
	}
	return merged
}
