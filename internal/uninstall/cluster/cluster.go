// SPDX-License-Identifier: Apache-2.0

// Package cluster removes nri-vgpu's pods before nri-vgpu is removed from a cluster. After the
// agents and patchers have ended, every node removes its files, and the package waits for all
// nodes.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

const (
	selector = "app.kubernetes.io/part-of=nri-vgpu"
	interval = time.Second
)

// Removal removes nri-vgpu from a cluster.
type Removal struct {
	Client    kubernetes.Interface
	Namespace string
	// Name is the name of the agent's DaemonSet, and Patcher the name of the patcher's DaemonSet.
	Name, Patcher string
	Timeout       time.Duration
	Out           io.Writer
}

// Begin deletes the DaemonSets and waits until their pods have gone from all Ready nodes. A running
// pod would restore the files on nodes and the entries in Node objects.
func (r Removal) Begin(ctx context.Context) error {
	for _, name := range []string{r.Name, r.Patcher} {
		err := r.Client.AppsV1().DaemonSets(r.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the DaemonSet %s: %w", name, err)
		}
	}
	return r.await(ctx, "agents and patchers to end", func(ctx context.Context) (waiting []string, err error) {
		ready, err := r.readyNodes(ctx)
		if err != nil {
			return nil, err
		}
		pods, err := r.pods(ctx, r.Name, r.Patcher)
		for i := range pods {
			if node := pods[i].Spec.NodeName; ready[node] {
				waiting = append(waiting, node)
			}
		}
		return waiting, err
	})
}

// Await waits until every Ready node is clean.
func (r Removal) Await(ctx context.Context) error {
	err := r.await(ctx, "the nodes to finish", func(ctx context.Context) ([]string, error) {
		set, err := r.Client.AppsV1().DaemonSets(r.Namespace).Get(ctx, r.cleanup(), metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read the DaemonSet %s: %w", r.cleanup(), err)
		}
		pods, err := r.pods(ctx, r.cleanup())
		if err != nil {
			return nil, err
		}
		if set.Status.ObservedGeneration < set.Generation || len(pods) < int(set.Status.DesiredNumberScheduled) {
			return []string{"nodes without a pod yet"}, nil
		}
		ready, err := r.readyNodes(ctx)
		return unfinished(pods, ready), err
	})
	if err != nil {
		return err
	}
	return r.printMissing(ctx)
}

// unfinished returns the Ready nodes that are not clean, with the reasons.
func unfinished(pods []corev1.Pod, ready map[string]bool) []string {
	var waiting []string
	for i := range pods {
		if pod := &pods[i]; ready[pod.Spec.NodeName] && !podReady(pod) {
			waiting = append(waiting, pod.Spec.NodeName+reason(pod))
		}
	}
	return waiting
}

func podReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// reason returns the message of an ended or waiting container of the pod.
func reason(pod *corev1.Pod) string {
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		last, waiting := status.LastTerminationState.Terminated, status.State.Waiting
		switch {
		case last != nil && last.Message != "":
			return " (" + strings.TrimSpace(last.Message) + ")"
		case waiting != nil && waiting.Message != "":
			return " (" + waiting.Message + ")"
		}
	}
	return ""
}

// printMissing prints the nodes that Await skipped because they are not Ready.
func (r Removal) printMissing(ctx context.Context) error {
	ready, err := r.readyNodes(ctx)
	if err != nil {
		return err
	}
	pods, err := r.pods(ctx, r.cleanup())
	if err != nil {
		return err
	}
	for i := range pods {
		if node := pods[i].Spec.NodeName; !ready[node] {
			fmt.Fprintf(r.Out, "node %s is not Ready, and keeps the installed files\n", node)
		}
	}
	return nil
}

func (r Removal) readyNodes(ctx context.Context) (map[string]bool, error) {
	nodes, err := r.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	ready := map[string]bool{}
	for i := range nodes.Items {
		for _, c := range nodes.Items[i].Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				ready[nodes.Items[i].Name] = true
			}
		}
	}
	return ready, nil
}

// cleanup returns the name of the DaemonSet whose pods become Ready when their node is clean.
func (r Removal) cleanup() string { return r.Name + "-cleanup" }

// pods returns the pods of the DaemonSets.
func (r Removal) pods(ctx context.Context, sets ...string) ([]corev1.Pod, error) {
	pods, err := r.Client.CoreV1().Pods(r.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
		owner := metav1.GetControllerOf(&pod)
		return owner == nil || owner.Kind != "DaemonSet" || !slices.Contains(sets, owner.Name)
	}), nil
}

// await calls ask until ask returns no names. await tolerates errors of the API server.
func (r Removal) await(ctx context.Context, what string, ask func(context.Context) ([]string, error)) error {
	var waiting []string
	var last error
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		waiting, last = ask(ctx)
		return last == nil && len(waiting) == 0, nil
	})
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("wait for %s: %w, on %s; helm uninstall --no-hooks removes nri-vgpu without waiting", what, err, strings.Join(waiting, ", ")), last)
}
