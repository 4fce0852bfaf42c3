// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// TestPools checks that the scheduler fits pods to a node by the configuration of the node's pool.
func TestPools(t *testing.T) {
	file, err := config.ParseFile([]byte("[node]\nslots_per_gpu = 3\n[[pool]]\nname = \"few\"\nnode_selector = \"slots=few\"\n[pool.node]\nslots_per_gpu = 1"))
	if err != nil {
		t.Fatal(err)
	}
	for labels, want := range map[string]int{"": 3, "few": 1} {
		p := newPlugin(&nominating{}, file.Config)
		p.nodes = file
		w := newWorld(1)
		w.cfg = file.Config
		m := w.member("node-0")
		m.gpus = m.gpus[:1]
		m.publish("node-0", file.Config)
		if labels != "" {
			node := m.info.Node().DeepCopy()
			node.Labels = map[string]string{"slots": labels}
			m.info.SetNode(node)
		}
		v := p.newView(m.info)
		if v.err != nil {
			t.Fatal(v.err)
		}
		placed := 0
		for ; placed < 5; placed++ {
			pod := one(fmt.Sprint("pod-", placed), 1, 0, 1, 0)
			if _, err := v.Ledger.Place(read(t, p, pod), pod.Spec.Containers[0].Name); err != nil {
				break
			}
		}
		if placed != want {
			t.Errorf("with label %q, %d containers fit on the GPU, want %d", labels, placed, want)
		}
	}
}

// TestPoolsShareGPUs checks that a pod that chooses how its GPU is shared fits only the nodes whose pool
// shares GPUs so.
func TestPoolsShareGPUs(t *testing.T) {
	file, err := config.ParseFile([]byte("[[pool]]\nname = \"mps\"\nnode_selector = \"mps\"\n[pool.sharing]\nmethod = \"mps\""))
	if err != nil {
		t.Fatal(err)
	}
	p := newPlugin(&nominating{}, file.Config)
	p.nodes = file
	w := newWorld(1)
	w.cfg = file.Config
	m := w.member("node-0")
	memory := corev1.ResourceName(file.Config.Dialects.Volcano.Memory)
	for label, want := range map[string]bool{"mps": true, "other": false} {
		node := m.info.Node().DeepCopy()
		node.Labels = map[string]string{label: ""}
		node.Status.Allocatable[memory] = units(1 << 20)
		m.info.SetNode(node)
		pod := podWith(corev1.ResourceList{memory: units(1000)})
		pod.Annotations = map[string]string{"volcano.sh/vgpu-mode": "mps"}
		if v, err := p.verdictOn(p.newAsking(read(t, p, pod), pod), m.info); v.fits != want || (err == nil) != want {
			t.Errorf("on a node with the label %s: fits: %t, %v", label, v.fits, err)
		}
	}
}

// TestPoolsReadRequests checks that the scheduler reads the requests of pods by the configuration of the
// node's pool.
func TestPoolsReadRequests(t *testing.T) {
	file, err := config.ParseFile([]byte("[dialects.aws]\nslots_per_gpu = 10\n[[pool]]\nname = \"few\"\nnode_selector = \"slots=few\"\n[pool.dialects.aws]\nslots_per_gpu = 2"))
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]bool{"many": true, "few": false} {
		p := newPlugin(&nominating{}, file.Config)
		p.nodes = file
		w := newWorld(1)
		w.cfg = file.Config
		m := w.member("node-0")
		m.gpus = m.gpus[:1]
		m.publish("node-0", file.Config)
		node := m.info.Node().DeepCopy()
		node.Labels = map[string]string{"slots": label}
		m.info.SetNode(node)
		slots := func(name types.UID, n int64) *corev1.Pod {
			pod := podWith(corev1.ResourceList{corev1.ResourceName(file.Config.Dialects.AWS.Slots): units(n)})
			pod.UID = name
			return pod
		}
		m.add(t, slots("held", 1))
		pod := slots("new", 2)
		if v, err := p.verdictOn(p.newAsking(read(t, p, pod), pod), m.info); v.fits != want || err != nil {
			t.Errorf("%s slots: two slots beside one fit: %t, %v", label, v.fits, err)
		}
	}
}

// TestAnotherPoolWakesAPod checks that a label that moves a Node to another pool wakes waiting pods, since
// the pool may have more slots. Other labels wake no pod.
func TestAnotherPoolWakesAPod(t *testing.T) {
	file, err := config.ParseFile([]byte("[[pool]]\nname = \"few\"\nnode_selector = \"slots=few\"\n[pool.node]\nslots_per_gpu = 1"))
	if err != nil {
		t.Fatal(err)
	}
	p := newPlugin(&nominating{}, file.Config)
	p.nodes = file
	node := func(labels map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: labels}}
	}
	waiting := podWith(corev1.ResourceList{corev1.ResourceName(file.Config.Dialects.Native.Memory): units(1)})
	few := map[string]string{"slots": "few"}
	for want, after := range map[fwk.QueueingHint]map[string]string{fwk.Queue: {"slots": "many"}, fwk.QueueSkip: {"slots": "few", "zone": "a"}} {
		events, err := p.EventsToRegister(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := fwk.QueueSkip
		for _, e := range events {
			if framework.MatchClusterEvents(e.Event, fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeLabel}) {
				if got, err = e.QueueingHintFn(klog.Background(), waiting, node(few), node(after)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got != want {
			t.Errorf("the labels %v: got %v, want %v", after, got, want)
		}
	}
}
