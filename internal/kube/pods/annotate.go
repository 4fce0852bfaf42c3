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

// annotateTimeout bounds the request of Annotate.
const annotateTimeout = 5 * time.Second

// Annotate writes annotations to a pod. If the pod is gone, or another pod has its name, Annotate
// writes nothing and returns nil. Annotate writes through the status subresource, so that its permission
// does not extend to the pod's spec.
func Annotate(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, annotations map[string]string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": annotations}})
	if err != nil {
		return fmt.Errorf("encode annotations: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, annotateTimeout)
	defer cancel()
	_, err = client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a conflict of the UID
		return nil
	}
	return err
}
