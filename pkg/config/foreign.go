// SPDX-License-Identifier: Apache-2.0

package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Foreign reports whether another device plugin serves a resource.
func (n Node) Foreign(resource string) bool {
	return n.ForeignPattern(resource) != ""
}

// ForeignPattern returns the first element of ForeignResources that matches a resource, or "" if
// no other device plugin serves the resource.
func (n Node) ForeignPattern(resource string) string {
	for _, pattern := range n.ForeignResources {
		prefix, open := strings.CutSuffix(pattern, "*")
		if resource == pattern || open && strings.HasPrefix(resource, prefix) {
			return pattern
		}
	}
	return ""
}

// NodeGPUs selects GPUs of a node. Each element is a UUID, an index such as "0", or a model. In a
// model, "*" stands for any text, and case does not matter.
type NodeGPUs struct {
	// Include are the GPUs that the node offers, unless Exclude names them.
	Include []string `toml:"include"`
	// Exclude are the GPUs that the node leaves to other programs.
	Exclude []string `toml:"exclude"`
}

// Has reports whether the node offers a GPU. A MIG device has two UUIDs: the UUID of the device and
// the UUID of the physical GPU. The index identifies the physical GPU.
func (g NodeGPUs) Has(index int, model string, uuids ...string) bool {
	return names(g.Include, index, model, uuids) && !names(g.Exclude, index, model, uuids)
}

// names reports whether an element of a list names a GPU.
func names(list []string, index int, model string, uuids []string) bool {
	for _, element := range list {
		switch {
		case isUUID(element):
			if slices.Contains(uuids, element) {
				return true
			}
		case isIndex(element):
			if element == strconv.Itoa(index) {
				return true
			}
		case matches(element, model):
			return true
		}
	}
	return false
}

func isUUID(element string) bool {
	return strings.HasPrefix(element, "GPU-") || isMIG(element)
}

// isMIG reports whether a UUID is a MIG device's.
func isMIG(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

func isIndex(element string) bool {
	n, err := strconv.Atoi(element)
	return err == nil && strconv.Itoa(n) == element && n >= 0
}

// matches reports whether a pattern with "*" matches a model.
func matches(pattern, model string) bool {
	quoted := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")
	return regexp.MustCompile("(?is)^" + quoted + "$").MatchString(model)
}

// foreign checks the resources that other device plugins serve. None may be a resource of an enabled
// dialect: then two programs would answer for one request.
func (c *checker) foreign(n Node, enabled []named) {
	const key = "node.foreign_resources"
	valid := true
	for i, pattern := range n.ForeignResources {
		name := strings.TrimSuffix(pattern, "*")
		if name != pattern {
			name += "x"
		}
		if !validResourceName(name) {
			valid = false
			c.bad(element(key, i), `is %q; allowed: domain/name, which may end with "*", such as "nvidia.com/mig-*"`, pattern)
		}
	}
	for _, r := range enabled {
		if valid && n.Foreign(r.name) {
			c.bad(r.key, "is %q, which %s leaves to another device plugin; allowed: another name, or a %s without it", r.name, key, key)
		}
	}
}

// gpus checks a selection of GPUs.
func (c *checker) gpus(key string, list []string) {
	for i, e := range list {
		if e == "" || strings.TrimSpace(e) != e {
			c.bad(element(key, i), `is %q; allowed: a UUID, an index such as "0", or a model such as "NVIDIA A100*"`, e)
		}
	}
}
