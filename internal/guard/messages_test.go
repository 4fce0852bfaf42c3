// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

func TestFits(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		own, all, more int
		want           bool
	}{
		{0, 0, 16 * mib, true},
		{0, 0, 16*mib + 1, false},
		{15 * mib, 15 * mib, mib, true},
		{16 * mib, 16 * mib, 1, false},
		{0, 16 * mib, 8 * mib, true}, // half of the remaining bytes
		{0, 16 * mib, 8*mib + 1, false},
		{0, 24 * mib, 4 * mib, true},
		{0, 32 * mib, 1, false},
		{0, 40 * mib, 0, false}, // containers from before the bound
	} {
		if got := fits(tt.own, tt.all, tt.more); got != tt.want {
			t.Errorf("%d in all, %d of them of the namespace: %d more fit: %v", tt.all, tt.own, tt.more, got)
		}
	}
}

// TestSynchronizingCounts checks that the messages of a synchronization replace all earlier counts.
// A container may arrive before its pod, and a container that the runtime sends twice counts once.
func TestSynchronizingCounts(t *testing.T) {
	long := func(id string) *api.Container {
		return &api.Container{Id: id, PodSandboxId: "p-" + id, Env: []string{strings.Repeat("x", 1000)}}
	}
	pod := func(id, namespace string) *api.PodSandbox {
		return &api.PodSandbox{Id: "p-" + id, Namespace: namespace}
	}
	m := newMessages()
	m.add(podKey("gone"), "a", 1<<20)
	reduce := m.synchronizing()
	first := &api.SynchronizeRequest{
		Pods: []*api.PodSandbox{pod("2", "b")}, Containers: []*api.Container{long("1"), long("1")}, More: true,
	}
	last := &api.SynchronizeRequest{Pods: []*api.PodSandbox{pod("1", "a")}, Containers: []*api.Container{long("2"), long("3")}}
	want := map[string]int{
		"a": long("1").SizeVT() + pod("1", "a").SizeVT(),
		"b": long("2").SizeVT() + pod("2", "b").SizeVT(),
		"":  long("3").SizeVT(),
	}
	for _, request := range []*api.SynchronizeRequest{first, last} {
		reduce(request)
		if request.GetPods() != nil || request.GetContainers() != nil {
			t.Error("the message was not emptied")
		}
	}
	if got := fmt.Sprint(m.spaces); got != fmt.Sprint(want) || m.all != want["a"]+want["b"]+want[""] {
		t.Errorf("%s, %d in all, want %v", got, m.all, want)
	}
	for _, key := range []string{podKey("p-1"), podKey("p-2"), containerKey("1"), containerKey("2"), containerKey("3"), "unknown"} {
		m.remove(key)
	}
	if len(m.objects) != 0 || len(m.spaces) != 0 || m.all != 0 {
		t.Errorf("after all were removed: %v, %v, %d", m.objects, m.spaces, m.all)
	}
}

// fill creates pods with one container in a namespace, as the runtime does, until a plugin refuses
// one of them. fill returns the size of the created containers in bytes, and the refusal.
func (n *node) fill(namespace string, length, most int) (bytes int, err error) {
	n.t.Helper()
	long := strings.Repeat("x", length)
	for i := range most {
		pod := inPod(fmt.Sprint(namespace, i))
		pod.Namespace = namespace
		if err := n.runtime.RunPodSandbox(n.t.Context(), &api.RunPodSandboxRequest{Pod: pod}); err != nil {
			return bytes, err
		}
		n.pods = append(n.pods, pod)
		c := &api.Container{PodSandboxId: pod.GetId(), Env: []string{"LONG=" + long}}
		if _, err := n.create(pod, c); err != nil {
			return bytes, err
		}
		if err := n.runtime.PostCreateContainer(n.t.Context(), &api.PostCreateContainerRequest{Pod: pod, Container: c}); err != nil {
			n.t.Fatal(err)
		}
		n.containers = append(n.containers, c)
		bytes += c.SizeVT()
	}
	return bytes, nil
}

// TestNoNamespaceFillsTheNode checks that a namespace gets at most half of the bytes that the
// runtime can send to a guard that registers. The limit holds whether or not the guard was running
// when the runtime created the containers. Other namespaces and the cluster's own namespace can
// still start pods, and removed pods free bytes.
func TestNoNamespaceFillsTheNode(t *testing.T) {
	wait(t)
	const length = 400 << 10
	n := newNode(t)
	for range 2 {
		bytes, err := n.fill("greedy", length, 100)
		if err == nil || !strings.Contains(err.Error(), `"greedy"`) || !strings.Contains(err.Error(), "32 MiB") {
			t.Fatalf("after %d MiB: %v", bytes>>20, err)
		}
		if held := len(n.containers) * length; held > maxMessageBytes/2 || held < maxMessageBytes/2-2*length {
			t.Fatalf("the namespace has %d KiB", held>>10)
		}
		n.runtime.Stop()
		n.start()
	}
	if _, err := n.fill("other", 10<<10, 20); err != nil {
		t.Errorf("another namespace: %v", err)
	}
	if _, err := n.fill(systemNamespace, length, 60); err != nil {
		t.Errorf("the cluster's own namespace: %v", err)
	}
	if _, err := n.fill("late", 10<<10, 1); err == nil {
		t.Error("another namespace was not refused on a full node")
	}
	for i, c := range n.containers {
		request := &api.RemoveContainerRequest{Pod: n.pods[i], Container: c}
		if err := n.runtime.RemoveContainer(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	n.pods, n.containers = nil, nil
	eventually.Holds(t, 10*time.Second, "there is room again", func() bool {
		_, err := n.fill("late", 10<<10, 1)
		return err == nil
	})
	if _, err := n.create(inPod("wants"), wants("all")); err == nil {
		t.Error("a container that requests every GPU was created")
	}
}

// BenchmarkRegister registers the guard with a runtime that has as many containers as fit.
func BenchmarkRegister(b *testing.B) {
	const length = 400 << 10
	n := newNode(b)
	for i := range maxMessageBytes / length {
		n.containers = append(n.containers, &api.Container{Id: fmt.Sprint("c", i), Env: []string{strings.Repeat("x", length)}})
	}
	for b.Loop() {
		n.runtime.Stop()
		n.start()
	}
}
