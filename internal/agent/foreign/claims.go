// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// listing contains the ids of devices by resource. nil is an unknown listing.
type listing map[string][]string

// claims are the devices that other device plugins offer, by resource. The value of a resource with
// unknown devices is nil: the resource claims every GPU.
type claims map[string][]string

// judge returns the claims on a node. The Node's capacity states how many devices of a resource
// exist, and kubelet lists the devices that are healthy or in use. A plugin that restarts, and a
// device that is unhealthy, are missing in kubelet's list but not in the capacity. Therefore a device
// stays claimed as long as the capacity counts more devices than kubelet lists. capacity and listed
// are nil if unknown.
func judge(before claims, capacity map[string]int64, listed listing) claims {
	now := claims{}
	for name := range listed {
		now[name] = ids(before[name], listed[name], capacity[name])
	}
	for name, count := range capacity {
		if _, known := now[name]; count > 0 && !known {
			now[name] = ids(before[name], nil, count)
		}
	}
	for name, devices := range before {
		_, known := now[name]
		if !known && capacity == nil { // kubelet may list no device of a plugin that restarts
			now[name] = devices
		}
	}
	return now
}

// ids returns the devices of a resource, or nil if not all devices are known.
func ids(before, listed []string, count int64) []string {
	all := slices.Clone(listed)
	if int64(len(all)) < count {
		all = append(all, before...)
		slices.Sort(all)
		all = slices.Compact(all)
	}
	if int64(len(all)) < count {
		return nil
	}
	return all
}

// lacks reports whether a resource claims less than some devices. nil is every device.
func (c claims) lacks(name string, devices []string) bool {
	have, claimed := c[name]
	if !claimed || have == nil {
		return !claimed
	}
	return devices == nil || slices.ContainsFunc(devices, func(id string) bool { return !slices.Contains(have, id) })
}

// add adds devices to the claim of a resource. nil is every device.
func (c claims) add(name string, devices []string) {
	if devices != nil {
		devices = slices.Concat(c[name], devices)
		slices.Sort(devices)
		devices = slices.Compact(devices)
	}
	c[name] = devices
}

// on returns the resource that claims a GPU, or "".
func (c claims) on(g gpu.GPU) string {
	var found []string
	for name, devices := range c {
		if devices == nil || slices.ContainsFunc(devices, func(id string) bool { return names(id, g) }) {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return slices.Min(found)
}

// names reports whether a device's id may name a GPU. NVIDIA's plugin names devices by UUID, and
// appends "::0" to parts of a GPU. Google's plugin names devices by device node, as "nvidia0". An
// unknown id may name every GPU. The name of a physical GPU includes its MIG devices.
func names(id string, g gpu.GPU) bool {
	if strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-") {
		return strings.HasPrefix(id, g.UUID) || strings.HasPrefix(id, g.Card())
	}
	node, _, _ := strings.Cut(id, "/")
	number, found := strings.CutPrefix(node, "nvidia")
	minor, err := strconv.Atoi(number)
	return !found || err != nil || minor == g.Minor
}

// reason returns why a claimed GPU gets no new containers.
func reason(resource string, g gpu.GPU) string {
	return fmt.Sprintf("another device plugin offers it, too, as %s: leave it to that plugin (node.gpus.exclude = [%q] in config.toml), or take it from that plugin (docs/how-to/coexist.md)", resource, g.UUID)
}

// equal reports whether two sets of claims are equal.
func (c claims) equal(other claims) bool {
	return maps.EqualFunc(c, other, func(a, b []string) bool { return slices.Equal(a, b) && (a == nil) == (b == nil) })
}
