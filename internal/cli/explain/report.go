// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/finding"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
)

// PodReport is the description of a pod for programs.
type PodReport struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node,omitempty"`
	Status    string `json:"status"`
	// Requests contains the requested amounts of each container, by resource.
	Requests map[string]map[string]int64 `json:"requests"`
	// Containers are the containers that hold GPUs.
	Containers []agentapi.Container `json:"containers"`
	Findings   []finding.Finding    `json:"findings"`
	Events     []EventReport        `json:"events"`
}

// NodeReport is the description of a node for programs.
type NodeReport struct {
	Name string `json:"name"`
	// Agent is the version of the node's agent, "" if the agent does not answer.
	Agent string `json:"agent,omitempty"`
	// Offers contains the allocatable amounts of the resources that nri-vgpu advertises.
	Offers     map[string]int64     `json:"offers"`
	GPUs       []agentapi.GPU       `json:"gpus"`
	Containers []agentapi.Container `json:"containers"`
	Findings   []finding.Finding    `json:"findings"`
	Events     []EventReport        `json:"events"`
}

// EventReport is an Event for programs.
type EventReport struct {
	LastSeen time.Time `json:"lastSeen"`
	Times    int32     `json:"times"`
	Type     string    `json:"type"`
	Reason   string    `json:"reason"`
	Message  string    `json:"message"`
}

// Report returns the description of the pod for programs.
func (p Pod) Report() PodReport {
	own, _ := p.containers(p.After)
	r := PodReport{
		Namespace: p.Pod.Namespace, Name: p.Pod.Name, Node: p.Pod.Spec.NodeName, Status: Status(p.Pod),
		Requests: map[string]map[string]int64{}, Containers: present(own), Findings: p.Findings(), Events: reports(p.ownEvents()),
	}
	for _, c := range slices.Concat(p.Pod.Spec.InitContainers, p.Pod.Spec.Containers) {
		if asked := Asked(c, p.Nodes); len(asked) > 0 {
			r.Requests[c.Name] = asked
		}
	}
	return r
}

// Report returns the description of the node for programs.
func (n Node) Report() NodeReport {
	r := NodeReport{
		Name: n.Node.Name, Offers: map[string]int64{}, GPUs: []agentapi.GPU{}, Containers: []agentapi.Container{},
		Findings: n.Findings(), Events: reports(ofOurs(n.Events)),
	}
	for _, name := range offered(n.Node) {
		amount := n.Node.Status.Allocatable[corev1.ResourceName(name)]
		r.Offers[name] = amount.Value()
	}
	if o := n.Overview; o != nil {
		r.Agent, r.GPUs, r.Containers = o.Version, present(o.GPUs), present(o.Containers)
	}
	return r
}

func reports(events []corev1.Event) []EventReport {
	all := []EventReport{}
	for _, e := range events {
		all = append(all, EventReport{LastSeen: fleet.LastSeen(e).UTC(), Times: times(e), Type: e.Type, Reason: e.Reason, Message: e.Message})
	}
	return all
}

// present returns an empty list instead of nil, which JSON would encode as null.
func present[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
