// SPDX-License-Identifier: Apache-2.0

// Package turns measures how long the Nodes of the mode fit lag behind their pods. A watch of the API
// server reports the binding or the end of a pod. Another watch reports the first Node that offers
// the turns for the changed pods. The labels of the Node change in the same patch.
package turns

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Change is a change of a pod that a Node must publish.
type Change string

// These are the changes.
const (
	Binding Change = "binding"
	End     Change = "end"
)

// Delay is the time from the report of a pod's change to the report of the Node.
type Delay struct {
	Node, Pod string
	Change    Change
	Took      time.Duration
}

// Recorder records delays until its context ends. Changes of a node must not overlap, because a Node
// offers the same turns before a binding and an end as after both.
type Recorder struct {
	mu     sync.Mutex
	delays []Delay
	err    error // the end of a watch

	bound   map[string]map[types.UID]bool // the pods with a turn, by node
	offered map[string]int64              // the turns that each Node offers
	waiting map[string][]change           // by node
}

// change is a change that the Node has not published.
type change struct {
	Delay
	at time.Time
}

// Record starts a Recorder. No pod may change before Record returns.
func Record(ctx context.Context, client kubernetes.Interface) (*Recorder, error) {
	r := &Recorder{bound: map[string]map[types.UID]bool{}, offered: map[string]int64{}, waiting: map[string][]change{}}
	running, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range running.Items {
		r.pod(&running.Items[i], false)
	}
	r.waiting = map[string][]change{}
	ofPods, err := client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: running.ResourceVersion})
	if err != nil {
		return nil, err
	}
	ofNodes, err := client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		ofPods.Stop()
		return nil, err
	}
	go r.follow(ctx, ofPods, ofNodes)
	return r, nil
}

// follow reads both watches until ctx or a watch ends.
func (r *Recorder) follow(ctx context.Context, ofPods, ofNodes watch.Interface) {
	defer ofPods.Stop()
	defer ofNodes.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, open := <-ofPods.ResultChan():
			if pod, ok := e.Object.(*corev1.Pod); ok {
				r.pod(pod, e.Type == watch.Deleted)
			} else if r.end(open, e) {
				return
			}
		case e, open := <-ofNodes.ResultChan():
			if node, ok := e.Object.(*corev1.Node); ok {
				r.node(node)
			} else if r.end(open, e) {
				return
			}
		}
	}
}

// end records the end of a watch, and reports whether the watch has ended.
func (r *Recorder) end(open bool, e watch.Event) bool {
	if open && e.Type != watch.Error {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = fmt.Errorf("the API server ended a watch: %v", e.Object)
	return true
}

// pod records a report of a pod.
func (r *Recorder) pod(pod *corev1.Pod, deleted bool) {
	node := pod.Spec.NodeName
	if node == "" || !takesTurn(pod) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bound[node] == nil {
		r.bound[node] = map[types.UID]bool{}
	}
	now := Delay{Node: node, Pod: pod.Name, Change: Binding}
	switch ended := deleted || pods.Ended(pod); {
	case ended && r.bound[node][pod.UID]:
		delete(r.bound[node], pod.UID)
		now.Change = End
	case !ended && !r.bound[node][pod.UID]:
		r.bound[node][pod.UID] = true
	default:
		return
	}
	r.waiting[node] = append(r.waiting[node], change{now, time.Now()})
	r.settle(node)
}

// takesTurn reports whether a container of a pod takes a turn.
func takesTurn(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		_, takes := c.Resources.Requests[request.FitTurn]
		return takes
	})
}

// node records a report of a Node.
func (r *Recorder) node(node *corev1.Node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	turns := node.Status.Allocatable[request.FitTurn]
	r.offered[node.Name] = turns.Value()
	r.settle(node.Name)
}

// settle records the delays of a node's changes if the Node offers one turn more than its pods take.
func (r *Recorder) settle(node string) {
	if r.offered[node] != int64(len(r.bound[node])+1) {
		return
	}
	for _, c := range r.waiting[node] {
		c.Took = time.Since(c.at)
		r.delays = append(r.delays, c.Delay)
	}
	delete(r.waiting, node)
}

// Await waits until the Node has published a change of a pod.
func (r *Recorder) Await(ctx context.Context, pod string, change Change, patience time.Duration) error {
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.delays, func(d Delay) bool { return d.Pod == pod && d.Change == change }), r.err
	})
	if err != nil {
		return fmt.Errorf("wait until the Node publishes the %s of pod %s: %w", change, pod, err)
	}
	return nil
}

// Delays returns the delays of a change, the shortest first.
func (r *Recorder) Delays(change Change) []Delay {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(r.delays), func(d Delay) bool { return d.Change != change })
	slices.SortFunc(all, func(a, b Delay) int { return cmp.Compare(a.Took, b.Took) })
	return all
}
