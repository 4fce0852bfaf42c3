// SPDX-License-Identifier: Apache-2.0

// Package ownnode watches the Node of the program's own node.
package ownnode

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Advertised is the annotation of a Node that lists the resources that the patcher advertises: sorted,
// comma-separated. The patcher writes the annotation and the resources in the same request. A later
// patcher with another configuration reads from the annotation which keys to remove.
const Advertised = "nri-vgpu.io/advertised"

// Cache holds the labels, the capacity and the advertised resources of one Node.
type Cache struct{ informer cache.SharedIndexInformer }

// New returns a cache that is empty until Run. The cache calls changed, which must not block, after
// each change of the Node.
func New(client kubernetes.Interface, name string, changed func()) (*Cache, error) {
	only := fields.OneTermEqualSelector(metav1.ObjectNameField, name)
	nodes := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", metav1.NamespaceAll, only)
	c := &Cache{cache.NewSharedIndexInformer(nodes, &corev1.Node{}, 0, cache.Indexers{})}
	if err := c.informer.SetTransform(reduce); err != nil {
		return nil, fmt.Errorf("set up the watch of the Node: %w", err)
	}
	_, err := c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	if err != nil {
		return nil, fmt.Errorf("set up the watch of the Node: %w", err)
	}
	return c, nil
}

// Run keeps the cache up to date until ctx ends.
func (c *Cache) Run(ctx context.Context) { c.informer.RunWithContext(ctx) }

// Node returns the Node, or nil if the watch has not delivered the Node. The caller must not change
// the Node.
func (c *Cache) Node() *corev1.Node {
	for _, item := range c.informer.GetStore().List() {
		return item.(*corev1.Node)
	}
	return nil
}

// reduce drops the fields of a Node that nothing reads. Kubelet changes the other fields often.
func reduce(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels,
			Annotations: map[string]string{Advertised: node.Annotations[Advertised]},
		},
		Status: corev1.NodeStatus{Capacity: node.Status.Capacity},
	}, nil
}
