// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

// group schedules a group in the manner of kube-scheduler. First, group assumes all members in the
// snapshot, whose NodeInfos keep their generations. Then group reverts the members, and reserves
// the members one after another without a new snapshot.
type group struct {
	plugin   *Plugin
	snapshot *internalcache.Snapshot
	states   []*framework.CycleState
	assumed  []*corev1.Pod
}

// try finds a node for a member, assumes the member on the node, and reports whether a node was
// found.
func (g *group) try(t *testing.T, pod *corev1.Pod) bool {
	t.Helper()
	state := framework.NewCycleState()
	state.SetPodGroupSchedulingCycle(framework.NewCycleState())
	if _, status := g.plugin.PreFilter(t.Context(), state, pod, nil); !status.IsSuccess() {
		t.Fatal(status)
	}
	infos, err := g.snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	var scores fwk.NodeScoreList
	for _, info := range infos {
		if g.plugin.Filter(t.Context(), state, pod, info).IsSuccess() {
			score, _ := g.plugin.Score(t.Context(), state, pod, info)
			scores = append(scores, fwk.NodeScore{Name: info.Node().Name, Score: score})
		}
	}
	if len(scores) == 0 {
		return false
	}
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = best(t, g.plugin, scores)
	info, err := framework.NewPodInfo(assumed)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.snapshot.AssumePod(info); err != nil {
		t.Fatal(err)
	}
	if status := g.plugin.Reserve(t.Context(), state, assumed, assumed.Spec.NodeName); !status.IsSuccess() {
		t.Errorf("member %s fits on %s, and is not reserved: %v", pod.Name, assumed.Spec.NodeName, status)
	}
	g.states, g.assumed = append(g.states, state), append(g.assumed, assumed)
	return true
}

// judgeAlone judges the nodes for a pod without a group, so that the plugin caches the verdicts.
func (g *group) judgeAlone(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	state := framework.NewCycleState()
	if _, status := g.plugin.PreFilter(t.Context(), state, pod, nil); !status.IsSuccess() {
		t.Fatal(status)
	}
	for _, name := range []string{"node-0", "node-1"} {
		info := nodeInfo(t, g.snapshot, name)
		if status := g.plugin.Filter(t.Context(), state, pod, info); !status.IsSuccess() {
			t.Errorf("an empty node has no room: %v", status)
		}
		if _, status := g.plugin.Score(t.Context(), state, pod, info); !status.IsSuccess() {
			t.Error(status)
		}
	}
}

// revert removes all assumed members, the last member first.
func (g *group) revert(t *testing.T) {
	t.Helper()
	for i := len(g.assumed) - 1; i >= 0; i-- {
		g.plugin.Unreserve(t.Context(), g.states[i], g.assumed[i], g.assumed[i].Spec.NodeName)
		if err := g.snapshot.ForgetPod(klog.Background(), g.assumed[i]); err != nil {
			t.Fatal(err)
		}
	}
}

// commit reserves all members, and returns the members with their assignments.
func (g *group) commit(t *testing.T) (bound []*corev1.Pod) {
	t.Helper()
	for i, pod := range g.assumed {
		g.states[i].SetPodGroupSchedulingCycle(nil)
		if status := g.plugin.Reserve(t.Context(), g.states[i], pod, pod.Spec.NodeName); !status.IsSuccess() {
			t.Errorf("member %s is not reserved on %s: %v", pod.Name, pod.Spec.NodeName, status)
			continue
		}
		assigned, _ := g.plugin.reservedFor(pod.UID)
		bound = append(bound, withAnnotation(pod, assigned))
	}
	return bound
}

// TestMembersOfAGroupFitTogether schedules groups on two nodes. Exactly as many members must find
// room as fit in the GPUs, and the nodes must accept the assignments of all members.
func TestMembersOfAGroupFitTogether(t *testing.T) {
	for _, policy := range []string{config.PlaceBinpack, config.PlaceSpread, Fragmentation} {
		for _, test := range []struct {
			memory int64 // MiB
			room   int
		}{{9 << 10, 4}, {8 << 10, 8}, {5 << 10, 12}, {16 << 10, 4}, {4 << 10, 16}} {
			c := &preemptionCase{gpus: []int{2, 2}, tenants: make([][]tenant, 2)}
			snapshot := internalcache.NewTestSnapshotWithPodGroups(nil, c.nodes(), nil)
			plugin, err := New(t.Context(), nil, newFramework(t, snapshot))
			if err != nil {
				t.Fatal(err)
			}
			g := &group{plugin: plugin.(*Plugin), snapshot: snapshot}
			g.judgeAlone(t, one("alone", test.memory, 0, 1, 0))
			g.plugin.policy = policy
			members := 0
			for members <= test.room && g.try(t, one(fmt.Sprint("member-", members), test.memory, 0, 1, 0)) {
				members++
			}
			if members != test.room {
				t.Errorf("%s: %d members of %d MiB find room, want %d", policy, members, test.memory, test.room)
			}
			g.revert(t)
			bound := g.commit(t)
			if len(bound) != members {
				t.Errorf("%s: %d of %d members of %d MiB are reserved", policy, len(bound), members, test.memory)
			}
			startAll(t, bound)
			if status := g.plugin.Filter(t.Context(), g.states[0], bound[0], nodeInfo(t, snapshot, "node-0")); !status.IsSuccess() {
				t.Errorf("the snapshot has the members still: %v", status)
			}
		}
	}
}

func nodeInfo(t *testing.T, snapshot *internalcache.Snapshot, name string) fwk.NodeInfo {
	t.Helper()
	info, err := snapshot.NodeInfos().Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// startAll starts bound pods on their nodes, which must have room for all bound pods.
func startAll(t *testing.T, bound []*corev1.Pod) {
	t.Helper()
	nodes := map[string]*member{}
	for node := range 2 {
		m := &member{}
		for i := range 2 {
			m.gpus = append(m.gpus, gpu.GPU{UUID: uuidOf(node, i), Index: i, MemoryBytes: caseMiB << 20, Healthy: true})
		}
		m.ledger = placement.New(m.gpus, config.Default())
		nodes[fmt.Sprint("node-", node)] = m
	}
	for _, pod := range bound {
		if _, err := nodes[pod.Spec.NodeName].start(config.Default(), pod); err != nil {
			t.Errorf("%s refuses member %s: %v", pod.Spec.NodeName, pod.Name, err)
		}
	}
}

// TestAssumedMembersLeaveNoView checks that no view with assumed members stays cached after a
// revert. After a revert, the NodeInfo has its old generation again.
func TestAssumedMembersLeaveNoView(t *testing.T) {
	c := &preemptionCase{gpus: []int{1, 1}, tenants: make([][]tenant, 2)}
	snapshot := internalcache.NewTestSnapshotWithPodGroups(nil, c.nodes(), nil)
	plugin, err := New(t.Context(), nil, newFramework(t, snapshot))
	if err != nil {
		t.Fatal(err)
	}
	g := &group{plugin: plugin.(*Plugin), snapshot: snapshot}
	for i := range 2 {
		// Filter first judges a copy with nominated pods, which has another generation.
		for _, name := range []string{"node-0", "node-1"} {
			nominated := nodeInfo(t, snapshot, name).Snapshot()
			info, err := framework.NewPodInfo(one("nominated", 1, 0, 1, 0))
			if err != nil {
				t.Fatal(err)
			}
			nominated.AddPodInfo(info)
			g.plugin.viewOf(nominated)
		}
		if !g.try(t, one(fmt.Sprint("member-", i), caseMiB, 0, 1, 0)) {
			t.Fatalf("member %d finds no room", i)
		}
	}
	g.revert(t)
	g.judgeAlone(t, one("alone", caseMiB, 0, 1, 0))
}

// nominating is a handle with nominated pods. The framework accepts only nominated pods of its
// informer.
type nominating struct {
	fwk.Handle
	pods []fwk.PodInfo
}

// NominatedPodsForNode returns the nominated pods, whatever the node.
func (n *nominating) NominatedPodsForNode(string) []fwk.PodInfo { return n.pods }

// TestProfilesShareAssignments checks that each profile of a scheduler knows the GPUs of the pods that
// another profile is binding. Another scheduler does not.
func TestProfilesShareAssignments(t *testing.T) {
	snapshot := internalcache.NewTestSnapshotWithPodGroups(nil, nil, nil)
	ours, theirs := newFramework(t, snapshot), newFramework(t, snapshot)
	var plugins []*Plugin
	for _, f := range []framework.Framework{ours, ours, theirs} {
		plugin, err := New(t.Context(), nil, f)
		if err != nil {
			t.Fatal(err)
		}
		plugins = append(plugins, plugin.(*Plugin))
	}
	pod := one("binding", 1<<10, 0, 1, 0)
	plugins[0].reserved.Store(pod.UID, `{"main":["GPU-0"]}`)
	for i, want := range []bool{true, true, false} {
		if _, assigned := plugins[i].assignmentOf(pod); assigned != want {
			t.Errorf("profile %d knows the assignment: %t", i, assigned)
		}
	}
	plugins[1].Unreserve(t.Context(), nil, pod, "node")
	if _, assigned := plugins[0].assignmentOf(pod); assigned {
		t.Error("the assignment is left")
	}
}

// TestRoomForNominatedPodsIsLeft checks that a pod avoids GPUs on which preemption has made room
// for a pod of higher priority. The pod uses other GPUs if it fits there, whatever its policy
// prefers.
func TestRoomForNominatedPodsIsLeft(t *testing.T) {
	c := newCase(1)
	c.gpus, c.tenants = []int{2}, make([][]tenant, 1)
	held := c.draw("held", 1, 0)
	held.memory, held.gpus, held.cpu = 4<<10, []int{1}, 0
	held.build(1)
	held.Spec.NodeName = "node-0"
	held.Annotations = map[string]string{assign.Annotation: fmt.Sprintf(`{"main":[%q]}`, uuidOf(0, 1))}
	snapshot := internalcache.NewTestSnapshotWithPodGroups([]*corev1.Pod{held.Pod}, c.nodes(), nil)
	f := newFramework(t, snapshot)
	plugin, err := New(t.Context(), nil, f)
	if err != nil {
		t.Fatal(err)
	}
	p := plugin.(*Plugin)
	p.policy, p.nodes.Config.Placement.Policy = config.PlaceSpread, config.PlaceSpread
	small := one("small", 2<<10, 0, 1, 0)
	chosen := func() string {
		assigned, err := p.choose(p.newAsking(read(t, p, small), small), nodeInfo(t, snapshot, "node-0"))
		if err != nil {
			t.Fatal(err)
		}
		return assigned
	}
	if got := chosen(); !strings.Contains(got, uuidOf(0, 0)) {
		t.Fatalf("spread chooses %s, and not the empty GPU", got)
	}
	urgent := one("urgent", caseMiB, 0, 1, 0)
	ten := int32(10)
	urgent.Spec.Priority = &ten
	info, err := framework.NewPodInfo(urgent)
	if err != nil {
		t.Fatal(err)
	}
	p.handle = &nominating{f, []fwk.PodInfo{info}}
	if got := chosen(); !strings.Contains(got, uuidOf(0, 1)) {
		t.Errorf("the GPU of the nominated pod is taken: %s", got)
	}
	// Without room on other GPUs, the pod gets the GPU that Filter has allowed.
	small = one("small", 14<<10, 0, 1, 0)
	if got := chosen(); !strings.Contains(got, uuidOf(0, 0)) {
		t.Errorf("got %s", got)
	}
}
