// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// writeTimeout bounds the request of Annotate and Report.
const writeTimeout = 5 * time.Second

// Annotate writes annotations to a pod. If the pod is gone, or another pod has its name, Annotate
// writes nothing and returns nil. Annotate writes through the status subresource, so that the
// permission to annotate does not extend to the pod's spec.
func Annotate(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, annotations map[string]string) error {
	return patch(ctx, client, pod, annotations, nil)
}

// Report writes an annotation and conditions to a pod, as Annotate does. An empty text removes the
// annotation, and a condition without a status is removed. A condition without a time keeps its time.
func Report(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, annotation, text string, conditions []corev1.PodCondition) error {
	value := any(text)
	if text == "" {
		value = nil
	}
	changes := make([]any, len(conditions))
	for i, c := range conditions {
		change := map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message}
		if c.Status == "" {
			change = map[string]any{"type": c.Type, "$patch": "delete"}
		} else if !c.LastTransitionTime.IsZero() {
			change["lastTransitionTime"] = c.LastTransitionTime
		}
		changes[i] = change
	}
	return patch(ctx, client, pod, map[string]any{annotation: value}, changes)
}

func patch(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, annotations any, conditions []any) error {
	change := map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": annotations}}
	if len(conditions) > 0 {
		change["status"] = map[string]any{"conditions": conditions}
	}
	body, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encode annotations: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // the UID conflicts
		return nil
	}
	return err
}
