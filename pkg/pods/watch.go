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
)

const byRuntimeUID = "runtimeUID"

// uuidLength is that of the UIDs that the API server gives to pods.
const uuidLength = len("00000000-0000-0000-0000-000000000000")

// RuntimeUID is the UID by which the container runtime knows a pod: a static pod's is
// in the annotations of its mirror.
func RuntimeUID(pod *corev1.Pod) string {
	if !IsMirror(pod) {
		return string(pod.UID)
	}
	return pod.Annotations[MirrorAnnotation]
}

// IsMirror reports whether a pod is the mirror of a static pod, as the kubelet of its
// node makes them: the annotations agree, and the Node controls it. The chart's policy
// lets nobody else write these annotations. Where it is not in force, whoever creates a
// pod can forge all of that but the pod's namespace and name, which a static pod's
// mirror already has; it stands for no other pod of the API server, as kubelet's hashes
// are shorter than the server's UIDs.
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

// Cached gives a pod that the watch has brought. Several may claim one runtime UID, as
// whoever creates a pod may write the mirror annotation: the one that truly
// has the UID goes before those that name it, and where the caller knows the
// name it must fit.
func (c *Cache) Cached(ref Ref) (*corev1.Pod, bool) {
	// An unknown index is the only error, and the index is ours.
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
	// Of pods that have ended nothing is read, and as many as a tenant likes may stay in the
	// API server. For the watch a pod is deleted when it ends.
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

// retryPause is how long to wait for an API server that does not answer, half
// of it for certain, before it is asked again.
const retryPause = 2 * time.Second

// untilAnswered asks until the API server answers, be it with a refusal.
// Client-go's own retries end up as much as a minute apart, during which a
// node would go on with what it knew before an outage.
func untilAnswered[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for {
		answer, err := ask()
		if err == nil || answered(err) {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(retryPause/2 + rand.N(retryPause/2)):
		}
	}
}

// answered tells whether an error is the API server's word on a request, and
// not of its being away or unwell.
func answered(err error) bool {
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
				c.tellChanged()
				c.tellGone(pod)
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
	c.tellChanged()
	if Ended(pod) {
		c.tellGone(pod)
	}
}

func (c *Cache) tellChanged() {
	if c.changed != nil {
		c.changed()
	}
}

func (c *Cache) tellGone(pod *corev1.Pod) {
	if c.gone != nil {
		c.gone(RuntimeUID(pod))
	}
}

// reduce drops from a pod what nothing here reads, before it is stored: a
// node's pods then cost the agent about a kilobyte each, and the largest less than a
// megabyte and a half.
func reduce(obj any, reads func(annotation string) bool) (any, error) {
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
			Annotations:       reduceAnnotations(pod.Annotations, reads),
			OwnerReferences:   controller(pod),
		},
		Spec: corev1.PodSpec{
			NodeName:            pod.Spec.NodeName,
			NodeSelector:        hostname(pod.Spec.NodeSelector),
			SchedulerName:       pod.Spec.SchedulerName,
			Resources:           pod.Spec.Resources,
			InitContainers:      reduceContainers(pod.Spec.InitContainers, &left),
			Containers:          reduceContainers(pod.Spec.Containers, &left),
			EphemeralContainers: reduceEphemeral(pod.Spec.EphemeralContainers),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase},
	}, nil
}

// reduceAnnotations keeps what is read. The API server bounds annotations by their bytes, and
// tens of thousands of short ones take twenty times as much memory.
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
	// mostAnnotations is how many annotations of a pod are kept: more than any pod has that
	// makes sense. One with more of those whose names are open is refused by their number.
	mostAnnotations = 256
	// mostContainers is how many containers of a pod are kept that ask for no extended
	// resource, of each kind. If it has more, none is: nothing is read of them.
	mostContainers = 256
	// mostAmounts is how many amounts of extended resources are kept of a pod. Containers
	// behind count as containers that ask for nothing, and so get no GPU.
	mostAmounts = 512
)

// reduceContainers keeps what containers ask for of extended resources. left is how many
// amounts may be kept yet.
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

// extended returns the amounts of extended resources, or none if there are more than some.
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

// controller keeps the reference to the pod's controller.
func controller(pod *corev1.Pod) []metav1.OwnerReference {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return []metav1.OwnerReference{*owner}
	}
	return nil
}

// hostname keeps the label by which a pod may be bound to its node.
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
