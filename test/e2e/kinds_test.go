// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// released is the time after a pod's end within which the pod's capacity must be free.
const released = 5 * time.Second

// waitReleased waits until the node has released a pod's allocation, for at most the promised time.
func waitReleased(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	files := filepath.Dir(bed.ContainerFiles(pod, "main"))
	for deadline := time.Now().Add(released); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(files); os.IsNotExist(err) {
			return
		}
	}
	t.Errorf("%v after pod %s was gone its GPU is still taken", released, pod.Name)
}

// nearlyWhole starts a pod with nearly a whole GPU, so that another pod fits only after a release.
func nearlyWhole(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	create(t, testbed.Pod(name, filler("main", testbed.Limits{testbed.Memory: 15360})))
	checkFilled(t, name, 15*gib)
	pod := running(t, name)
	if _, err := os.Stat(bed.ContainerFiles(pod, "main")); err != nil {
		t.Fatalf("the files of the container, for whose removal waitReleased waits, do not exist: %v", err)
	}
	return pod
}

// TestSidecarAddsUp checks that the allocations of an app and a concurrent sidecar add up.
func TestSidecarAddsUp(t *testing.T) {
	small(t)
	always := corev1.ContainerRestartPolicyAlways
	sidecar := filler("sidecar", testbed.Limits{testbed.Memory: 4096})
	sidecar.RestartPolicy = &always
	pod := testbed.Pod("sidecar", filler("main", testbed.Limits{testbed.Memory: 2048}))
	pod.Spec.InitContainers = []corev1.Container{sidecar}
	create(t, pod)
	made := running(t, "sidecar")
	beside, main := filled(t, "sidecar", "sidecar"), filled(t, "sidecar", "main")
	if beside.TotalBytes != 4*gib || main.TotalBytes != 2*gib {
		t.Errorf("the sidecar saw %d bytes and the app %d, want %d and %d", beside.TotalBytes, main.TotalBytes, 4*gib, 2*gib)
	}
	if _, bytes := onlyGPU(t, held(t, made)); bytes != 6*gib {
		t.Errorf("by the oracle the pod holds %d bytes, want %d", bytes, 6*gib)
	}
}

// TestEphemeralContainerSeesNoGPU checks that an ephemeral container sees no GPU, whatever its
// image requests. The container cannot request resources, and does not affect the pod's GPU.
func TestEphemeralContainerSeesNoGPU(t *testing.T) {
	small(t)
	create(t, testbed.Pod("debugged", filler("main", testbed.Limits{testbed.Memory: 4096})))
	checkFilled(t, "debugged", 4*gib)
	pod := running(t, "debugged")
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", Image: testbed.CUDAImage, ImagePullPolicy: corev1.PullNever, Command: []string{"info"},
	}}}
	_, err := bed.Client.CoreV1().Pods(pod.Namespace).UpdateEphemeralContainers(t.Context(), pod.Name, pod, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var info testbed.Info
	if err := bed.WaitResult(t.Context(), "debugged", "debug", patience, &info); err != nil {
		t.Fatal(err)
	}
	if len(info.CUDA.Devices) != 0 {
		t.Errorf("the ephemeral container sees %d GPUs", len(info.CUDA.Devices))
	}
	checkFilled(t, "debugged", 4*gib)
}

// TestJobThatHasSucceededHoldsNothing checks that a Job's pods, which stay after they have
// succeeded, hold no GPU.
func TestJobThatHasSucceededHoldsNothing(t *testing.T) {
	pod := testbed.Pod("job", testbed.Container("main", testbed.Limits{testbed.Memory: 16384}, "fill"))
	n, background := int32(4), metav1.DeletePropagationBackground
	jobs := bed.Client.BatchV1().Jobs(metav1.NamespaceDefault)
	// The node has two GPUs, and each of the four pods needs a whole GPU.
	_, err := jobs.Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: batchv1.JobSpec{
			Completions: &n, Parallelism: &n,
			Template: corev1.PodTemplateSpec{Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := jobs.Delete(context.Background(), "job", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(100 * time.Millisecond) {
		job, err := jobs.Get(t.Context(), "job", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if job.Status.Succeeded == n {
			break
		}
		if job.Status.Failed > 0 || time.Now().After(deadline) {
			t.Fatalf("%d of %d pods have succeeded, %d failed", job.Status.Succeeded, n, job.Status.Failed)
		}
	}
	list, err := bed.Client.CoreV1().Pods(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{LabelSelector: "job-name=job"})
	if err != nil || len(list.Items) != int(n) {
		t.Fatalf("the job has %d pods, want %d: %v", len(list.Items), n, err)
	}
	for i := range list.Items {
		waitReleased(t, &list.Items[i])
	}
}

// TestNamesakes creates pods of the same name one after another, each with a different limit.
func TestNamesakes(t *testing.T) {
	var before types.UID
	for _, memory := range []int64{3072, 9216, 2048} {
		pod := testbed.Pod("namesake", filler("main", testbed.Limits{testbed.Memory: memory}))
		create(t, pod)
		checkFilled(t, "namesake", uint64(memory)*mib)
		made := running(t, "namesake")
		if made.UID == before {
			t.Error("the pod is still the previous pod")
		}
		before = made.UID
		if err := bed.Delete(t.Context(), "namesake"); err != nil {
			t.Fatal(err)
		}
		waitReleased(t, made)
	}
}

// TestPodsDeletedWhileCreated checks that pods deleted during their creation leak no capacity.
func TestPodsDeletedWhileCreated(t *testing.T) {
	var all []*corev1.Pod
	for i := range 6 {
		pod, err := bed.Create(t.Context(), testbed.Pod(fmt.Sprintf("hurried-%d", i), filler("main", testbed.Limits{testbed.Memory: 15360})))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pod)
		time.Sleep(time.Duration(i) * 150 * time.Millisecond)
		if err := bed.Delete(t.Context(), pod.Name); err != nil {
			t.Fatal(err)
		}
	}
	for _, pod := range all {
		waitReleased(t, pod)
	}
	nearlyWhole(t, "one")
	nearlyWhole(t, "two")
}

// staticPod makes kubelet start a pod from a file. staticPod returns the pod's mirror and a
// function that removes the file. Kubelet permanently rejects a static pod if kubelet does not know
// the node's capacity yet. A change of the file makes another pod.
func staticPod(t *testing.T, pod *corev1.Pod) (mirror *corev1.Pod, remove func() error) {
	t.Helper()
	path := filepath.Join(bed.Cluster.Root(), "etc/kubernetes/manifests", pod.Name+".yaml")
	remove = func() error { return os.RemoveAll(path) }
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	var err error
	for attempt := range 4 {
		pod.Annotations = map[string]string{"example.com/attempt": strconv.Itoa(attempt)}
		manifest, errYAML := yaml.Marshal(pod)
		if err := errors.Join(errYAML, os.WriteFile(path, manifest, 0o644)); err != nil {
			t.Fatal(err)
		}
		if mirror, err = bed.WaitRunning(t.Context(), pod.Name+"-"+bed.Cluster.NodeName, patience/4); err == nil {
			return mirror, remove
		}
	}
	t.Fatal(err)
	return nil, nil
}

// TestStaticPod checks that a static pod keeps to its limits, and that the agent frees its capacity
// when the manifest is removed.
func TestStaticPod(t *testing.T) {
	pod := testbed.Pod("static", filler("main", testbed.Limits{testbed.Memory: 15360}))
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Namespace = metav1.NamespaceDefault
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	mirror, remove := staticPod(t, pod)
	name := mirror.Name
	// The runtime uses another UID than the API server.
	real := mirror.DeepCopy()
	real.UID = types.UID(mirror.Annotations[corev1.MirrorPodAnnotationKey])
	if fill := filled(t, name, "main"); fill.TotalBytes != 15*gib {
		t.Errorf("the pod's program saw %d bytes, want %d", fill.TotalBytes, 15*gib)
	}
	if _, bytes := onlyGPU(t, held(t, real)); bytes != 15*gib {
		t.Errorf("by the oracle the pod holds %d bytes, want %d", bytes, 15*gib)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	waitGone(t, real)
	waitReleased(t, real)
}

// waitGone waits until the pod is gone. According to the oracle, no process of the pod holds
// memory. The API server does not list the pod as alive.
func waitGone(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		now, err := bed.Client.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
		ended := apierrors.IsNotFound(err) || err == nil && (now.Status.Phase == corev1.PodFailed || now.Status.Phase == corev1.PodSucceeded)
		if ended && len(held(t, pod)) == 0 {
			return
		}
	}
	t.Fatalf("pod %s does not end", pod.Name)
}

// TestReleaseIsNotMissed checks that a pod's capacity is free soon after the pod's end, even if a
// component was down at the end.
func TestReleaseIsNotMissed(t *testing.T) {
	zero := int64(0)
	pods := bed.Client.CoreV1().Pods(metav1.NamespaceDefault)
	remove := func(t *testing.T, options metav1.DeleteOptions) {
		t.Helper()
		if err := pods.Delete(t.Context(), "goes", options); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name string
		end  func(t *testing.T, pod *corev1.Pod)
	}{
		{"forced", func(t *testing.T, _ *corev1.Pod) {
			remove(t, metav1.DeleteOptions{GracePeriodSeconds: &zero})
		}},
		{"containerd restarted", func(t *testing.T, _ *corev1.Pod) {
			if err := bed.Cluster.Restart(t.Context(), "containerd"); err != nil {
				t.Fatal(err)
			}
			waitCapacity(t, patience) // the plugin is registered again
			remove(t, metav1.DeleteOptions{})
		}},
		{"agent away", func(t *testing.T, pod *corev1.Pod) {
			if err := bed.StopAgent(t.Context(), patience); err != nil {
				t.Fatal(err)
			}
			remove(t, metav1.DeleteOptions{})
			waitGone(t, pod)
			if err := bed.StartAgent(t.Context(), patience); err != nil {
				t.Fatal(err)
			}
		}},
		{"API server away", func(t *testing.T, pod *corev1.Pod) {
			if err := bed.Cluster.Stop(t.Context(), "kube-apiserver"); err != nil {
				t.Fatal(err)
			}
			if err := bed.KillContainer(pod); err != nil {
				t.Error(err)
			}
			if err := bed.Cluster.Start(t.Context(), "kube-apiserver"); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := nearlyWhole(t, "goes")
			test.end(t, pod)
			waitGone(t, pod)
			waitReleased(t, pod)
		})
	}
}
