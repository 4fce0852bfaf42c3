package runtimes

import "github.com/containerd/nri/pkg/api"

// CDIDevices returns the names of the CDI devices that a container is given.
func CDIDevices(container *api.Container) []string {
	var names []string
	for _, d := range container.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	return names
}

// DevicePaths returns where a container finds its device nodes. Those of block devices are left
// out: a pod names the devices of its block volumes as it likes.
func DevicePaths(container *api.Container) []string {
	var paths []string
	for _, d := range container.GetLinux().GetDevices() {
		if d.GetType() != "b" {
			paths = append(paths, d.GetPath())
		}
	}
	return paths
}
