// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
)

// of sets a pod's controller.
func of(kind string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		yes := true
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", UID: "u-owner", Controller: &yes}}
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Annotations = map[string]string{key: value} }
}

func newPod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("u-" + name)}}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func TestJudge(t *testing.T) {
	notController := func(pod *corev1.Pod) { pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", UID: "x"}} }
	deleted := func(pod *corev1.Pod) { now := metav1.Now(); pod.DeletionTimestamp = &now }
	ended := func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }
	pinned := func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-1"} }
	tests := []struct {
		name     string
		pod      *corev1.Pod
		refusals int
		want     Verdict
		obstacle string
	}{
		{"a ReplicaSet's", newPod("p", of("ReplicaSet")), 3, Evict, ""},
		{"a StatefulSet's", newPod("p", of("StatefulSet")), 3, Evict, ""},
		{"a Job's", newPod("p", of("Job")), 4, Evict, ""},
		{"from the API server by name", newPod("p", of("ReplicaSet"), annotated(pods.SourceAnnotation, "api")), 3, Evict, ""},
		{"not yet", newPod("p", of("ReplicaSet")), 2, Wait, ""},
		{"never refused, or let in since", newPod("p", of("ReplicaSet")), 0, Wait, ""},
		{"going", newPod("p", of("ReplicaSet"), deleted), 3, Wait, ""},
		{"ended", newPod("p", of("ReplicaSet"), ended), 3, Wait, ""},
		{"nobody's", newPod("p"), 3, Keep, "no controller"},
		{"owned, but not controlled", newPod("p", notController), 3, Keep, "no controller"},
		{"nobody's, not yet", newPod("p"), 2, Wait, ""},
		{"a DaemonSet's", newPod("p", of("DaemonSet")), 3, Keep, "DaemonSet"},
		{"a mirror", newPod("p", of("Node"), annotated(pods.MirrorAnnotation, "hash")), 3, Keep, "static"},
		{"a static one", newPod("p", of("ReplicaSet"), annotated(pods.SourceAnnotation, "file")), 3, Keep, "static"},
		{"bound to this node", newPod("p", of("ReplicaSet"), pinned), 3, Keep, "node selector"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			verdict, obstacle := Judge(tt.pod, tt.refusals, 3)
			if verdict != tt.want || !strings.Contains(obstacle, tt.obstacle) || (obstacle == "") != (tt.want != Keep) {
				t.Errorf("got %v, %q; want %v, %q", verdict, obstacle, tt.want, tt.obstacle)
			}
		})
	}
}

func TestNoRefusalIsNeverTooMany(t *testing.T) {
	for _, patience := range []int{-1, 0} {
		if verdict, _ := Judge(newPod("p", of("ReplicaSet")), 0, patience); verdict != Wait {
			t.Errorf("with patience %d the verdict is %v", patience, verdict)
		}
	}
}

// TestAnEvictionHasTime checks that a request over a real connection has time for its answer.
func TestAnEvictionHasTime(t *testing.T) {
	asked := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.Path
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{pods: map[string]*corev1.Pod{}}
	e := New(Options{Client: client, Pods: c, Events: c, After: 3, Log: slog.New(slog.DiscardHandler)})
	e.evict(t.Context(), newPod("p", of("ReplicaSet")), 3, "free: nothing")
	if got := <-asked; got != "POST /api/v1/namespaces/ns/pods/p/eviction" {
		t.Errorf("requested %s", got)
	}
	if got := testutil.ToFloat64(e.metrics.results.WithLabelValues(resultEvicted)); got != 1 {
		t.Errorf("evictions counted: %v", got)
	}
}

func TestMetricsAreDescribedAndCollected(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	e := New(Options{})
	if err := registry.Register(e); err != nil {
		t.Fatal(err)
	}
	if err := registry.Register(New(Options{})); err == nil {
		t.Error("a second evictor may be registered, so the first has not described its metrics")
	}
	if count, err := testutil.GatherAndCount(registry, "nri_vgpu_evictions_total"); err != nil || count != 4 {
		t.Errorf("%d results are collected, %v; want 4", count, err)
	}
}

// cluster simulates the environment of an evictor, and records the evictor's actions.
type cluster struct {
	*Evictor
	mu      sync.Mutex
	pods    map[string]*corev1.Pod
	err     error // the API server's answer to evictions
	evicted []string
	told    []string
}

func (c *cluster) Cached(ref pods.Ref) (*corev1.Pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pod, ok := c.pods[ref.UID]
	return pod, ok
}

func (c *cluster) OnPod(pod events.Pod, reason events.Reason, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, fmt.Sprintf("%s %s: ", pod.Name, reason.Name)+fmt.Sprintf(format, args...))
}

func (c *cluster) answer(action clienttesting.Action) (bool, runtime.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if action.GetSubresource() != "eviction" {
		return false, nil, nil
	}
	eviction := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
	c.evicted = append(c.evicted, eviction.Name+" "+string(*eviction.DeleteOptions.Preconditions.UID))
	return true, nil, c.err
}

// run starts an evictor, in a synctest bubble.
func run(t *testing.T, after int, all ...*corev1.Pod) *cluster {
	t.Helper()
	c := &cluster{pods: map[string]*corev1.Pod{}}
	for _, pod := range all {
		c.pods[string(pod.UID)] = pod
	}
	client := fake.NewClientset()
	client.PrependReactor("create", "pods", c.answer)
	c.Evictor = New(Options{Client: client, Pods: c, Events: c, After: after, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	go c.Run(ctx)
	t.Cleanup(func() {
		cancel()
		synctest.Wait()
	})
	return c
}

func ref(name string) pods.Ref { return pods.Ref{UID: "u-" + name, Namespace: "ns", Name: name} }

// refuse refuses a container of a pod a number of times, as kubelet retries it.
func (c *cluster) refuse(name, container string, times int) {
	for range times {
		c.Refused(ref(name), container, "free: nothing")
		synctest.Wait()
	}
}

func (c *cluster) expect(t *testing.T, evicted ...string) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.evicted, evicted) {
		t.Fatalf("evicted were %q, want %q", c.evicted, evicted)
	}
}

func TestAPodIsEvictedAfterSomeRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, 3, newPod("a", of("ReplicaSet")))
		c.refuse("a", "one", 2)
		c.refuse("a", "two", 2)
		c.expect(t)
		c.refuse("a", "two", 1)
		c.expect(t, "a u-a")
		want := "a VGPUEvicted: it fits no GPU of this node, after 3 refusals: its controller creates another pod; free: nothing"
		if !slices.Equal(c.told, []string{want}) {
			t.Errorf("reported were %q, want %q", c.told, want)
		}
	})
}

func TestRoomInTimeIsNoEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, 3, newPod("a", of("ReplicaSet")))
		c.refuse("a", "main", 2)
		c.Granted(ref("a"))
		c.refuse("a", "main", 2)
		c.expect(t)
	})
}

func TestEvictionsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, late := newPod("a", of("ReplicaSet")), newPod("b", of("ReplicaSet")), newPod("late", of("ReplicaSet"))
		b.OwnerReferences[0].UID, late.OwnerReferences[0].UID = "u-b-owner", "u-late-owner"
		c := run(t, 1, a, b, late)
		for _, name := range []string{"a", "b", "late"} {
			c.refuse(name, "main", 1)
		}
		c.expect(t, "a u-a")
		time.Sleep(10*time.Second - time.Nanosecond)
		c.expect(t, "a u-a")
		c.Granted(ref("late")) // there was room while the pod waited for its turn
		time.Sleep(time.Nanosecond)
		c.expect(t, "a u-a", "b u-b")
		time.Sleep(pace)
		c.expect(t, "a u-a", "b u-b")
	})
}

func TestAPodThatStaysDelaysNoEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, 1, newPod("stays"), newPod("a", of("ReplicaSet")))
		c.refuse("stays", "main", 1)
		c.refuse("a", "main", 1)
		c.expect(t, "a u-a")
	})
}

func TestRefusalsAreForgottenAfterAnHour(t *testing.T) {
	tests := []struct {
		name         string
		first, again time.Duration // when the pod is refused twice, and once more
		evicted      []string
	}{
		{"within an hour", time.Minute, time.Hour, []string{"a u-a"}},
		{"an hour later", 0, time.Hour + time.Minute, nil},
		{"a quarter of an hour more at the latest", time.Minute, 76 * time.Minute, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := run(t, 3, newPod("a", of("ReplicaSet")))
				time.Sleep(tt.first)
				c.refuse("a", "main", 2)
				time.Sleep(tt.again - tt.first)
				c.refuse("a", "main", 1)
				c.expect(t, tt.evicted...)
			})
		})
	}
}

func TestAnEvictionIsRememberedForAnHour(t *testing.T) {
	for after, patience := range map[time.Duration]int{50 * time.Minute: 4, time.Hour + time.Minute: 2} {
		synctest.Test(t, func(t *testing.T) {
			a := newPod("a", of("ReplicaSet"))
			c := run(t, 2, a)
			c.refuse("a", "main", 2)
			c.expect(t, "a u-a")
			time.Sleep(after)
			if got := c.patience(a); got != patience {
				t.Errorf("%v after an eviction a pod of the controller bears %d refusals, want %d", after, got, patience)
			}
		})
	}
}

func TestPatienceDoublesSixTimes(t *testing.T) {
	e, a := New(Options{After: 3}), newPod("a", of("ReplicaSet"))
	for times, want := range []int{3, 6, 12, 24, 48, 96, 192, 192, 192} {
		if got := e.patience(a); got != want {
			t.Errorf("after %d evictions it is %d, want %d", times, got, want)
		}
		e.remember(a)
	}
	if got := e.patience(newPod("b")); got != 3 {
		t.Errorf("the patience with a pod without a controller is %d, want 3", got)
	}
}

// TestARefusalNeverBlocks checks that Refused must not block while Run does not receive. The next
// refusal queues the pod again.
func TestARefusalNeverBlocks(t *testing.T) {
	e := New(Options{After: 1})
	for i := range queueLength + 1 {
		e.Refused(ref(fmt.Sprint(i)), "main", "free: nothing")
	}
	if len(e.due) != queueLength {
		t.Errorf("%d pods wait, want %d", len(e.due), queueLength)
	}
}

func TestAControllersPodsThatComeBackBearMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, 2, newPod("a", of("ReplicaSet")), newPod("b", of("ReplicaSet")), newPod("c", of("ReplicaSet")))
		c.refuse("a", "main", 2)
		c.expect(t, "a u-a")
		time.Sleep(pace)
		c.refuse("b", "main", 3)
		c.expect(t, "a u-a")
		c.refuse("b", "main", 1)
		c.expect(t, "a u-a", "b u-b")
		time.Sleep(2 * forgetAfter)
		c.refuse("c", "main", 2)
		c.expect(t, "a u-a", "b u-b", "c u-c")
	})
}

func TestEvictionsAreReportedAndCounted(t *testing.T) {
	gone := schema.GroupResource{Resource: "pods"}
	tests := []struct {
		name   string
		pod    *corev1.Pod
		err    error
		result string
		told   string
	}{
		{"evicted", newPod("a", of("ReplicaSet")), nil, resultEvicted,
			"a VGPUEvicted: it fits no GPU of this node, after 1 refusals: its controller creates another pod; free: nothing"},
		{"nobody's", newPod("a"), nil, resultKept, "a VGPUNotEvicted: it stays on this node, where it fits no GPU: it has no controller that would recreate it; free: nothing"},
		{"budget", newPod("a", of("ReplicaSet")), apierrors.NewTooManyRequests("budget", 10), resultBudget,
			"a VGPUNotEvicted: it stays on this node, where it fits no GPU: its disruption budget forbids its eviction; free: nothing"},
		{"API server away", newPod("a", of("ReplicaSet")), errors.New("connection refused"), resultFailed, ""},
		{"gone already", newPod("a", of("ReplicaSet")), apierrors.NewNotFound(gone, "a"), "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := run(t, 1, tt.pod)
				c.err = tt.err
				c.refuse("a", "main", 1)
				if told := strings.Join(c.told, "\n"); told != tt.told {
					t.Errorf("reported were\n%q, want\n%q", told, tt.told)
				}
				for _, result := range []string{resultEvicted, resultKept, resultBudget, resultFailed} {
					want := 0.0
					if result == tt.result {
						want = 1
					}
					if got := testutil.ToFloat64(c.metrics.results.WithLabelValues(result)); got != want {
						t.Errorf("%v were counted as %s, want %v", got, result, want)
					}
				}
			})
		})
	}
}

func TestAPodThatHasGoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, 2, newPod("a", of("ReplicaSet")))
		c.refuse("a", "main", 1)
		c.PodGone("u-a")
		c.refuse("a", "main", 1)
		c.expect(t)
		c.PodGone("u-a")
		if len(c.refused) != 0 {
			t.Error("refusals of a pod that has gone are kept")
		}
	})
}

// TestRefusalsAreBounded checks the bound on remembered refusals. A user who may create pods can
// cause any number of refusals.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, 3)
		why := strings.Repeat("x", 100*maxWhy)
		for i := range 3 * maxPods {
			c.Refused(ref(fmt.Sprint(i)), "main", why)
			time.Sleep(time.Millisecond)
		}
		if len(c.refused) != maxPods {
			t.Errorf("refusals of %d pods are kept, want %d", len(c.refused), maxPods)
		}
		for uid, r := range c.refused {
			if len(r.why) > maxWhy {
				t.Fatalf("%d bytes are kept of %s", len(r.why), uid)
			}
		}
		if last, _ := c.count(ref(fmt.Sprint(3*maxPods - 1))); last != 1 {
			t.Error("the latest refusal is not kept")
		}
		if first, _ := c.count(ref("0")); first != 0 {
			t.Error("the oldest refusal is kept")
		}
	})
}

func TestSwitchedOffNothingIsCountedOrEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, 0, newPod("a", of("ReplicaSet")))
		c.refuse("a", "main", 100)
		c.expect(t)
		if len(c.refused) != 0 {
			t.Error("refusals were counted")
		}
	})
}

// TestAnotherNamespacesControllerIsAnother checks that a pod that names another namespace's
// controller does not delay evictions in that namespace. The creator of a pod chooses the
// controller that the pod names.
func TestAnotherNamespacesControllerIsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forged, honest := newPod("forged", of("ReplicaSet")), newPod("honest", of("ReplicaSet"))
		forged.Namespace = "hostile"
		c := run(t, 1, forged, honest)
		c.refuse("forged", "main", 1)
		c.expect(t, "forged u-forged")
		time.Sleep(pace)
		c.refuse("honest", "main", 1)
		c.expect(t, "forged u-forged", "honest u-honest")
	})
}
