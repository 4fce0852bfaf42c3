// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Gather judges all nodes of a cluster for a pod.
func Gather(ctx context.Context, f *fleet.Fleet, namespace, name string) (Answer, error) {
	pod, err := f.Pod(ctx, namespace, name)
	if err != nil {
		return Answer{}, err
	}
	file, err := f.Config(ctx)
	if err != nil {
		return Answer{}, err
	}
	cfg := file.Config
	a := Answer{Pod: pod, Mode: cfg.Scheduling.Mode, Left: LeftFrom(pod, cfg.Scheduling.Mode, cfg.Dialects)}
	a.Asked, a.Invalid = request.Read(pod, cfg)
	if a.explained() {
		return a, nil
	}
	nodes, err := f.Nodes(ctx)
	if err != nil {
		return Answer{}, err
	}
	all, err := f.Pods(ctx, "", "")
	if err != nil {
		return Answer{}, err
	}
	names := request.Names(cfg.Dialects)
	nodes = slices.DeleteFunc(nodes, func(n corev1.Node) bool { return !listed(&n) && !advertises(&n, names) })
	rooms, err := roomsOf(ctx, f, nodes)
	a.Unknown = err
	a.judge(nodes, all, rooms, file)
	return a, nil
}

// roomsOf returns the free parts of each GPU, by the node's name. roomsOf asks the agents of the
// nodes that do not list their GPUs.
func roomsOf(ctx context.Context, f *fleet.Fleet, nodes []corev1.Node) (map[string][]placement.Room, error) {
	if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return !listed(&n) }) {
		return nil, nil
	}
	agents, err := f.Agents(ctx)
	if err != nil {
		return nil, err
	}
	overviews, err := f.OverviewsOf(ctx, ofUnlisted(agents, nodes))
	return Rooms(overviews), err
}

// ofUnlisted returns the agents of the nodes that do not list their GPUs.
func ofUnlisted(agents []fleet.Agent, nodes []corev1.Node) []fleet.Agent {
	return slices.DeleteFunc(agents, func(a fleet.Agent) bool {
		return !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == a.Node && !listed(&n) })
	})
}

// Rooms returns the free parts of each GPU that agents report, by the node's name.
func Rooms(overviews []agentapi.Overview) map[string][]placement.Room {
	rooms := map[string][]placement.Room{}
	for _, o := range overviews {
		for _, g := range o.GPUs {
			if r := g.Room; r != nil {
				rooms[o.Node] = append(rooms[o.Node], placement.Room{
					UUID: g.UUID, Index: g.Index, MIG: gpu.MIG{Parent: g.MIG.Parent, Index: g.MIG.Index}, Healthy: g.Unhealthy == "", MemoryBytes: r.MemoryBytes, FreeMemoryBytes: r.FreeMemoryBytes,
					FreeComputePPM: r.FreeComputePPM, FreeSlots: r.FreeSlots, Holders: r.Holders, Exclusive: r.Exclusive, MPS: r.MPS, FreeClients: r.FreeClients, Common: r.Common,
				})
			}
		}
	}
	return rooms
}

// judge judges nodes by the pods of the cluster.
func (a *Answer) judge(nodes []corev1.Node, all []corev1.Pod, rooms map[string][]placement.Room, file config.File) {
	on := map[string][]*corev1.Pod{}
	for i := range all {
		if pod := &all[i]; pod.Spec.NodeName != "" && !ended(pod) {
			on[pod.Spec.NodeName] = append(on[pod.Spec.NodeName], pod)
		}
	}
	for i := range nodes {
		name := nodes[i].Name
		cfg, _ := file.For(nodes[i].Labels)
		a.Nodes = append(a.Nodes, Judge(a.Pod, &nodes[i], on[name], rooms[name], cfg))
	}
	byCloseness(a.Nodes)
}

// listed reports whether a Node lists its GPUs.
func listed(node *corev1.Node) bool {
	_, ok := node.Annotations[assign.GPUsAnnotation]
	return ok
}

func advertises(node *corev1.Node, names []string) bool {
	for _, name := range names {
		if amount, ok := node.Status.Allocatable[corev1.ResourceName(name)]; ok && !amount.IsZero() {
			return true
		}
	}
	return false
}

// schedulerReport returns the scheduler's own reason in the pod's conditions.
func schedulerReport(pod *corev1.Pod) string {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return fmt.Sprintf("nothing yet (schedulerName is %s)", pod.Spec.SchedulerName)
}
