package nodestatus

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// mirror holds the newest known state of the own Node: what the watch brings,
// and what the API server answers to a patch, whichever is newer. Without the
// latter every patch would be sent again until the watch catches up. It is
// the store of a client-go reflector.
type mirror struct {
	changed chan struct{} // has one element while there is news

	mu     sync.Mutex
	node   *corev1.Node
	synced bool
}

func newMirror() *mirror { return &mirror{changed: make(chan struct{}, 1)} }

// get returns the Node, nil if there is none, and whether the API server has
// answered at all. The Node must not be modified.
func (m *mirror) get() (*corev1.Node, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.node, m.synced
}

// observe takes a state of the Node in, unless a newer one is known.
func (m *mirror) observe(node *corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.node == nil || !older(node, m.node) {
		m.set(node)
	}
}

// set needs m.mu.
func (m *mirror) set(node *corev1.Node) {
	m.node = node
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// older compares resource versions, which are ordered across all Nodes. One
// that cannot be compared counts as news.
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

// Delete implements cache.ReflectorStore. The deletion of a Node whose
// successor is known already is no news.
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

// Replace implements cache.ReflectorStore. A list is believed even if it is
// older: an API server restored from a backup starts anew.
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

// Resync implements cache.ReflectorStore; there is nothing to do.
func (m *mirror) Resync() error { return nil }
