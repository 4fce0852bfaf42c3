// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"sync"

	"github.com/containerd/nri/pkg/api"
)

// maxMessageBytes bounds the NRI messages about all pods and containers of a node. When a plugin
// registers, the runtime allows 2 s for sending the messages, and then drops the plugin. A runtime
// that restarts would then run without the guard. The runtime encodes all messages up to three
// times (nri v0.12.5, pkg/adaptation/plugin.go, synchronize). For 32 MiB, the encoding takes 0.5 s
// on a machine of two slow processors, and 3 s beside five busy processes.
const maxMessageBytes = 32 << 20

// messages counts the sizes of the NRI messages about the pods and containers that a runtime has.
type messages struct {
	mu      sync.Mutex
	objects map[string]object
	spaces  map[string]int // bytes by namespace
	all     int            // bytes of all namespaces
}

// object is a pod or a container.
type object struct {
	namespace string
	bytes     int
}

func newMessages() *messages {
	return &messages{objects: map[string]object{}, spaces: map[string]int{}}
}

// fits reports whether a namespace that takes `own` of `all` bytes may take `more` bytes. A
// namespace may take at most the bytes that remain for other namespaces, so that one namespace
// cannot fill a node.
func fits(own, all, more int) bool { return own+more <= maxMessageBytes-(all+more) }

// check returns an error if a namespace may not take that many further bytes.
func (m *messages) check(namespace string, more int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if fits(m.spaces[namespace], m.all, more) {
		return nil
	}
	return fmt.Errorf("environments, arguments, mounts, labels and annotations take %d KiB in namespace %q and %d KiB on the node, and this request would add %d KiB: a namespace may take half of the part of %d MiB that other namespaces leave, because beyond that the container runtime may start without its plugins: delete pods, or shorten their environments (for example by enableServiceLinks: false)",
		m.spaces[namespace]>>10, namespace, m.all>>10, more>>10, maxMessageBytes>>20)
}

// podKey and containerKey return different keys for a pod and a container with the same id.
func podKey(id string) string       { return "pod " + id }
func containerKey(id string) string { return "container " + id }

// add counts an object, and replaces an earlier object with the same id.
func (m *messages) add(id, namespace string, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(id)
	m.objects[id] = object{namespace, bytes}
	m.spaces[namespace] += bytes
	m.all += bytes
}

// remove stops counting an object.
func (m *messages) remove(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(id)
}

func (m *messages) drop(id string) {
	o, ok := m.objects[id]
	if !ok {
		return
	}
	delete(m.objects, id)
	m.all -= o.bytes
	if m.spaces[o.namespace] -= o.bytes; m.spaces[o.namespace] == 0 {
		delete(m.spaces, o.namespace)
	}
}

// replace replaces the counted objects with the objects of another counter.
func (m *messages) replace(other *messages) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects, m.spaces, m.all = other.objects, other.spaces, other.all
}

// synchronizing returns a function that counts all pods and containers in a runtime's message, and
// then empties the message. The runtime sends several messages: More is set in all messages but the
// last.
func (m *messages) synchronizing() func(*api.SynchronizeRequest) {
	next, namespaces := newMessages(), map[string]string{}
	var containers []*api.Container
	return func(request *api.SynchronizeRequest) {
		for _, pod := range request.GetPods() {
			namespaces[pod.GetId()] = pod.GetNamespace()
			next.add(podKey(pod.GetId()), pod.GetNamespace(), pod.SizeVT())
		}
		for _, c := range request.GetContainers() {
			next.add(containerKey(c.GetId()), "", c.SizeVT())
			containers = append(containers, &api.Container{Id: c.GetId(), PodSandboxId: c.GetPodSandboxId()})
		}
		request.Pods, request.Containers = nil, nil
		if request.GetMore() {
			return
		}
		// The runtime may report a container before its pod.
		for _, c := range containers {
			key := containerKey(c.GetId())
			next.add(key, namespaces[c.GetPodSandboxId()], next.objects[key].bytes)
		}
		m.replace(next)
		next, containers = newMessages(), nil
		clear(namespaces)
	}
}
