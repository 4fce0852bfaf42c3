// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// TestNode checks every property of a node on which tests of pods rely.
func TestNode(t *testing.T) {
	c := up(t, cluster.Options{Name: "test-node", GPU: markedGPU()})
	loadWorkload(t, c)
	t.Run("pod runs to its end", func(t *testing.T) { testPodEnds(t, c) })
	t.Run("exec", func(t *testing.T) { testPodExec(t, c) })
	t.Run("API server from a pod", func(t *testing.T) { testInCluster(t, c) })
	t.Run("NVIDIA's runtime adds devices", func(t *testing.T) { testRuntime(t, c) })
	t.Run("host user cannot escape into the machine", func(t *testing.T) { testIsolation(t, c) })
	t.Run("components restart under a running pod", func(t *testing.T) { testRestarts(t, c) })
	t.Run("another cluster beside it", func(t *testing.T) { testBeside(t, c) })
}

// markedGPU returns a CDI specification that sets a mark in containers' environment instead of
// adding a GPU.
func markedGPU() *cluster.GPU {
	const spec = `cat > /etc/cdi/nvidia.yaml <<END
cdiVersion: 0.6.0
kind: nvidia.com/gpu
devices:
- name: all
  containerEdits: {env: ["GIVEN=all"]}
END`
	return &cluster.GPU{Setup: [][]string{{"sh", "-c", spec}}}
}

func testPodEnds(t *testing.T, c *cluster.Cluster) {
	runPod(t, c, newPod("ends", "echo hello from $(id -u)"), corev1.PodSucceeded)
	out, err := c.PodLogs(t.Context(), "default", "ends", "")
	if err != nil || out != "hello from 0\n" {
		t.Errorf("logs %q, %v", out, err)
	}
}

func testPodExec(t *testing.T, c *cluster.Cluster) {
	runPod(t, c, newPod("sleeps", "exec sleep 3600"), corev1.PodRunning)
	out, err := c.PodExec(t.Context(), "default", "sleeps", "", "sh", "-c", "echo one; echo two >&2")
	if err != nil || out != "one\n" {
		t.Errorf("exec printed %q, %v", out, err)
	}
	_, err = c.PodExec(t.Context(), "default", "sleeps", "", "sh", "-c", "echo reason >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "exit code 3") || !strings.Contains(err.Error(), "reason") {
		t.Errorf("error %v contains neither exit code nor reason", err)
	}
}

// testInCluster checks that the API server answers at the address in pods' environment. A client
// must trust the API server by the certificates in pods alone.
func testInCluster(t *testing.T, c *cluster.Cluster) {
	archive := filepath.Join(t.TempDir(), "kubectl.tar")
	const name = "localhost/nri-vgpu/kubectl:test"
	spec := image.Spec{
		Name:  name,
		Plain: true,
		Files: append(image.BaseLayout(), image.File{Path: "/usr/bin/kubectl", Source: c.Kubectl()}),
	}
	if err := image.Build(archive, spec); err != nil {
		t.Fatal(err)
	}
	if err := c.LoadImage(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
	pods := map[bool]*corev1.Pod{}
	for _, hostNetwork := range []bool{false, true} {
		pod := newPod(fmt.Sprintf("asks-%t", hostNetwork), "")
		pod.Spec.HostNetwork = hostNetwork
		pod.Spec.Containers[0].Image = name
		pod.Spec.Containers[0].Command = []string{"/usr/bin/kubectl", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"}
		createPod(t, c, pod)
		pods[hostNetwork] = pod
	}
	for hostNetwork, pod := range pods {
		waitPod(t, c, pod, corev1.PodSucceeded)
		out, err := c.PodLogs(t.Context(), "default", pod.Name, "")
		if want := "system:serviceaccount:default:default"; err != nil || out != want {
			t.Errorf("host network %t: the API server identified the pod as %q, %v; want %q", hostNetwork, out, err, want)
		}
	}
}

func testRuntime(t *testing.T, c *cluster.Cluster) {
	given := map[string]string{"all": "all", "void": "", "": ""}
	pods := map[string]*corev1.Pod{}
	for value := range given {
		pod := newPod("given-"+value+"x", "echo $GIVEN")
		if value != "" {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "NVIDIA_VISIBLE_DEVICES", Value: value}}
		}
		createPod(t, c, pod)
		pods[value] = pod
	}
	for value, want := range given {
		pod := waitPod(t, c, pods[value], corev1.PodSucceeded)
		out, err := c.PodLogs(t.Context(), "default", pod.Name, "")
		if err != nil || strings.TrimSpace(out) != want {
			t.Errorf("NVIDIA_VISIBLE_DEVICES=%s: given %q, %v; want %q", value, out, err, want)
		}
	}
}

// testIsolation checks that writes of the node outside its state directory stay in the node.
func testIsolation(t *testing.T, c *cluster.Cluster) {
	const marker = "nri-vgpu-cluster-test"
	for _, dir := range []string{"/dev", "/etc", "/opt", "/run", "/tmp", "/usr/lib", "/var/lib", "/var/run"} {
		path := filepath.Join(dir, marker)
		if _, err := c.Exec(t.Context(), "touch", path); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(c.Root() + path); dir != "/var/run" && err != nil {
			t.Errorf("the node does not have its own file: %v", err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s of the node is on the machine", path)
		}
	}
	if out, err := c.Exec(t.Context(), "hostname"); err != nil || strings.TrimSpace(out) != c.NodeName {
		t.Errorf("host name %q, %v", out, err)
	}
}

func testRestarts(t *testing.T, c *cluster.Cluster) {
	pod := runPod(t, c, newPod("stays", "exec sleep 3600"), corev1.PodRunning)
	before := pod.Status.ContainerStatuses[0]
	for _, component := range []string{cluster.Containerd, cluster.Kubelet, cluster.APIServer, cluster.Etcd} {
		pid, err := c.Pid(t.Context(), component)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Restart(t.Context(), component); err != nil {
			t.Fatal(err)
		}
		if again, err := c.Pid(t.Context(), component); err != nil || again == pid {
			t.Errorf("%s: pid %d before, %d after its restart, %v", component, pid, again, err)
		}
		eventually.Succeeds(t, podPatience, "exec after the restart of "+component, func(ctx context.Context) error {
			_, err := c.PodExec(ctx, "default", "stays", "", "true")
			return err
		})
	}
	if err := c.Kill(t.Context(), cluster.Kubelet, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, podPatience, "the kubelet's end", func(ctx context.Context) error {
		_, err := c.Pid(ctx, cluster.Kubelet)
		if err == nil {
			return errors.New("the process still runs")
		}
		return nil
	})
	if err := c.Start(t.Context(), cluster.Kubelet); err != nil {
		t.Fatal(err)
	}
	// A new pod shows that the kubelet, containerd and the control plane work together again.
	runPod(t, c, newPod("after", "true"), corev1.PodSucceeded)
	pod, err := c.Client().CoreV1().Pods("default").Get(t.Context(), "stays", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	after := pod.Status.ContainerStatuses[0]
	if after.ContainerID != before.ContainerID || after.RestartCount != 0 || after.State.Running == nil {
		t.Errorf("the container did not outlive the restarts: %+v", after)
	}
}

func testBeside(t *testing.T, c *cluster.Cluster) {
	other := up(t, cluster.Options{Name: "test-beside"})
	if other.Address == c.Address {
		t.Errorf("both clusters have the address %s", c.Address)
	}
	loadWorkload(t, other)
	runPod(t, other, newPod("ends", "true"), corev1.PodSucceeded)
	for _, cl := range []*cluster.Cluster{c, other} {
		nodes, err := cl.Client().CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Name != cl.NodeName {
			t.Errorf("cluster %s has nodes %v, %v", cl.NodeName, nodes.Items, err)
		}
	}
	if err := other.Down(); err != nil {
		t.Fatal(err)
	}
	runPod(t, c, newPod("unharmed", "true"), corev1.PodSucceeded)
}
