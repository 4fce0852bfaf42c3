// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
)

// TestAFewAgentsAreQueried checks that a description of a waiting pod queries agents only until a node
// could run the pod.
func TestAFewAgentsAreQueried(t *testing.T) {
	agents := make([]fleet.Agent, 40)
	for i := range agents {
		agents[i].Node = fmt.Sprintf("n%d", i)
	}
	away := errors.New("n3 is away")
	for name, test := range map[string]struct {
		asks    int64
		node    string
		phase   corev1.PodPhase
		large   string // the node with a large GPU
		queried int
	}{
		"every node could run it":       {asks: 4000, phase: corev1.PodPending, queried: atATime},
		"its node could run it":         {asks: 4000, phase: corev1.PodPending, node: "n39", queried: atATime},
		"its node is the only one":      {asks: 30000, phase: corev1.PodPending, node: "n39", large: "n39", queried: atATime},
		"a later node could run it":     {asks: 30000, phase: corev1.PodPending, large: "n20", queried: 3 * atATime},
		"no node can ever run it":       {asks: 90000, phase: corev1.PodPending, large: "n20", queried: 40},
		"it runs":                       {asks: 4000, phase: corev1.PodRunning, node: "n7", queried: 1},
		"it runs on a node without one": {asks: 4000, phase: corev1.PodRunning, node: "n99", queried: 0},
	} {
		p := about(map[string]int64{ownMemory: test.asks}, func(p *Pod) {
			p.Pod.Status.Phase, p.Pod.Spec.NodeName = test.phase, test.node
		})
		var queried []string
		answers, err := askUntil(relevant(agents, p.Pod), p.couldRun, func(batch []fleet.Agent) (all []agentapi.Overview, err error) {
			for _, a := range batch {
				queried = append(queried, a.Node)
				memory := uint64(16000 * mib)
				if a.Node == test.large {
					memory = 80000 * mib
				}
				if a.Node == "n3" {
					err = away
					continue
				}
				all = append(all, agentapi.Overview{Node: a.Node, GPUs: []agentapi.GPU{{Node: a.Node, Room: &agentapi.Room{MemoryBytes: memory}}}})
			}
			return all, err
		})
		if len(queried) != test.queried {
			t.Errorf("%s: queried %v, want %d", name, queried, test.queried)
		}
		if test.node != "" && test.queried > 0 && queried[0] != test.node {
			t.Errorf("%s: queried %s before the pod's node", name, queried[0])
		}
		if test.queried == 40 && (!errors.Is(err, away) || len(answers) != 39) {
			t.Errorf("%s: %d answers, %v", name, len(answers), err)
		}
	}
}

func TestFreeNowNamesTheQueriedNodes(t *testing.T) {
	p := about(map[string]int64{ownMemory: 4000}, pending("0/2 nodes are available"))
	whole := p.freeNow()
	p.Agents = 40
	part := p.freeNow()
	if want := "free now on 1 of 40 nodes (kubectl vgpu why shows all): "; !strings.HasPrefix(part, want) {
		t.Errorf("got %q, want %q first", part, want)
	}
	if diff := cmp.Diff(strings.TrimPrefix(whole, "free now: "), part[strings.Index(part, ": ")+2:]); diff != "" {
		t.Errorf("(-all +some):\n%s", diff)
	}
}
