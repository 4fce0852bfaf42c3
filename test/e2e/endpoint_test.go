// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// TestKubeletAndPrometheusBesideAFlood holds all connections that the agent's port accepts, without
// reading an answer. First the test holds them from its reader's address, and then a container. Another container requests pages as fast as possible. Kubelet's
// probes must pass, and metrics must be readable.
func TestKubeletAndPrometheusBesideAFlood(t *testing.T) {
	eventually.Holds(t, patience, "kubelet has found agent and patcher ready", func() bool { return len(unready(t)) == 0 })
	before := restarts(t)
	for range 300 {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(bed.Cluster.Address, "9394"), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	attack := func(way string) corev1.Container {
		return testbed.Container(way, testbed.Limits{}, "attack", "--way", way, "--duration", "3600", "--connections", "300",
			"--address", net.JoinHostPort(bed.Cluster.Address, "9394"))
	}
	create(t, testbed.Pod("flood", attack("slow"), attack("scrape")))
	running(t, "flood")
	// In this time kubelet makes two readiness probes and one liveness probe.
	for until := time.Now().Add(11 * time.Second); time.Now().Before(until); time.Sleep(time.Second) {
		if synced, err := bed.Metric(t.Context(), "nri_vgpu_pods_synced", nil); err != nil || synced != 1 {
			t.Errorf("the metrics are %v, %v", synced, err)
		}
		if pods := unready(t); len(pods) > 0 {
			t.Errorf("not ready: %v", pods)
		}
	}
	if after := restarts(t); after != before {
		t.Errorf("kubelet has restarted containers %d times, before %d", after, before)
	}
	for _, c := range running(t, "flood").Status.ContainerStatuses {
		if c.State.Running == nil || c.RestartCount > 0 {
			t.Errorf("the attack %s has ended", c.Name)
		}
	}
}

// ourPods returns the pods of agent and patcher. Other tests may create and delete pods at the same
// time.
func ourPods(t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := bed.Client.CoreV1().Pods(testbed.Namespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name in (nri-vgpu, extended-resource-patcher)"})
	if err != nil || len(pods.Items) < 2 {
		t.Fatalf("%d pods of ours, %v", len(pods.Items), err)
	}
	return pods.Items
}

// restarts returns the number of times that kubelet has restarted our containers.
func restarts(t *testing.T) (sum int32) {
	t.Helper()
	for _, pod := range ourPods(t) {
		for _, c := range pod.Status.ContainerStatuses {
			sum += c.RestartCount
		}
	}
	return sum
}

// unready returns our pods that kubelet has not found ready.
func unready(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, pod := range ourPods(t) {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
				names = append(names, pod.Name+": "+testbed.Describe(&pod))
			}
		}
	}
	return names
}
