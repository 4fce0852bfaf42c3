// SPDX-License-Identifier: Apache-2.0

// Package nri contains the code for NRI that the plugins of the agent and the guard share. The
// package reads NRI's messages about a container, applies an adjustment to a container, and bounds
// the length of messages.
package nri

import (
	"fmt"

	"github.com/containerd/nri/pkg/api"
)

// MostBytes bounds the NRI message about a pod or a container. A runtime reports all pods and
// containers to a plugin that registers. The runtime splits the report into messages of 4 MiB, but
// puts at least eight items into a message. If eight items exceed 4 MiB, the runtime starts without
// the plugin.
const MostBytes = 480 << 10

// CheckPod returns an error if a pod is too long for the runtime's report to plugins.
func CheckPod(pod *api.PodSandbox) error {
	if size := pod.SizeVT(); size > MostBytes {
		return fmt.Errorf("its labels and annotations take %d KiB; above %d KiB the container runtime may not report it to plugins: shorten the labels and annotations", size>>10, MostBytes>>10)
	}
	return nil
}

// CheckContainer returns an error if a container is too long for the runtime's report to plugins.
func CheckContainer(container *api.Container) error {
	if size := container.SizeVT(); size > MostBytes {
		return fmt.Errorf("its environment, arguments and mounts take %d KiB; above %d KiB the container runtime may not report it to plugins: mount files instead of long variables", size>>10, MostBytes>>10)
	}
	return nil
}
