// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Inject makes simulated GPUs fail, or ends the failure, with the arguments of "gpusim inject".
func (b *Bed) Inject(args ...string) error {
	_, err := b.Simulate(append([]string{"inject"}, args...)...)
	return err
}

// Simulate changes the simulated GPUs by a command of gpusim, and returns the command's output.
func (b *Bed) Simulate(args ...string) (string, error) {
	if !b.options.Simulated() {
		return "", fmt.Errorf("gpusim %v: the node has real GPUs", args)
	}
	args = append(args, filepath.Join(b.Cluster.Root(), "dev", "gpusim"))
	out, err := exec.Command(b.options.build("gpusim", "gpusim"), args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("gpusim %v: %w: %s", args, err, out)
	}
	return string(out), nil
}

// CreateReplicaSet makes a ReplicaSet of one pod with this container.
func (b *Bed) CreateReplicaSet(ctx context.Context, name string, container corev1.Container) (*appsv1.ReplicaSet, error) {
	pod := Pod(name, container)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	labels := map[string]string{"set": name}
	one := int32(1)
	set, err := b.Client.AppsV1().ReplicaSets(b.namespace).Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &one,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create the ReplicaSet %s: %w", name, err)
	}
	return set, nil
}

// DeleteReplicaSet deletes a ReplicaSet and waits until its pods are gone.
func (b *Bed) DeleteReplicaSet(ctx context.Context, set *appsv1.ReplicaSet) error {
	foreground := metav1.DeletePropagationForeground
	err := b.Client.AppsV1().ReplicaSets(set.Namespace).Delete(ctx, set.Name, metav1.DeleteOptions{PropagationPolicy: &foreground})
	if err != nil {
		return fmt.Errorf("delete the ReplicaSet %s: %w", set.Name, err)
	}
	return wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		pods, err := b.replicas(ctx, set)
		return err == nil && len(pods) == 0, nil
	})
}

// WaitReplica waits for a pod of a ReplicaSet for which the condition holds.
func (b *Bed) WaitReplica(ctx context.Context, set *appsv1.ReplicaSet, timeout time.Duration, condition func(*corev1.Pod) bool) (*corev1.Pod, error) {
	var found *corev1.Pod
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		pods, err := b.replicas(ctx, set)
		for i := range pods {
			if pods[i].DeletionTimestamp == nil && condition(&pods[i]) {
				found = &pods[i]
			}
		}
		return err == nil && found != nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("no such pod of the ReplicaSet %s: %w", set.Name, err)
	}
	return found, nil
}

func (b *Bed) replicas(ctx context.Context, set *appsv1.ReplicaSet) ([]corev1.Pod, error) {
	list, err := b.Client.CoreV1().Pods(set.Namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(set.Spec.Selector)})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
