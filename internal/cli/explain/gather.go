// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/why"
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

// atATime is the number of agents that askUntil queries at a time.
const atATime = 8

// look queries the agent of the pod's node. If the pod waits, look also queries other agents until
// one node could hold the pod.
func (p *Pod) look(ctx context.Context, f *fleet.Fleet) {
	agents, err := f.Agents(ctx)
	p.unknown(err)
	agents = relevant(agents, p.Pod)
	p.Agents = len(agents)
	p.Before, err = askUntil(agents, p.couldRun, func(batch []fleet.Agent) ([]agentapi.Overview, error) {
		return f.OverviewsOf(ctx, batch)
	})
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

// relevant returns the agents that know something about the pod. The agent of the pod's node is first,
// and the only agent if the pod does not wait.
func relevant(agents []fleet.Agent, pod *corev1.Pod) []fleet.Agent {
	elsewhere := func(a fleet.Agent) bool { return a.Node != pod.Spec.NodeName }
	here := slices.DeleteFunc(slices.Clone(agents), elsewhere)
	if pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodPending {
		return here
	}
	others := slices.DeleteFunc(slices.Clone(agents), func(a fleet.Agent) bool { return !elsewhere(a) })
	return append(here, others...)
}

// couldRun reports whether one of the nodes could run the pod if the node had no other containers.
func (p *Pod) couldRun(nodes []agentapi.Overview) bool {
	rooms := slices.Collect(maps.Values(why.Rooms(nodes)))
	return len(rooms) > 0 && why.Never(p.Asked, rooms) == ""
}

// askUntil queries some agents at a time, until the answers are enough. A cluster may have thousands
// of agents, of which the first usually suffice.
func askUntil(agents []fleet.Agent, enough func([]agentapi.Overview) bool,
	ask func([]fleet.Agent) ([]agentapi.Overview, error),
) (answers []agentapi.Overview, err error) {
	for batch := range slices.Chunk(agents, atATime) {
		more, failed := ask(batch)
		answers, err = append(answers, more...), errors.Join(err, failed)
		if enough(answers) {
			break
		}
	}
	return answers, err
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
func Examine(ctx context.Context, f *fleet.Fleet, name string) ([]finding.Finding, error) {
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
		more = []finding.Finding{problem("doctor", fmt.Sprintf("kubectl -n %s logs %s", f.Namespace, n.Agent.Pod), "%v", err)}
	}
	return append(findings, more...), nil
}
