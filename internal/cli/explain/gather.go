// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/doctor"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// betweenLooks is the time between two observations, which measure the current
// throttling.
const betweenLooks = time.Second

// GatherPod gathers the facts about a pod. GatherPod observes a running pod twice,
// a second apart. If the user may not query agents or nodes, GatherPod gathers the
// rest and sets Unknown.
func GatherPod(ctx context.Context, f *fleet.Fleet, namespace, name string) (Pod, error) {
	var p Pod
	var err error
	if p.Pod, err = f.Pod(ctx, namespace, name); err != nil {
		return p, err
	}
	if p.Events, err = f.Events(ctx, "Pod", namespace, name); err != nil {
		return p, err
	}
	p.Nodes, p.Unknown = f.Nodes(ctx)
	p.read(ctx, f)
	p.look(ctx, f)
	p.Now = time.Now()
	return p, ctx.Err()
}

// read reads the request of the pod by the nodes' configuration. Users who may not read the
// configuration get an explanation without the request.
func (p *Pod) read(ctx context.Context, f *fleet.Fleet) {
	file, err := f.Config(ctx)
	if err != nil {
		return
	}
	cfg := file.Config
	p.Asked, p.Invalid = request.Read(p.Pod, cfg)
	_, err = request.FromPod(p.Pod, cfg.Dialects)
	p.SpecInvalid = err != nil
}

// look queries the agent of the pod's node. look queries all agents if the pod has no node, or waits
// on its node.
func (p *Pod) look(ctx context.Context, f *fleet.Fleet) {
	agents, err := f.Agents(ctx)
	p.unknown(err)
	if node := p.Pod.Spec.NodeName; node != "" && p.Pod.Status.Phase != corev1.PodPending {
		agents = slices.DeleteFunc(agents, func(a fleet.Agent) bool { return a.Node != node })
	}
	p.Before, err = f.OverviewsOf(ctx, agents)
	p.unknown(err)
	p.After = p.Before
	if p.Pod.Status.Phase != corev1.PodRunning || len(p.Before) == 0 {
		return
	}
	if !loop.Sleep(ctx, betweenLooks) {
		return
	}
	p.After, err = f.OverviewsOf(ctx, agents)
	p.unknown(err)
}

func (p *Pod) unknown(err error) { p.Unknown = errors.Join(p.Unknown, err) }

// GatherNode gathers the facts about a node.
func GatherNode(ctx context.Context, f *fleet.Fleet, name string) (Node, error) {
	n := Node{Namespace: f.Namespace, Now: time.Now()}
	var err error
	if n.Node, err = f.Node(ctx, name); err != nil {
		return n, err
	}
	if n.Events, err = f.Events(ctx, "Node", corev1.NamespaceDefault, name); err != nil {
		return n, err
	}
	agents, err := f.Agents(ctx)
	n.Unknown = err
	k := slices.IndexFunc(agents, func(a fleet.Agent) bool { return a.Node == name })
	if k < 0 {
		return n, nil
	}
	n.Agent = &agents[k]
	all, err := f.OverviewsOf(ctx, agents[k:k+1])
	if n.Unknown = err; len(all) == 0 {
		return n, nil
	}
	n.Overview = &all[0]
	pods, err := f.PodsOn(ctx, name)
	if err != nil {
		return n, err
	}
	n.Waiting = Waiting(pods, []corev1.Node{*n.Node}, show.Entries([]agentapi.Overview{*n.Overview}))
	return n, nil
}

// Ours returns the names of the nodes that have or had an agent.
func Ours(ctx context.Context, f *fleet.Fleet) ([]string, error) {
	nodes, err := f.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	agents, none := f.Agents(ctx)
	var names []string
	for i := range nodes {
		has := slices.ContainsFunc(agents, func(a fleet.Agent) bool { return a.Node == nodes[i].Name })
		if has || condition(&nodes[i], ready) != nil || len(offered(&nodes[i])) > 0 {
			names = append(names, nodes[i].Name)
		}
	}
	if len(names) == 0 {
		return nil, none
	}
	return names, nil
}

// Examine returns the findings about a node from the API server. If the node's agent is reachable,
// the findings of doctor follow.
func Examine(ctx context.Context, f *fleet.Fleet, name string) ([]doctor.Finding, error) {
	n, err := GatherNode(ctx, f, name)
	if err != nil {
		return nil, err
	}
	if n.Unknown == nil {
		n.Overview = nil // the doctor checks the GPUs
	}
	findings := append(n.Findings(), gatherScheduling(ctx, f, n.Node.Labels).findings()...)
	if n.Agent == nil || n.Agent.Down != "" {
		return findings, nil
	}
	more, err := f.Examine(ctx, *n.Agent)
	if err != nil {
		more = []doctor.Finding{problem("doctor", fmt.Sprintf("kubectl -n %s logs %s", f.Namespace, n.Agent.Pod), "%v", err)}
	}
	return append(findings, more...), nil
}
