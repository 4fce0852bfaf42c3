// SPDX-License-Identifier: Apache-2.0

// Package full labels the agent's own pod with the shapes of pods that have no room on the node. In
// the mode fit, pods of these shapes have anti-affinity to the labels. Only the scheduler checks this
// condition, kubelet does not.
package full

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// timeout bounds the requests of a Set.
const timeout = 2 * time.Second

// Labeler writes the labels. The zero have means that the labels are unknown.
type Labeler struct {
	client          kubernetes.Interface
	namespace, name string
	have            map[string]string
}

// New returns a Labeler for the agent's pod.
func New(client kubernetes.Interface, namespace, name string) *Labeler {
	return &Labeler{client: client, namespace: namespace, name: name}
}

// Set replaces the labels of the agent's pod by labels for the shapes. Set writes only changes.
func (l *Labeler) Set(ctx context.Context, shapes []string) error {
	if l.name == "" || l.namespace == "" {
		return errors.New("label the agent's pod: its name is unknown: set --pod-name and --pod-namespace")
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if l.have == nil {
		pod, err := l.client.CoreV1().Pods(l.namespace).Get(ctx, l.name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the labels of the agent's pod %s/%s: %w", l.namespace, l.name, err)
		}
		l.have = own(pod)
	}
	change := l.change(shapes)
	if len(change) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": change}})
	if err != nil {
		return fmt.Errorf("encode labels: %w", err)
	}
	// The permission to write the status of pods does not extend to their spec.
	pod, err := l.client.CoreV1().Pods(l.namespace).Patch(ctx, l.name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		l.have = nil
		return fmt.Errorf("label the agent's pod %s/%s: %w", l.namespace, l.name, err)
	}
	l.have = own(pod)
	return nil
}

// change returns the labels to write; nil removes a label.
func (l *Labeler) change(shapes []string) map[string]*string {
	change, value, want := map[string]*string{}, "true", map[string]bool{}
	for _, shape := range shapes {
		key := request.FitFull + shape
		want[key] = true
		if l.have[key] != value {
			change[key] = &value
		}
	}
	for key := range l.have {
		if !want[key] {
			change[key] = nil
		}
	}
	return change
}

// own returns the labels of a pod that a Labeler writes.
func own(pod *corev1.Pod) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, pod.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return !strings.HasPrefix(key, request.FitFull) })
	return labels
}
