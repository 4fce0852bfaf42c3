// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

// NodeEntry is a node with the configuration that it applies, and its GPUs.
type NodeEntry struct {
	Node    string `json:"node"`
	Version string `json:"version"`
	// Pool is the node's pool of config.toml, or "".
	Pool string `json:"pool,omitempty"`
	// GPUs is the number of offered GPUs, and Containers the number of containers with a part of
	// them.
	GPUs       int `json:"gpus"`
	Containers int `json:"containers"`
	// LeftOut and OfferedTwice are UUIDs, as in an Overview. Foreign is as in an Overview.
	LeftOut      []string       `json:"leftOut,omitempty"`
	OfferedTwice []string       `json:"offeredTwice,omitempty"`
	Foreign      map[string]int `json:"foreign,omitempty"`
}

// Nodes writes the nodes.
func (l Listing) Nodes(all []agentapi.Overview) error {
	items := []NodeEntry{}
	for _, o := range all {
		items = append(items, NodeEntry{
			Node: o.Node, Version: o.Version, Pool: o.Pool, GPUs: len(o.GPUs) - len(o.OfferedTwice), Containers: len(o.Containers),
			LeftOut: o.LeftOut, OfferedTwice: o.OfferedTwice, Foreign: o.Foreign,
		})
	}
	return list(l, nodeView, items)
}

var nodeView = view[NodeEntry]{
	columns: []column[NodeEntry]{
		{title: "NODE", text: func(e NodeEntry) string { return e.Node }},
		{title: "VERSION", text: func(e NodeEntry) string { return e.Version }, wide: true},
		{title: "POOL", text: func(e NodeEntry) string { return cmp.Or(e.Pool, "-") }},
		{title: "GPUS", text: func(e NodeEntry) string { return strconv.Itoa(e.GPUs) }},
		{title: "CONTAINERS", text: func(e NodeEntry) string { return strconv.Itoa(e.Containers) }},
		{title: "LEFT OUT", text: func(e NodeEntry) string { return strconv.Itoa(len(e.LeftOut)) }},
		{title: "OFFERED TWICE", text: func(e NodeEntry) string { return strconv.Itoa(len(e.OfferedTwice)) }},
		{title: "FOREIGN", text: func(e NodeEntry) string { return foreign(e.Foreign) }},
	},
	name: func(e NodeEntry) string { return "node/" + e.Node },
	none: "There is no node with an agent here.",
}

// foreign formats the numbers of containers of other device plugins, by resource.
func foreign(all map[string]int) string {
	var parts []string
	for _, resource := range slices.Sorted(maps.Keys(all)) {
		if n := all[resource]; n > 0 {
			parts = append(parts, strconv.Itoa(n)+" × "+resource)
		}
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}
