// SPDX-License-Identifier: Apache-2.0

// Package pods lists the node's pods, and annotates them. The list comes from a watch on the API
// server, and its keys are the UIDs that the container runtime uses.
package pods

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Kubelet sets these annotations, and overwrites them in its requests to the runtime. In the API, a
// user may write these annotations unless a policy forbids the write.
const (
	// MirrorAnnotation is on the API's copy of a static pod, and contains the runtime's UID of the
	// static pod.
	MirrorAnnotation = corev1.MirrorPodAnnotationKey
	// HashAnnotation contains the UID of MirrorAnnotation, and is also on the static pod itself.
	HashAnnotation = "kubernetes.io/config.hash"
	// SourceAnnotation is the source of a pod: "api", or "file" or "http" for a static pod.
	SourceAnnotation = "kubernetes.io/config.source"
)

// Errors of Get wrap one of these errors.
var (
	// ErrNotFound means that the API server has no such pod, or another pod with the same name.
	ErrNotFound = errors.New("no such pod")
	// ErrUnavailable means that the API server did not answer in time.
	ErrUnavailable = errors.New("API server does not answer")
)

// Ref is a pod as the container runtime names it.
type Ref struct {
	// UID is the pod's UID, or the configuration's hash for a static pod.
	UID       string
	Namespace string
	Name      string
}

func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// Cache holds the node's pods, reduced to the fields that the project reads.
type Cache struct {
	client   kubernetes.Interface
	node     string
	wait     time.Duration
	informer cache.SharedIndexInformer

	mu      sync.Mutex
	waiters map[string][]chan struct{} // by runtime UID
	gone    func(uid string)
	changed func()
}

// Options configures a Cache.
type Options struct {
	// Node is the name of the agent's node. The cache omits pods of other nodes.
	Node string
	// Wait bounds the time that Get waits for a pod that the watch has not delivered.
	Wait time.Duration
	// Gone, if set, is called with the runtime's UID of each pod that is deleted or has ended. Gone
	// must not block. The cache misses pods that end while the agent is not running: see Alive.
	Gone func(uid string)
	// Changed, if set, is called after each change, and after Gone. Changed must not block.
	Changed func()
	// Reads reports whether the program reads an annotation of cached pods. Without Reads, the
	// cache keeps only the annotations that this package reads.
	Reads func(annotation string) bool
	// Affinity returns the part of a pod's affinity that the program reads. Without Affinity, the
	// cache keeps no affinity.
	Affinity func(*corev1.Affinity) *corev1.Affinity
}

// New returns a cache that is empty until Run.
func New(client kubernetes.Interface, opts Options) (*Cache, error) {
	c := &Cache{
		client:  client,
		node:    opts.Node,
		wait:    opts.Wait,
		waiters: map[string][]chan struct{}{},
		gone:    opts.Gone,
		changed: opts.Changed,
	}
	c.informer = cache.NewSharedIndexInformerWithOptions(c.listWatch(), &corev1.Pod{},
		cache.SharedIndexInformerOptions{Indexers: cache.Indexers{byRuntimeUID: indexRuntimeUID}})
	transform := func(obj any) (any, error) { return reduce(obj, opts) }
	if err := c.informer.SetTransform(transform); err != nil {
		return nil, fmt.Errorf("set up the pod watch: %w", err)
	}
	if _, err := c.informer.AddEventHandler(c.handler()); err != nil {
		return nil, fmt.Errorf("set up the pod watch: %w", err)
	}
	return c, nil
}

// Run keeps the cache up to date until ctx ends.
func (c *Cache) Run(ctx context.Context) { c.informer.RunWithContext(ctx) }

// HasSynced reports whether the cache has held all pods of the node at least once.
func (c *Cache) HasSynced() bool { return c.informer.HasSynced() }

// List returns all pods of the node. The caller must not change the pods.
func (c *Cache) List() []*corev1.Pod {
	items := c.informer.GetStore().List()
	pods := make([]*corev1.Pod, 0, len(items))
	for _, item := range items {
		pods = append(pods, item.(*corev1.Pod))
	}
	return pods
}

// Alive reports whether the pod exists and has not ended. The result is valid once HasSynced
// returns true.
func (c *Cache) Alive(uid string) bool {
	pod, ok := c.Cached(Ref{UID: uid})
	return ok && !Ended(pod)
}

// Ended reports whether none of a pod's containers will run again.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Get returns a pod of this node by the runtime's reference. Get returns at once if the watch has
// delivered the pod. If the watch has not, Get waits at most Options.Wait for the watch or the API
// server. The caller must not change the pod.
func (c *Cache) Get(ctx context.Context, ref Ref) (*corev1.Pod, error) {
	if pod, ok := c.Cached(ref); ok {
		return pod, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	arrived := c.await(ref.UID)
	defer c.forget(ref.UID, arrived)
	// The pod may have arrived between the first lookup and await.
	if pod, ok := c.Cached(ref); ok {
		return pod, nil
	}
	answer := make(chan reply, 1)
	go func() {
		pod, err := c.read(ctx, ref)
		answer <- reply{pod, err}
	}()
	select {
	case <-arrived:
		if pod, ok := c.Cached(ref); ok {
			return pod, nil
		}
		return nil, fmt.Errorf("pod %s: %w with uid %s", ref, ErrNotFound, ref.UID)
	case r := <-answer:
		return r.pod, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("pod %s: %w: %w", ref, ErrUnavailable, ctx.Err())
	}
}

type reply struct {
	pod *corev1.Pod
	err error
}

func (c *Cache) read(ctx context.Context, ref Ref) (*corev1.Pod, error) {
	pod, err := c.client.CoreV1().Pods(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("pod %s: %w", ref, ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("pod %s: %w: %w", ref, ErrUnavailable, err)
	case RuntimeUID(pod) != ref.UID:
		return nil, fmt.Errorf("pod %s: %w with uid %s, but one with %s", ref, ErrNotFound, ref.UID, RuntimeUID(pod))
	case pod.Spec.NodeName != c.node:
		return nil, fmt.Errorf("pod %s: %w on node %s, but on %q", ref, ErrNotFound, c.node, pod.Spec.NodeName)
	}
	return pod, nil
}

func (c *Cache) await(uid string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	arrived := make(chan struct{})
	c.waiters[uid] = append(c.waiters[uid], arrived)
	return arrived
}

func (c *Cache) forget(uid string, arrived chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	rest := c.waiters[uid][:0]
	for _, w := range c.waiters[uid] {
		if w != arrived {
			rest = append(rest, w)
		}
	}
	if len(rest) == 0 {
		delete(c.waiters, uid)
		return
	}
	c.waiters[uid] = rest
}

func (c *Cache) wake(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, arrived := range c.waiters[uid] {
		close(arrived)
	}
	delete(c.waiters, uid)
}
