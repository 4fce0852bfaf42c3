// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

// mirror holds the newest known state of the patcher's Node, from the watch or from the API
// server's answers to patches. Without the answers, the patcher would send every patch again until
// the watch catches up. mirror is the store of a client-go reflector.
type mirror struct {
	changed loop.Wakeup // has one element if the state changed

	mu     sync.Mutex
	node   *corev1.Node
	synced bool
}

func newMirror() *mirror { return &mirror{changed: loop.NewWakeup()} }

// get returns the Node, or nil if no Node exists, and reports whether the API server has answered
// at all. A caller must not modify the Node.
func (m *mirror) get() (*corev1.Node, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node, m.synced
}

// observe stores a state of the Node, unless a newer state is known.
func (m *mirror) observe(node *corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node == nil || !older(node, m.node) {
		m.set(node)
	}
}

// set stores a state of the Node. The caller holds m.mu.
func (m *mirror) set(node *corev1.Node) {
	m.node = node
	m.changed.Signal()
}

// older reports whether a has an older resource version than b. Resource versions are ordered
// across all Nodes. If the versions are not comparable, older returns false.
func older(a, b *corev1.Node) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}

// Add implements cache.ReflectorStore.
func (m *mirror) Add(obj any) error { return m.Update(obj) }

// Update implements cache.ReflectorStore.
func (m *mirror) Update(obj any) error {
	if node, ok := obj.(*corev1.Node); ok {
		m.observe(node)
	}
	return nil
}

// Delete implements cache.ReflectorStore. Delete ignores the deletion of a Node if the mirror
// already knows the Node's successor.
func (m *mirror) Delete(obj any) error {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node != nil && !older(node, m.node) {
		m.set(nil)
	}
	return nil
}

// Replace implements cache.ReflectorStore. Replace also accepts an older list: an API server
// restored from a backup starts with older versions.
func (m *mirror) Replace(list []any, _ string) error {
	var node *corev1.Node
	for _, obj := range list {
		if n, ok := obj.(*corev1.Node); ok {
			node = n
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.synced = true
	m.set(node)
	return nil
}

// Resync implements cache.ReflectorStore and does nothing.
func (m *mirror) Resync() error { return nil }
