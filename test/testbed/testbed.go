// SPDX-License-Identifier: Apache-2.0

// Package testbed makes a local cluster with nri-vgpu installed from the released manifest, for the
// demo and the end-to-end tests. The package also has operations on the cluster: pods, the pods'
// results, and the oracle's reports.
package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

// Namespace is the namespace of nri-vgpu's manifest.
const Namespace = "nri-vgpu-system"

// These are the resource names of our own dialect.
const (
	Number = "nri-vgpu.io/vgpu-number"
	Memory = "nri-vgpu.io/vgpu-memory"
	Cores  = "nri-vgpu.io/vgpu-cores"
	// Percentage is in percent of each GPU's memory.
	Percentage = "nri-vgpu.io/vgpu-memory-percentage"
)

// Options describe a bed.
type Options struct {
	// Name is the cluster's name. Several clusters may run side by side.
	Name string
	// Source is the repository's root.
	Source string
	// GPUs and GPUMemory (bytes) describe the simulated cards.
	GPUs      int
	GPUMemory uint64
	// GPUConfig is the path of a configuration of gpusim on this machine, which replaces GPUs and
	// GPUMemory.
	GPUConfig string
	// Containerd and Kubelet are texts that Up appends to the configurations of containerd and
	// kubelet.
	Containerd, Kubelet string
	// ContainerdLine and KubeletLine choose other versions than the newest, such as "1.7" and
	// "1.34".
	ContainerdLine, KubeletLine string
	// CRIO is a directory with CRI-O's programs, or "" for containerd; see cluster.Options.
	CRIO string
	// Downloads is the address of the Kubernetes project's programs, or "" to build Kubernetes from
	// its sources.
	Downloads string
	// APIServer are additional flags of the API server.
	APIServer []string
	// Setup are commands that run on the node before its components.
	Setup [][]string
	// Install replaces the installation by the manifest.
	Install func(ctx context.Context, bed *Bed) error
	// Log receives a line per step.
	Log func(format string, args ...any)
}

// usualEnd is the usual time in which a pod ends. If the runtime is down when kubelet first tries
// to end the pod, kubelet retries only after ten seconds.
const usualEnd = 3 * time.Second

// Bed is a running cluster with nri-vgpu on it.
type Bed struct {
	Cluster *cluster.Cluster
	Client  kubernetes.Interface
	// UUIDs are the UUIDs of the GPUs, by index.
	UUIDs []string

	namespace string
	home      string // the namespace of nri-vgpu
	options   Options
	physical  physical
}

// In returns a copy of the bed for pods in a namespace other than default.
func (b *Bed) In(namespace string) *Bed {
	other := *b
	other.namespace = namespace
	return &other
}

// At returns a copy of the bed with nri-vgpu in a namespace other than Namespace.
func (b *Bed) At(namespace string) *Bed {
	other := *b
	other.home = namespace
	return &other
}

func (o Options) build(elem ...string) string {
	return filepath.Join(append([]string{o.Source, "build"}, elem...)...)
}

// WaitCapacity waits until the Node's allocatable amount of a resource is want.
func (b *Bed) WaitCapacity(ctx context.Context, resource string, want int64, timeout time.Duration) error {
	var have string
	err := b.WaitNode(ctx, timeout, func(node *corev1.Node) bool {
		capacity, inCapacity := node.Status.Capacity[corev1.ResourceName(resource)]
		allocatable, inAllocatable := node.Status.Allocatable[corev1.ResourceName(resource)]
		have = fmt.Sprintf("capacity %s, allocatable %s", capacity.String(), allocatable.String())
		return inCapacity && inAllocatable && capacity.Value() == want && allocatable.Value() == want
	})
	if err != nil {
		return fmt.Errorf("%s is not %d but %s: %w", resource, want, have, err)
	}
	return nil
}

// Node returns the cluster's Node from the API server.
func (b *Bed) Node(ctx context.Context) (*corev1.Node, error) {
	return b.Client.CoreV1().Nodes().Get(ctx, b.Cluster.NodeName, metav1.GetOptions{})
}

// Create makes a pod.
func (b *Bed) Create(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	created, err := b.Client.CoreV1().Pods(b.namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	return created, nil
}

// WaitPod waits until the condition holds for the pod. At the time-out the error contains want,
// which names the condition, and the pod's state.
func (b *Bed) WaitPod(ctx context.Context, name, want string, timeout time.Duration, condition func(*corev1.Pod) bool) (*corev1.Pod, error) {
	var pod *corev1.Pod
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		seen, err := b.Client.CoreV1().Pods(b.namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil { // the test may have stopped the API server for a moment
			pod = seen
		}
		return err == nil && condition(pod), nil
	})
	if err != nil {
		return nil, fmt.Errorf("pod %s is not %s after %v: %s", name, want, timeout, Describe(pod))
	}
	return pod, nil
}

// WaitRunning waits until all containers of the pod run.
func (b *Bed) WaitRunning(ctx context.Context, name string, timeout time.Duration) (*corev1.Pod, error) {
	return b.WaitPod(ctx, name, "running", timeout, func(pod *corev1.Pod) bool {
		if pod.Status.Phase != corev1.PodRunning {
			return false
		}
		for i := range pod.Status.ContainerStatuses {
			if pod.Status.ContainerStatuses[i].State.Running == nil {
				return false
			}
		}
		return true
	})
}

// WaitStarted waits until all containers of a pod have started after kubelet failed to start them.
// WaitStarted nudges kubelet, because kubelet alone would retry only after ten to fifteen seconds.
func (b *Bed) WaitStarted(ctx context.Context, name string, timeout time.Duration) (*corev1.Pod, error) {
	nudge := b.Nudger(name)
	return b.WaitPod(ctx, name, "started", timeout, func(pod *corev1.Pod) bool {
		for i := range pod.Status.ContainerStatuses {
			if pod.Status.ContainerStatuses[i].State.Waiting != nil {
				nudge(ctx)
				return false
			}
		}
		return len(pod.Status.ContainerStatuses) > 0
	})
}

// Nudger returns a function that makes kubelet sync a pod again, by a change without effect, at
// most once a second.
func (b *Bed) Nudger(name string) func(context.Context) {
	var last time.Time
	return func(ctx context.Context) {
		if time.Since(last) < time.Second {
			return
		}
		last = time.Now()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"testbed/nudged":"%d"}}}`, last.UnixNano())
		// The pod may have gone meanwhile. The caller, which waits for the pod, detects this error.
		_, _ = b.Client.CoreV1().Pods(b.namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	}
}

// WaitSucceeded waits until the pod has succeeded.
func (b *Bed) WaitSucceeded(ctx context.Context, name string, timeout time.Duration) (*corev1.Pod, error) {
	return b.WaitPod(ctx, name, "succeeded", timeout, func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodSucceeded
	})
}

// Delete removes a pod and waits until kubelet has ended the pod.
func (b *Bed) Delete(ctx context.Context, name string) error {
	pods := b.Client.CoreV1().Pods(b.namespace)
	err := pods.Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	nudge, began := b.Nudger(name), time.Now()
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		if time.Since(began) > usualEnd {
			nudge(ctx)
		}
		_, err := pods.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// DeleteAll removes pods at once.
func (b *Bed) DeleteAll(ctx context.Context, names ...string) error {
	errs := make([]error, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { errs[i] = b.Delete(ctx, name) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// Log returns the output of a container so far.
func (b *Bed) Log(ctx context.Context, pod, container string) (string, error) {
	raw, err := b.Client.CoreV1().Pods(b.namespace).
		GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
	if err != nil {
		return "", fmt.Errorf("read the log of %s/%s: %w", pod, container, err)
	}
	return string(raw), nil
}

// Messages returns the messages of a pod's Events, oldest first.
func (b *Bed) Messages(ctx context.Context, pod string) ([]string, error) {
	events, err := b.Client.CoreV1().Events(b.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Pod,involvedObject.name=" + pod,
	})
	if err != nil {
		return nil, fmt.Errorf("list the Events of %s: %w", pod, err)
	}
	messages := make([]string, 0, len(events.Items))
	for i := range events.Items {
		messages = append(messages, events.Items[i].Message)
	}
	return messages, nil
}

// Describe returns a pod's state in one line.
func Describe(pod *corev1.Pod) string {
	if pod == nil {
		return "the pod was never seen"
	}
	line := string(pod.Status.Phase)
	for _, condition := range pod.Status.Conditions {
		if condition.Status == corev1.ConditionFalse && condition.Message != "" {
			line += "; " + condition.Message
		}
	}
	for i := range pod.Status.ContainerStatuses {
		state := pod.Status.ContainerStatuses[i].State
		switch {
		case state.Waiting != nil:
			line += fmt.Sprintf("; %s waits: %s %s", pod.Status.ContainerStatuses[i].Name, state.Waiting.Reason, state.Waiting.Message)
		case state.Terminated != nil:
			line += fmt.Sprintf("; %s ended with %d: %s", pod.Status.ContainerStatuses[i].Name, state.Terminated.ExitCode, state.Terminated.Message)
		}
	}
	return line
}

// SourceRoot returns the repository's root, found from the working directory.
func SourceRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "deploy", "nri-vgpu.yaml")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("run this inside the nri-vgpu repository: deploy/nri-vgpu.yaml is in no parent directory")
		}
	}
}
