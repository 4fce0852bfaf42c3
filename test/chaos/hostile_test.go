// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// hostileCrowd is the number of pods of a hostile tenant at a time.
const hostileCrowd = 3

// tenant is a hostile tenant, which creates pods without privileges in a namespace.
type tenant struct {
	*world
	number    int
	namespace string
	dealt     int // deeds
}

// hostilePrefix and harmlessPrefix begin the names of hostile and of harmless namespaces and pods.
const hostilePrefix, harmlessPrefix = "hostile-", "harmless-"

// makeTenants creates the tenants' namespaces, in which the API server accepts no pod with
// privileges.
func (w *world) makeTenants(n int) {
	w.Helper()
	for i := range n {
		t := &tenant{world: w, number: i, namespace: fmt.Sprintf("%s%d", hostilePrefix, i)}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: t.namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}}}
		if _, err := w.Client.CoreV1().Namespaces().Create(w.Context(), namespace, metav1.CreateOptions{}); err != nil {
			w.Fatal(err)
		}
		err := eventually.Check(w.Context(), patience, func() error {
			_, err := w.Client.CoreV1().ServiceAccounts(t.namespace).Get(w.Context(), "default", metav1.GetOptions{})
			return err
		})
		if err != nil {
			w.Fatal(err)
		}
		w.tenants = append(w.tenants, t)
	}
}

// deal returns the tenant's n-th deed, and its random choices, which depend only on the seed.
func (t *tenant) deal(n int) (deed, *rand.Rand) {
	lane := uint64(1)<<40 | uint64(t.number)<<32
	order := t.random(lane | 1<<31 | uint64(n/len(deeds))).Perm(len(deeds))
	return deeds[order[n%len(deeds)]], t.random(lane | uint64(n))
}

// attack does one deed after another, a few at a time, and returns the number of the next deed.
// Harmless pods are equal in number, size and load, and request no resources of ours.
func (t *tenant) attack(ctx context.Context, from int, harmless bool) int {
	var lives sync.WaitGroup
	room := make(chan struct{}, hostileCrowd)
	defer lives.Wait()
	prefix := hostilePrefix
	if harmless {
		prefix = harmlessPrefix
	}
	for n := from; ; n++ {
		select {
		case <-ctx.Done():
			return n
		case room <- struct{}{}:
		}
		one, r := t.deal(n)
		key := fmt.Sprintf("%s%d-%d-%d", prefix, t.number, n, t.subjects.next())
		lives.Go(func() {
			t.do(ctx, one, r, key, harmless)
			<-room
		})
	}
}

// do creates the deed's pod, and removes it after a time.
func (t *tenant) do(ctx context.Context, one deed, r *rand.Rand, key string, harmless bool) {
	if !loop.Sleep(ctx, between(r, 0, time.Second)) {
		return
	}
	d := t.draft(one, r, key, harmless)
	t.subjects.add(d.subject)
	if !harmless {
		t.log("tenant %d: %s", t.number, one.name)
		t.count.add("hostile deeds", one.name)
	}
	t.create(d)
	for range one.again {
		loop.Sleep(ctx, 500*time.Millisecond)
		_ = t.remove(key)
		t.create(d)
	}
	loop.Sleep(ctx, d.life)
	t.world.remove(ctx, d.subject)
}

func (t *tenant) draft(one deed, r *rand.Rand, key string, harmless bool) *draft {
	d := newDraft(key, "hostile", r)
	d.hostile = true
	d.calm = t.calmNow.Load()
	d.pod.Namespace = t.namespace
	d.life = between(r, 4*time.Second, 12*time.Second)
	one.fill(d, r)
	target := t.Cluster.Address + ":9394"
	if harmless {
		target = "127.0.0.1:1"
		disarm(d)
	} else {
		arm(d)
	}
	if _, ok := d.pod.Annotations[mirrorAnnotation]; ok {
		d.pod.Annotations[mirrorAnnotation] = t.aStaticPod()
		d.pod.Spec.NodeName = t.Cluster.NodeName
	}
	for _, list := range [][]corev1.Container{d.pod.Spec.InitContainers, d.pod.Spec.Containers} {
		for i := range list {
			bound(&list[i])
		}
	}
	for i := range d.pod.Spec.Containers {
		c := &d.pod.Spec.Containers[i]
		c.Env = append(c.Env, corev1.EnvVar{Name: targetVariable, Value: target})
	}
	d.end = func() error { return t.remove(key) }
	return d
}

// bound limits a container to a part of a processor, because Kubernetes divides the processors.
func bound(c *corev1.Container) {
	if c.Resources.Limits == nil {
		c.Resources.Limits = corev1.ResourceList{}
	}
	c.Resources.Limits[corev1.ResourceCPU] = resource.MustParse("100m")
	c.Resources.Limits[corev1.ResourceMemory] = resource.MustParse("256Mi")
	c.Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("1Mi")}
}

// arm sets an image that names GPUs for containers that request GPUs. Therefore the containers wait
// while the agent is down.
func arm(d *draft) {
	for i := range d.pod.Spec.Containers {
		c := &d.pod.Spec.Containers[i]
		if _, asks := c.Resources.Limits[testbed.Memory]; asks {
			c.Image = testbed.CUDAImage
		}
	}
}

// disarm removes from a pod all requests for our resources.
func disarm(d *draft) {
	d.pod.Annotations, d.pod.Finalizers = nil, nil
	for _, list := range [][]corev1.Container{d.pod.Spec.InitContainers, d.pod.Spec.Containers} {
		for i := range list {
			list[i].Resources, list[i].Image = corev1.ResourceRequirements{}, testbed.Image
			for k := range list[i].Env {
				if list[i].Env[k].Name == markVariable {
					list[i].Env[k].Value = mark{subject: d.key, container: list[i].Name}.String()
				}
			}
		}
	}
}

// aStaticPod returns the hash of one of the node's static pods, from its mirror pod.
func (t *tenant) aStaticPod() (hash string) {
	_ = call(func(ctx context.Context) error {
		pods, err := t.Client.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if found := pods.Items[i].Annotations[mirrorAnnotation]; found != "" {
				hash = found
			}
		}
		return nil
	})
	return hash
}

func (t *tenant) create(d *draft) {
	err := call(func(ctx context.Context) error {
		_, err := t.Client.CoreV1().Pods(t.namespace).Create(ctx, d.pod, metav1.CreateOptions{})
		return err
	})
	if n := len(d.pod.Spec.InitContainers); n > 1 && err != nil && strings.Contains(err.Error(), "too large") {
		d.pod.Spec.InitContainers = d.pod.Spec.InitContainers[:n/2]
		t.create(d)
		return
	}
	if err != nil {
		t.count.add("hostile pods refused by the API server", reason(err))
	}
}

// remove removes the pods of a subject, even if finalizers keep them.
func (t *tenant) remove(key string) error {
	return call(func(ctx context.Context) error {
		pods := t.Client.CoreV1().Pods(t.namespace)
		all, err := pods.List(ctx, metav1.ListOptions{LabelSelector: subjectLabel + "=" + key})
		if err != nil {
			return err
		}
		var errs []error
		for i := range all.Items {
			name := all.Items[i].Name
			if len(all.Items[i].Finalizers) > 0 {
				_, err := pods.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
				errs = append(errs, notFound(err))
			}
			errs = append(errs, notFound(pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})))
		}
		return errors.Join(errs...)
	})
}

func notFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// attackAll makes all tenants attack until the context ends.
func (w *world) attackAll(ctx context.Context, harmless bool) {
	var all sync.WaitGroup
	for _, t := range w.tenants {
		all.Go(func() {
			next := t.attack(ctx, t.dealt, harmless)
			if !harmless {
				t.dealt = next
			}
		})
	}
	all.Wait()
}

// attackLog sums the attacks that the program attack reports in the logs that kubelet keeps.
type attackLog map[string]int64

func (l attackLog) read(w *world) {
	// The pattern is valid, and an invalid pattern is the only error.
	files, _ := filepath.Glob(filepath.Join(w.Cluster.StateDir, "logs/pods", hostilePrefix+"*_"+hostilePrefix+"*/*/*.log"))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil || int64(len(content)) < l[file] {
			continue
		}
		fresh := string(content[l[file]:])
		end := strings.LastIndexByte(fresh, '\n') + 1
		l[file] += int64(end)
		for line := range strings.Lines(fresh[:end]) {
			w.addAttack(line)
		}
	}
}

func (w *world) addAttack(line string) {
	at := strings.Index(line, `{"attack":`)
	if at < 0 {
		return
	}
	var said struct {
		Attack        string
		Done, Refused int
	}
	if json.Unmarshal([]byte(line[at:]), &said) == nil {
		w.count.addN("attacks that the kernel let happen", said.Attack, said.Done)
		w.count.addN("attacks that the kernel refused", said.Attack, said.Refused)
	}
}
