// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// Foreign returns the resource of another device plugin that a container requests, "" if the
// container requests none.
func Foreign(pod *corev1.Pod, container string, node config.Node) string {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == container {
				return foreignIn(list[i].Resources.Limits, node)
			}
		}
	}
	return ""
}

// ForeignContainers returns the number of a pod's containers that request each resource of another
// device plugin.
func ForeignContainers(pod *corev1.Pod, node config.Node) map[string]int {
	var count map[string]int
	for _, limits := range limitsOf(pod) {
		if name := foreignIn(limits, node); name != "" {
			if count == nil {
				count = map[string]int{}
			}
			count[name]++
		}
	}
	return count
}

// foreignIn returns the first resource of another device plugin in a container's limits.
func foreignIn(limits corev1.ResourceList, node config.Node) string {
	var found []string
	for name := range limits {
		if node.Foreign(string(name)) && limitOf(corev1.ResourceRequirements{Limits: limits}, name) > 0 {
			found = append(found, string(name))
		}
	}
	if len(found) == 0 {
		return ""
	}
	return slices.Min(found)
}

// setForeign records which containers request a resource of another device plugin. setForeign
// returns an error if a container requests GPUs of both nri-vgpu and another device plugin.
func setForeign(pod *corev1.Pod, asked Pod, node config.Node) error {
	for i, limits := range limitsOf(pod) {
		name := foreignIn(limits, node)
		c := &asked.Containers[i]
		if c.Foreign = name; name != "" && len(c.Shares) > 0 {
			return fmt.Errorf("container %q: requests GPUs of nri-vgpu (dialect %s) and %s, which another device plugin serves; allowed: one of the two",
				c.Name, c.Dialect, name)
		}
	}
	return nil
}
