// SPDX-License-Identifier: Apache-2.0

package volcano

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	protocol "github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/volcano"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

var defaults = config.Default().Dialects.Volcano

// ask returns a container's limits, in Volcano's dialect.
func ask(number, memory, percent, cores int64) testbed.Limits {
	limits := testbed.Limits{}
	for name, units := range map[string]int64{
		defaults.Number: number, defaults.Memory: memory, defaults.MemoryPercentage: percent, defaults.Cores: cores,
	} {
		if units > 0 {
			limits[name] = units
		}
	}
	return limits
}

// filler returns a container that fills its GPUs and keeps the memory. The container's image
// requests all GPUs, like CUDA's images. By this request the guard recognises the pod while the
// agent is down.
func filler(limits testbed.Limits) corev1.Container {
	c := testbed.Container("main", limits, "fill", "--hold", "3600")
	c.Image = testbed.CUDAImage
	return c
}

// podFor returns a pod for Volcano's scheduler.
func podFor(name string, containers ...corev1.Container) *corev1.Pod {
	pod := testbed.Pod(name, containers...)
	pod.Spec.SchedulerName = volcano.Scheduler
	return pod
}

// mixed returns 20 pods: one pod with a GPU for itself, and three pods on two GPUs. The other pods
// request MiB, percent, or no number of GPUs, or have a first container without a request. Pods
// that do not fit on every node come first.
func mixed(prefix string) []*corev1.Pod {
	shapes := []func(name string) *corev1.Pod{
		func(name string) *corev1.Pod { return podFor(name+"-mib", filler(ask(1, 2000, 0, 20))) },
		func(name string) *corev1.Pod { return podFor(name+"-memory", filler(ask(0, 1024, 0, 0))) },
		func(name string) *corev1.Pod { return podFor(name+"-percent", filler(ask(1, 0, 11, 0))) },
		func(name string) *corev1.Pod {
			idle := testbed.Container("idle", nil, "sh", "-c", "info; exec linger")
			idle.Image = testbed.CUDAImage
			return podFor(name+"-second", idle, filler(ask(0, 1500, 0, 15)))
		},
	}
	pods := []*corev1.Pod{podFor(prefix+"-0-alone", filler(ask(1, 4096, 0, 100)))}
	for i := 1; i < 20; i++ {
		name := fmt.Sprintf("%s-%d", prefix, i)
		if i < 4 {
			pods = append(pods, podFor(name+"-two", filler(ask(2, 1000, 0, 10))))
		} else {
			pods = append(pods, shapes[i%len(shapes)](name))
		}
	}
	return pods
}

func TestPodsGetTheGPUsThatVolcanoAssigned(t *testing.T) {
	// Later tests also run with the setting off.
	for _, lock := range []bool{true, false} {
		t.Run(fmt.Sprintf("NodeLockEnable=%t", lock), func(t *testing.T) { place(t, lock) })
	}
}

func place(t *testing.T, lock bool) {
	configure(t, lock)
	pods := mixed(fmt.Sprintf("lock-%t", lock))
	t.Cleanup(func() { remove(t, pods) })
	create(t, pods[:1]) // while some GPU is unused
	waitBound(t, pods[:1])
	create(t, pods[1:8])
	waitBound(t, pods[:8])
	restartScheduler(t)
	restarted := time.Now()
	create(t, pods[8:11]) // the scheduler may choose any node, because it knows no GPUs yet
	waitAsked(t, restarted)
	create(t, pods[11:15])
	var agents sync.WaitGroup
	agents.Go(func() {
		if err := beds[0].RestartAgent(t.Context(), patience); err != nil {
			t.Error(err)
		}
	})
	create(t, pods[15:])
	agents.Wait()
	byVolcano := 0
	for _, pod := range pods {
		running, err := beds[0].WaitRunning(t.Context(), pod.Name, patience)
		if err != nil {
			explain(t, pod.Name)
			t.Fatal(err)
		}
		if protocol.Assigned(running) {
			byVolcano++
		}
	}
	for _, pod := range pods {
		checkPod(t, pod.Name)
	}
	checkLedgers(t)
	t.Logf("Volcano chose the GPUs of %d of %d pods, and bound the other pods without a choice", byVolcano, len(pods))
	if want := len(pods) - 3; !lock && byVolcano < want {
		t.Errorf("Volcano chose the GPUs of %d pods, want at least %d: all pods except those of its restart", byVolcano, want)
	}
}

// checkPod checks that a pod has the GPUs that its annotations name, and that the agent informed
// Volcano. The pod must keep to its limits.
func checkPod(t *testing.T, name string) {
	t.Helper()
	var pod *corev1.Pod
	_, err := beds[0].WaitPod(t.Context(), name, "answered for", patience, func(seen *corev1.Pod) bool {
		pod = seen
		return seen.Annotations[protocol.Phase] == protocol.Success && strings.Trim(seen.Annotations[protocol.ToAllocate], ";") == ""
	})
	if err != nil {
		t.Errorf("%v: %v", err, pod.Annotations)
		return
	}
	if pod.Annotations[protocol.Time] != protocol.Answered || pod.Annotations[protocol.Node] != pod.Spec.NodeName {
		t.Errorf("pod %s on %s has the answer %v", name, pod.Spec.NodeName, pod.Annotations)
	}
	assignment, err := protocol.Parse(pod.Annotations[protocol.IDs])
	if err != nil {
		t.Error(err)
		return
	}
	asking := protocol.Asking(pod, defaults)
	if len(asking) != 1 || len(assignment) != 1 {
		t.Fatalf("pod %s: %v have requests, and the assignment is %v", name, asking, assignment)
	}
	want := map[string]uint64{}
	for _, d := range assignment[0] {
		want[d.UUID] = d.MiB
	}
	has := map[string]uint64{}
	for _, d := range given(t, pod, asking[0]).Devices {
		has[d.UUID] = d.MemoryBytes / mib
	}
	if fmt.Sprint(has) != fmt.Sprint(want) {
		t.Errorf("pod %s has %v, and is assigned %v", name, has, want)
	}
	checkHeld(t, pod, want)
	if pod.Spec.Containers[0].Name == "idle" {
		var info testbed.Info
		if err := beds[0].WaitResult(t.Context(), name, "idle", patience, &info); err != nil || len(info.CUDA.Devices) != 0 {
			t.Errorf("the container of %s without a request sees %d GPUs: %v", name, len(info.CUDA.Devices), err)
		}
	}
}

// checkHeld waits until the pod has filled its GPUs, according to the oracle, and checks that the
// pod holds its limits.
func checkHeld(t *testing.T, pod *corev1.Pod, want map[string]uint64) {
	t.Helper()
	var held map[string]uint64
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		var err error
		if held, err = bedOf(t, pod).Held(pod); err != nil {
			return false, err
		}
		for uuid, bytes := range held {
			if bytes/mib > want[uuid] {
				return false, fmt.Errorf("pod %s holds %d MiB of GPU %s, and may hold %d", pod.Name, bytes/mib, uuid, want[uuid])
			}
			// fill fills one GPU, to its last MiB.
			if bytes/mib >= want[uuid]*98/100 {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		t.Errorf("pod %s holds %v bytes, and may hold %v MiB: %v", pod.Name, held, want, err)
	}
}

// configure sets whether Volcano's scheduler locks nodes, and waits until the scheduler knows the
// nodes' GPUs. The scheduler reads the GPUs when a Node changes. The first pods that the scheduler
// places without knowing the GPUs cause a change of the Node.
func configure(t *testing.T, lock bool) {
	t.Helper()
	begin := time.Now().Add(-time.Second)
	if installed.NodeLock != lock || installed.Next {
		installed.NodeLock, installed.Next = lock, false
		if err := volcano.Configure(t.Context(), beds[0].Cluster, installed); err != nil {
			t.Fatal(err)
		}
	} else {
		begin = time.Time{}
	}
	waitKnown(t, begin)
}

func waitKnown(t *testing.T, since time.Time) {
	t.Helper()
	var probes []*corev1.Pod
	for i, bed := range beds {
		probe := podFor(fmt.Sprintf("probe-%d", i), testbed.Container("main", ask(1, 100, 0, 0), "linger"))
		probe.Spec.NodeSelector = map[string]string{corev1.LabelHostname: bed.Cluster.NodeName}
		probes = append(probes, probe)
		if _, err := bed.Create(t.Context(), probe); err != nil {
			t.Fatal(err)
		}
	}
	defer remove(t, probes)
	for i, bed := range beds {
		if _, err := bed.WaitRunning(t.Context(), probes[i].Name, patience); err != nil {
			explain(t, probes[i].Name)
			t.Fatal(err)
		}
	}
	waitAsked(t, since)
}

// waitAsked waits until the scheduler has read the GPUs of all nodes.
func waitAsked(t *testing.T, since time.Time) {
	t.Helper()
	for _, bed := range beds {
		if err := bed.WaitNode(t.Context(), patience, func(node *corev1.Node) bool { return askedSince(node, since) }); err != nil {
			t.Fatalf("Volcano's scheduler has not sent the node a handshake: %v: %v", err, nodeOf(t, bed).Annotations)
		}
	}
}

func create(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		if _, err := beds[0].Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
}

// askedSince reports whether Volcano's scheduler has sent the node a handshake since a time.
func askedSince(node *corev1.Node, since time.Time) bool {
	at, err := time.Parse("Requesting_2006.01.02 15:04:05", node.Annotations[protocol.Handshake])
	return err == nil && at.After(since)
}

func waitBound(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		if _, err := beds[0].WaitPod(t.Context(), pod.Name, "bound", patience, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" }); err != nil {
			explain(t, pod.Name)
			t.Fatal(err)
		}
	}
}

// restartScheduler ends the scheduler's pod. The Deployment makes another pod.
func restartScheduler(t *testing.T) {
	t.Helper()
	err := beds[0].Client.CoreV1().Pods(volcano.Namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "app=" + volcano.SchedulerDeployment})
	if err != nil {
		t.Fatal(err)
	}
}

// remove deletes pods and waits until their GPUs are free.
func remove(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	ctx := context.Background()
	for _, pod := range pods {
		if err := beds[0].Client.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			t.Log(err)
		}
	}
	for _, pod := range pods {
		if err := beds[0].Delete(ctx, pod.Name); err != nil {
			t.Error(err)
		}
	}
}

func explain(t *testing.T, name string) {
	t.Helper()
	ctx := context.Background()
	messages, err := beds[0].Messages(ctx, name)
	t.Logf("events of %s (%v): %s", name, err, strings.Join(messages, "\n  "))
	for _, bed := range beds {
		if node, err := bed.Node(ctx); err == nil {
			text, _ := json.Marshal(node.Annotations)
			t.Logf("%s: %s %v", node.Name, text, node.Status.Allocatable)
		}
	}
}
