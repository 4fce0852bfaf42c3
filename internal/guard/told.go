// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"sync"

	"github.com/containerd/nri/pkg/api"
)

// mostTold bounds the NRI messages about all pods and containers of a node. A runtime has 2 s to
// send them to a plugin that registers, and drops the plugin if they take longer: a runtime
// that restarts would run without the guard. The runtime encodes all of them up to three times
// (nri v0.12.5, pkg/adaptation/plugin.go, synchronize), which takes 0.5 s for 32 MiB on a
// machine of two slow processors, and 3 s if five other processes keep those busy.
const mostTold = 32 << 20

// told counts the sizes of the NRI messages about the pods and containers that a runtime has.
type told struct {
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

func newTold() *told {
	return &told{objects: map[string]object{}, spaces: map[string]int{}}
}

// fits reports whether a namespace that takes `own` of `all` bytes may take `more`. It may not
// take more than it leaves to other namespaces: no tenant fills a node with one namespace.
func fits(own, all, more int) bool { return own+more <= mostTold-(all+more) }

// check returns an error if a namespace may not take that many bytes more.
func (t *told) check(namespace string, more int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fits(t.spaces[namespace], t.all, more) {
		return nil
	}
	return fmt.Errorf("environments, arguments, mounts, labels and annotations take %d KiB in namespace %q and %d KiB on the node, and this would add %d KiB: a namespace may take half of what others leave of %d MiB, as the container runtime may start without its plugins otherwise: delete pods, or shorten their environments (as by enableServiceLinks: false)",
		t.spaces[namespace]>>10, namespace, t.all>>10, more>>10, mostTold>>20)
}

// The ids of pods and of containers are different things.
func podKey(id string) string       { return "pod " + id }
func containerKey(id string) string { return "container " + id }

// add counts an object, in place of the one that had its id.
func (t *told) add(id, namespace string, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(id)
	t.objects[id] = object{namespace, bytes}
	t.spaces[namespace] += bytes
	t.all += bytes
}

// remove counts an object no longer.
func (t *told) remove(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(id)
}

func (t *told) drop(id string) {
	o, ok := t.objects[id]
	if !ok {
		return
	}
	delete(t.objects, id)
	t.all -= o.bytes
	if t.spaces[o.namespace] -= o.bytes; t.spaces[o.namespace] == 0 {
		delete(t.spaces, o.namespace)
	}
}

// replace counts the objects of another, and no others.
func (t *told) replace(other *told) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.objects, t.spaces, t.all = other.objects, other.spaces, other.all
}

// synchronizing returns a function that counts all that a runtime sends about its pods and
// containers, and then empties the message. The runtime sends several messages; those before the
// last have More set.
func (t *told) synchronizing() func(*api.SynchronizeRequest) {
	next, namespaces := newTold(), map[string]string{}
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
		// A container may come before its pod.
		for _, c := range containers {
			key := containerKey(c.GetId())
			next.add(key, namespaces[c.GetPodSandboxId()], next.objects[key].bytes)
		}
		t.replace(next)
		next, containers = newTold(), nil
		clear(namespaces)
	}
}
