// SPDX-License-Identifier: Apache-2.0

package nri

import "github.com/containerd/nri/pkg/api"

// CDIDevices returns the names of a container's CDI devices.
func CDIDevices(container *api.Container) []string {
	var names []string
	for _, d := range container.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	return names
}

// DevicePaths returns the paths of a container's device nodes. DevicePaths omits block devices,
// because a pod chooses the paths of its block volumes.
func DevicePaths(container *api.Container) []string {
	var paths []string
	for _, d := range container.GetLinux().GetDevices() {
		if d.GetType() != "b" {
			paths = append(paths, d.GetPath())
		}
	}
	return paths
}
