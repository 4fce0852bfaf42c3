// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
	"github.com/nri-vgpu/nri-vgpu/test/cluster/image"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

func TestMain(m *testing.M) {
	cluster.Supervise()
	os.Exit(m.Run())
}

// podPatience is the time for which a test waits for a pod.
const podPatience = 90 * time.Second

// up starts a cluster and takes the cluster down when the test ends. If the test failed, up keeps
// the logs.
func up(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	requireRoot(t)
	if o.Out == nil {
		o.Out = testWriter{t}
	}
	c, err := cluster.Up(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := cluster.Down(cluster.Options{Name: c.NodeName, StateDir: c.StateDir, KeepLogs: t.Failed()})
		if err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the node's logs are in %s/logs", c.StateDir)
		}
	})
	return c
}

func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test starts a Kubernetes node and needs root: sudo make e2e")
	}
}

// builtBinaries returns the programs that this checkout pins.
func builtBinaries(t *testing.T) components.Binaries {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root, err := components.FindRoot(wd)
	if err != nil {
		t.Fatal(err)
	}
	builder := components.Builder{Root: root, Out: testWriter{t}}
	binaries, err := builder.Build(t.Context(), components.Modules())
	if err != nil {
		t.Fatal(err)
	}
	return binaries
}

// testWriter writes progress to the test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// loadWorkload imports the workload image into the node.
func loadWorkload(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	archive := filepath.Join(t.TempDir(), "workload.tar")
	if err := image.BuildWorkload(archive, image.WorkloadName, ""); err != nil {
		t.Fatal(err)
	}
	if err := c.LoadImage(t.Context(), archive); err != nil {
		t.Fatal(err)
	}
}

// newPod returns a pod that runs a shell script once.
func newPod(name, script string) *corev1.Pod {
	grace := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name:            "main",
				Image:           image.WorkloadName,
				ImagePullPolicy: corev1.PullNever,
				Command:         []string{"sh", "-c", script},
			}},
		},
	}
}

// runPod creates a pod and waits until the pod is in the phase.
func runPod(t *testing.T, c *cluster.Cluster, pod *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	t.Helper()
	createPod(t, c, pod)
	return waitPod(t, c, pod, phase)
}

func createPod(t *testing.T, c *cluster.Cluster, pod *corev1.Pod) {
	t.Helper()
	if _, err := c.Client().CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func waitPod(t *testing.T, c *cluster.Cluster, pod *corev1.Pod, phase corev1.PodPhase) *corev1.Pod {
	t.Helper()
	pods := c.Client().CoreV1().Pods("default")
	var last *corev1.Pod
	eventually.Succeeds(t, podPatience, fmt.Sprintf("pod %s to be %s", pod.Name, phase), func(ctx context.Context) error {
		var err error
		if last, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if last.Status.Phase != phase {
			return fmt.Errorf("the pod is %s: %+v", last.Status.Phase, last.Status.ContainerStatuses)
		}
		return nil
	})
	return last
}
