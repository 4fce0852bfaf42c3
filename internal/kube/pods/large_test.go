// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"fmt"
	"maps"
	"runtime"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

// mostPodBytes is the API server's limit on the size of a pod, which etcd sets.
const mostPodBytes = 3 << 19

// heap returns the number of live bytes.
func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "memory for a pod of the node", documented.Count(mostAmounts)+" amounts of extended resources",
		fmt.Sprintf("more than %d containers", mostContainers), fmt.Sprintf("%d annotations", mostAnnotations), "1.3 MiB")
}

// TestLargePodsAreKeptSmall checks that the agent's memory suffices for 110 pods, which a kubelet
// admits. Tenants create pods as large as the API server accepts.
func TestLargePodsAreKeptSmall(t *testing.T) {
	one := *resource.NewQuantity(1, resource.DecimalSI)
	grow := func(p *corev1.Pod, of corev1.ResourceList) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{
			Name: fmt.Sprint("c", len(p.Spec.InitContainers)), Image: "a", TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File", ImagePullPolicy: "Always",
			Resources: corev1.ResourceRequirements{Limits: of, Requests: maps.Clone(of)},
		})
	}
	for name, add := range map[string]func(*corev1.Pod, int){
		"containers":                         func(p *corev1.Pod, _ int) { grow(p, nil) },
		"containers that request processors": func(p *corev1.Pod, _ int) { grow(p, corev1.ResourceList{"cpu": one}) },
		"containers that request GPUs":       func(p *corev1.Pod, _ int) { grow(p, corev1.ResourceList{"nri-vgpu.io/vgpu-memory": one}) },
		"owners": func(p *corev1.Pod, i int) {
			p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{Name: fmt.Sprint(i)})
		},
		"ephemeral containers": func(p *corev1.Pod, i int) {
			p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{
				EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: fmt.Sprint("e", i), Image: "a"}})
		},
		"a selector": func(p *corev1.Pod, i int) { p.Spec.NodeSelector[fmt.Sprint(i)] = "" },
		"a container that requests many things": func(p *corev1.Pod, i int) {
			if i == 0 {
				grow(p, corev1.ResourceList{})
			}
			p.Spec.InitContainers[0].Resources.Limits[corev1.ResourceName(fmt.Sprint("a.b/", i))] = one
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			kept := reduceLarge(t, add)
			if grown := heap() - before; grown > 1<<20 {
				t.Errorf("%d KiB are kept", grown>>10)
			}
			runtime.KeepAlive(kept)
		})
	}
}

// TestTheLargestPodIsKeptSmall checks the size of a pod that reaches every bound at the same time.
func TestTheLargestPodIsKeptSmall(t *testing.T) {
	one := *resource.NewQuantity(1, resource.DecimalSI)
	name := func(i int) string { return fmt.Sprintf("c%062d", i) } // as long as a name may be
	before := heap()
	kept := reduceLarge(t, func(p *corev1.Pod, i int) {
		if i == 0 {
			p.Annotations = map[string]string{}
			for k := range mostAnnotations {
				p.Annotations[strconv.Itoa(k)] = strings.Repeat("x", 1<<10-8)
			}
		}
		c := corev1.Container{Name: name(i)}
		if i%3 == 0 {
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceName(fmt.Sprint("a.b/", i)): one}
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name(i)}})
	})
	if grown := heap() - before; grown > 13<<20/10 {
		t.Errorf("%d KiB are kept", grown>>10)
	}
	runtime.KeepAlive(kept)
}

// reduceLarge calls add until the pod has the largest size, and returns the reduced pod.
func reduceLarge(t *testing.T, add func(p *corev1.Pod, i int)) any {
	t.Helper()
	full := pod("large", "u")
	full.Spec.NodeSelector = map[string]string{}
	for i := 0; i%1000 != 0 || full.Size() < mostPodBytes; i++ {
		add(full, i)
	}
	kept, err := reduce(full, Options{Reads: func(string) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

// TestReduceKeepsWhatManyAsk checks that the cache keeps the containers of a large pod that request
// extended resources, and drops the other containers.
func TestReduceKeepsWhatManyAsk(t *testing.T) {
	full := pod("many", "u")
	asks := corev1.ResourceList{"nri-vgpu.io/vgpu-memory": *resource.NewQuantity(1, resource.DecimalSI)}
	for i := range 3 * mostContainers {
		c := corev1.Container{Name: fmt.Sprint("c", i)}
		if i%100 == 99 {
			c.Resources.Limits = asks
		}
		full.Spec.Containers = append(full.Spec.Containers, c)
	}
	obj, err := reduce(full, Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := obj.(*corev1.Pod).Spec.Containers
	if len(got) != 7 || got[0].Name != "c99" || len(got[0].Resources.Limits) != 1 {
		t.Errorf("kept are %d containers: %+v", len(got), got)
	}
}

// TestManyAnnotationsAreKeptSmall checks that the agent's memory suffices for the annotations of
// 110 pods, which a kubelet admits. A pod's annotations have at most 256 KiB.
func TestManyAnnotationsAreKeptSmall(t *testing.T) {
	for name, reads := range map[string]func(string) bool{
		"that nobody reads":    func(string) bool { return false },
		"that somebody reads":  func(string) bool { return true },
		"and nothing is asked": nil,
	} {
		t.Run(name, func(t *testing.T) {
			full := pod("many", "u")
			full.Annotations = map[string]string{}
			for length := 0; length < 256<<10; {
				key := strconv.FormatInt(int64(len(full.Annotations)), 36)
				full.Annotations[key] = ""
				length += len(key)
			}
			raw, err := full.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			before := heap()
			var kept []any
			for range 10 {
				one := &corev1.Pod{}
				if err := one.Unmarshal(raw); err != nil {
					t.Fatal(err)
				}
				reduced, err := reduce(one, Options{Reads: reads})
				if err != nil {
					t.Fatal(err)
				}
				kept = append(kept, reduced)
			}
			if grown := (heap() - before) / 10; grown > 64<<10 {
				t.Errorf("%d KiB are kept of a pod", grown>>10)
			}
			runtime.KeepAlive(kept)
		})
	}
}
