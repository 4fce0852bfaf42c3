// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

const byRuntimeUID = "runtimeUID"

// uuidLength is the length of the UIDs that the API server assigns to pods.
const uuidLength = len("00000000-0000-0000-0000-000000000000")

// RuntimeUID returns the UID that the container runtime uses for a pod. The annotations of a mirror
// contain the UID of its static pod.
func RuntimeUID(pod *corev1.Pod) string {
	if !IsMirror(pod) {
		return string(pod.UID)
	}
	return pod.Annotations[MirrorAnnotation]
}

// IsMirror reports whether a pod is the mirror of a static pod as created by kubelet. In a mirror,
// the annotations agree, and the Node controls the pod. The chart's policy lets only kubelet write
// these annotations. Without the policy, the creator of a pod can forge all of these annotations. A
// forged mirror cannot take the namespace and name of a static pod, because the real mirror already
// has both. A forged mirror cannot have the runtime UID of another pod of the API server: kubelet's
// hashes are shorter than the server's UIDs.
func IsMirror(pod *corev1.Pod) bool {
	hash, source := pod.Annotations[MirrorAnnotation], pod.Annotations[SourceAnnotation]
	if hash == "" || len(hash) == uuidLength || pod.Annotations[HashAnnotation] != hash || source != "file" && source != "http" {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.APIVersion == "v1" && owner.Kind == "Node" && owner.Name == pod.Spec.NodeName
}

func indexRuntimeUID(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("index pods: got a %T", obj)
	}
	return []string{RuntimeUID(pod)}, nil
}

// Cached returns a pod that the watch has delivered. Several pods may claim one runtime UID,
// because any creator of a pod may write the mirror annotation. The pod with this UID takes
// precedence over pods whose annotation contains the UID. If ref has a name, Cached ignores pods
// with other names.
func (c *Cache) Cached(ref Ref) (*corev1.Pod, bool) {
	// ByIndex fails only for an unknown index, and New adds this index.
	items, _ := c.informer.GetIndexer().ByIndex(byRuntimeUID, ref.UID)
	var found *corev1.Pod
	for _, item := range items {
		pod := item.(*corev1.Pod)
		if ref.Name != "" && (pod.Name != ref.Name || pod.Namespace != ref.Namespace) {
			continue
		}
		if string(pod.UID) == ref.UID || found == nil {
			found = pod
		}
	}
	return found, found != nil
}

func (c *Cache) listWatch() cache.ListerWatcher {
	// The watch omits ended pods: nothing reads ended pods, and a tenant may leave any number of
	// them in the API server. When a pod ends, the watch reports the pod as deleted.
	selector := fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", c.node),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	).String()
	api := c.client.CoreV1().Pods(metav1.NamespaceAll)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return untilAnswered(ctx, func() (runtime.Object, error) { return api.List(ctx, o) })
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return untilAnswered(ctx, func() (watch.Interface, error) { return api.Watch(ctx, o) })
		},
	}
	return cache.ToListWatcherWithWatchListSemantics(lw, c.client)
}

// retryPause is the longest wait before the next request to an API server that does not answer. The
// shortest wait is half of retryPause.
const retryPause = 2 * time.Second

// untilAnswered retries until the API server answers, even with a refusal. The interval between
// client-go's own retries grows to a minute. After an outage, the node would use outdated state for
// a minute.
func untilAnswered[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for {
		answer, err := ask()
		if err == nil || answered(err) {
			return answer, err
		}
		if !loop.Sleep(ctx, retryPause/2+rand.N(retryPause/2)) {
			return answer, err
		}
	}
}

// answered reports whether an error is the API server's answer to a request, and not a failure of
// the server. The server answers a request for a version that it does not have by a timeout. A server
// that was restored from a backup never has the version, and client-go then lists without a version.
func answered(err error) bool {
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return true
	}
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}

func (c *Cache) handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { c.seen(obj) },
		UpdateFunc: func(_, obj any) { c.seen(obj) },
		DeleteFunc: func(obj any) {
			if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = last.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				c.notifyGone(pod)
				c.notifyChanged()
			}
		},
	}
}

func (c *Cache) seen(obj any) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	c.wake(RuntimeUID(pod))
	if Ended(pod) {
		c.notifyGone(pod)
	}
	c.notifyChanged()
}

func (c *Cache) notifyChanged() {
	if c.changed != nil {
		c.changed()
	}
}

func (c *Cache) notifyGone(pod *corev1.Pod) {
	if c.gone != nil {
		c.gone(RuntimeUID(pod))
	}
}

// reduce drops the fields of a pod that nothing reads, before the informer stores the pod. A
// typical pod then takes about a kilobyte of the agent's memory, and the largest pod takes 1.3 MiB.
func reduce(obj any, opts Options) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	left := mostAmounts
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         pod.Namespace,
			Name:              pod.Name,
			UID:               pod.UID,
			ResourceVersion:   pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp,
			DeletionTimestamp: pod.DeletionTimestamp,
			Annotations:       reduceAnnotations(pod.Annotations, opts.Reads),
			OwnerReferences:   controller(pod),
		},
		Spec: corev1.PodSpec{
			NodeName:            pod.Spec.NodeName,
			NodeSelector:        hostname(pod.Spec.NodeSelector),
			SchedulerName:       pod.Spec.SchedulerName,
			Affinity:            reduceAffinity(pod.Spec.Affinity, opts.Affinity),
			Resources:           pod.Spec.Resources,
			InitContainers:      reduceContainers(pod.Spec.InitContainers, &left),
			Containers:          reduceContainers(pod.Spec.Containers, &left),
			EphemeralContainers: reduceEphemeral(pod.Spec.EphemeralContainers),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}, nil
}

func reduceAffinity(affinity *corev1.Affinity, read func(*corev1.Affinity) *corev1.Affinity) *corev1.Affinity {
	if affinity == nil || read == nil {
		return nil
	}
	return read(affinity)
}

// reduceAnnotations keeps the annotations that the program reads. The API server bounds annotations
// by their bytes, but tens of thousands of short annotations take twenty times as much memory.
func reduceAnnotations(annotations map[string]string, reads func(annotation string) bool) map[string]string {
	kept := map[string]string{}
	for _, key := range []string{MirrorAnnotation, HashAnnotation, SourceAnnotation} {
		if value, ok := annotations[key]; ok {
			kept[key] = value
		}
	}
	for key, value := range annotations {
		if len(kept) >= mostAnnotations {
			break
		}
		if reads != nil && reads(key) {
			kept[key] = value
		}
	}
	return kept
}

const (
	// mostAnnotations bounds the kept annotations of a pod. No sensible pod has so many
	// annotations. The agent refuses a pod with more annotations of a prefix than the dialects have
	// resources.
	mostAnnotations = 256
	// mostContainers bounds the containers of each kind that request no extended resource. If a pod
	// has more containers of a kind, reduce keeps none of these containers, because nothing reads
	// them.
	mostContainers = 256
	// mostAmounts bounds the kept amounts of extended resources of a pod. Further containers count
	// as containers that request nothing, and so get no GPU.
	mostAmounts = 512
)

// reduceContainers keeps the containers' limits on extended resources. left is the number of
// amounts that reduce may still keep.
func reduceContainers(containers []corev1.Container, left *int) []corev1.Container {
	var reduced []corev1.Container
	for i := range containers {
		limits := extended(containers[i].Resources.Limits, *left)
		*left -= len(limits)
		if len(limits) == 0 && len(containers) > mostContainers {
			continue
		}
		reduced = append(reduced, corev1.Container{
			Name:          containers[i].Name,
			Resources:     corev1.ResourceRequirements{Limits: limits},
			RestartPolicy: containers[i].RestartPolicy,
		})
	}
	return slices.Clip(reduced)
}

// extended returns the amounts of extended resources, or nil if a container has more than most
// amounts.
func extended(limits corev1.ResourceList, most int) corev1.ResourceList {
	var amounts corev1.ResourceList
	for name, amount := range limits {
		if !strings.Contains(string(name), "/") {
			continue
		}
		if len(amounts) == most {
			return nil
		}
		if amounts == nil {
			amounts = corev1.ResourceList{}
		}
		amounts[name] = amount
	}
	return amounts
}

// controller returns the reference to the pod's controller.
func controller(pod *corev1.Pod) []metav1.OwnerReference {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return []metav1.OwnerReference{*owner}
	}
	return nil
}

// hostname returns the label that may bind a pod to its node.
func hostname(selector map[string]string) map[string]string {
	if name, ok := selector[corev1.LabelHostname]; ok {
		return map[string]string{corev1.LabelHostname: name}
	}
	return nil
}

func reduceEphemeral(containers []corev1.EphemeralContainer) []corev1.EphemeralContainer {
	reduced := make([]corev1.EphemeralContainer, min(len(containers), mostContainers))
	for i := range reduced {
		reduced[i].Name = containers[i].Name
	}
	return reduced
}
