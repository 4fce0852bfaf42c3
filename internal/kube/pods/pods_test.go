// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const node = "node-1"

func pod(name, uid string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main"}}},
	}
}

func mirror(name, uid, hash string) *corev1.Pod {
	p := pod(name, uid)
	p.Annotations = map[string]string{MirrorAnnotation: hash, HashAnnotation: hash, SourceAnnotation: "file"}
	controls := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, Controller: &controls}}
	return p
}

func ref(name, uid string) Ref { return Ref{UID: uid, Namespace: "ns", Name: name} }

// start returns a running cache and its client. If lagging is true, lists are empty and the watch
// delivers nothing, but the client still returns the objects.
func start(t *testing.T, opts Options, lagging bool, objects ...runtime.Object) (*Cache, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(objects...)
	if lagging {
		client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &corev1.PodList{}, nil
		})
		client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, watch.NewFake(), nil
		})
	}
	opts.Node = node
	if opts.Wait == 0 {
		opts.Wait = 5 * time.Second
	}
	c, err := New(client, opts)
	if err != nil {
		t.Fatal(err)
	}
	go c.Run(t.Context())
	eventually.Holds(t, 5*time.Second, "the pods are known", c.HasSynced)
	return c, client
}

func TestGet(t *testing.T) {
	elsewhere := pod("elsewhere", "u-elsewhere")
	elsewhere.Spec.NodeName = "node-2"
	forged := mirror("forged", "u-forged", "u-plain")
	objects := []runtime.Object{pod("plain", "u-plain"), mirror("static-node-1", "u-mirror", "hash"), elsewhere, forged}
	tests := []struct {
		name string
		ref  Ref
		want types.UID
		err  error
	}{
		{"by uid", ref("plain", "u-plain"), "u-plain", nil},
		{"static pod by its hash", ref("static-node-1", "hash"), "u-mirror", nil},
		{"static pod by the mirror's uid", ref("static-node-1", "u-mirror"), "", ErrNotFound},
		{"unknown", ref("none", "u-none"), "", ErrNotFound},
		{"replaced by another of its name", ref("plain", "u-old"), "", ErrNotFound},
	}
	for _, lagging := range []bool{false, true} {
		c, _ := start(t, Options{}, lagging, objects...)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				got, err := c.Get(t.Context(), tt.ref)
				if !errors.Is(err, tt.err) {
					t.Fatalf("got %v, want %v", err, tt.err)
				}
				if err == nil && got.UID != tt.want {
					t.Errorf("got %s, want %s", got.UID, tt.want)
				}
			})
		}
	}
	c, _ := start(t, Options{}, true, objects...)
	if _, err := c.Get(t.Context(), ref("elsewhere", "u-elsewhere")); !errors.Is(err, ErrNotFound) {
		t.Errorf("a pod of another node: got %v", err)
	}
}

func TestGetWithTheWatchUpAsksNobody(t *testing.T) {
	c, client := start(t, Options{}, false, pod("plain", "u"))
	client.ClearActions()
	if _, err := c.Get(t.Context(), ref("plain", "u")); err != nil {
		t.Fatal(err)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() == "get" {
			t.Errorf("asked the API server: %v", a)
		}
	}
}

func TestAForgedMirrorStandsForNoOtherPod(t *testing.T) {
	const uid = "11111111-2222-3333-4444-555555555555"
	c, client := start(t, Options{}, false, pod("real", uid), mirror("forged", "u-forged", uid))
	if got, err := c.Get(t.Context(), ref("real", uid)); err != nil || got.Name != "real" {
		t.Errorf("got %v, %v", got, err)
	}
	if err := client.CoreV1().Pods("ns").Delete(t.Context(), "real", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, 5*time.Second, "the pod is gone", func() bool { return !c.Alive(uid) })
}

func TestOnlyWhatKubeletMakesIsAMirror(t *testing.T) {
	if !IsMirror(mirror("static-node-1", "u", "hash")) || RuntimeUID(mirror("static-node-1", "u", "hash")) != "hash" {
		t.Error("a mirror is not known as one")
	}
	for name, forge := range map[string]func(*corev1.Pod){
		"no hash":              func(p *corev1.Pod) { delete(p.Annotations, HashAnnotation) },
		"another hash":         func(p *corev1.Pod) { p.Annotations[HashAnnotation] = "other" },
		"no source":            func(p *corev1.Pod) { delete(p.Annotations, SourceAnnotation) },
		"of the API":           func(p *corev1.Pod) { p.Annotations[SourceAnnotation] = "api" },
		"the annotation alone": func(p *corev1.Pod) { *p = *pod("p", "u"); p.Annotations = map[string]string{MirrorAnnotation: "hash"} },
		"no owner":             func(p *corev1.Pod) { p.OwnerReferences = nil },
		"another owner":        func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" },
		"another node":         func(p *corev1.Pod) { p.OwnerReferences[0].Name = "node-2" },
		"no controller":        func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil },
	} {
		forged := mirror("static-node-1", "u", "hash")
		forge(forged)
		if IsMirror(forged) || RuntimeUID(forged) != "u" {
			t.Errorf("%s: it stands for %s", name, RuntimeUID(forged))
		}
	}
}

func TestGetIsBounded(t *testing.T) {
	release := make(chan struct{})
	c, client := start(t, Options{Wait: 50 * time.Millisecond}, true)
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-release
		return true, nil, errors.New("too late")
	})
	defer close(release)
	begin := time.Now()
	_, err := c.Get(t.Context(), ref("plain", "u"))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "ns/plain") {
		t.Errorf("got %v", err)
	}
	if waited := time.Since(begin); waited > time.Second {
		t.Errorf("waited %v", waited)
	}
	if len(c.waiters) != 0 {
		t.Errorf("waiters are left: %v", c.waiters)
	}
}

func TestGetTakesWhatComesFirst(t *testing.T) {
	release := make(chan struct{})
	c, client := start(t, Options{}, false)
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-release
		return true, nil, errors.New("too late")
	})
	defer close(release)
	go func() {
		time.Sleep(20 * time.Millisecond)
		// The test adds the pod to the tracker, because the reactor blocks the client.
		_ = client.Tracker().Add(pod("plain", "u"))
	}()
	got, err := c.Get(t.Context(), ref("plain", "u"))
	if err != nil || got.UID != "u" {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestGoneComesBeforeChanged checks that the end of a pod has been handled when the cache reports a
// change. A reader of the change would otherwise find the pod gone, and its GPUs taken.
func TestGoneComesBeforeChanged(t *testing.T) {
	for name, end := range map[string]func(context.Context, *fake.Clientset) error{
		"deleted": func(ctx context.Context, client *fake.Clientset) error {
			return client.CoreV1().Pods("ns").Delete(ctx, "p", metav1.DeleteOptions{})
		},
		"ended": func(ctx context.Context, client *fake.Clientset) error {
			ended := pod("p", "u")
			ended.Status.Phase = corev1.PodSucceeded
			_, err := client.CoreV1().Pods("ns").UpdateStatus(ctx, ended, metav1.UpdateOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			told := make(chan string, 10)
			_, client := start(t, Options{Gone: func(string) { told <- "gone" }, Changed: func() { told <- "changed" }}, false, pod("p", "u"))
			if first := <-told; first != "changed" {
				t.Fatalf("a new pod is %s", first)
			}
			if err := end(t.Context(), client); err != nil {
				t.Fatal(err)
			}
			if first, second := <-told, <-told; first != "gone" || second != "changed" {
				t.Errorf("the cache reports %s, then %s", first, second)
			}
		})
	}
}

func TestGone(t *testing.T) {
	gone := make(chan string, 10)
	c, client := start(t, Options{Gone: func(uid string) { gone <- uid }}, false,
		pod("deleted", "u-deleted"), pod("ended", "u-ended"), mirror("static-node-1", "u-mirror", "hash"))
	api := client.CoreV1().Pods("ns")
	for _, uid := range []string{"u-deleted", "u-ended", "hash"} {
		if !c.Alive(uid) {
			t.Errorf("%s is not alive", uid)
		}
	}

	ended := pod("ended", "u-ended")
	ended.Status.Phase = corev1.PodSucceeded
	steps := []struct {
		uid string
		do  func(context.Context) error
	}{
		{"u-deleted", func(ctx context.Context) error { return api.Delete(ctx, "deleted", metav1.DeleteOptions{}) }},
		{"u-ended", func(ctx context.Context) error {
			_, err := api.UpdateStatus(ctx, ended, metav1.UpdateOptions{})
			return err
		}},
		{"hash", func(ctx context.Context) error { return api.Delete(ctx, "static-node-1", metav1.DeleteOptions{}) }},
	}
	for _, step := range steps {
		if err := step.do(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case uid := <-gone:
			if uid != step.uid {
				t.Errorf("got %s, want %s", uid, step.uid)
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("%s was not reported", step.uid)
		}
		if c.Alive(step.uid) {
			t.Errorf("%s is still alive", step.uid)
		}
	}
}

func TestReduceKeepsWhatIsAsked(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	limits := corev1.ResourceList{"nri-vgpu.io/vgpu-memory": resource.MustParse("4096")}
	full := pod("full", "u")
	full.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: strings.Repeat("x", 1000), "keep": "me", MirrorAnnotation: "hash"}
	full.Labels = map[string]string{"x": "y"}
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	full.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: &always, Command: []string{"x"}}}
	full.Spec.Containers = []corev1.Container{{Name: "main", Image: "i", Resources: corev1.ResourceRequirements{Limits: limits}}}
	full.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
	full.Spec.Volumes = []corev1.Volume{{Name: "v"}}

	full.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}, PodAffinity: &corev1.PodAffinity{}}

	obj, err := reduce(full, Options{
		Reads:    func(key string) bool { return key == "keep" },
		Affinity: func(a *corev1.Affinity) *corev1.Affinity { return &corev1.Affinity{PodAffinity: a.PodAffinity} },
	})
	if err != nil {
		t.Fatal(err)
	}
	got := obj.(*corev1.Pod)
	if got.ManagedFields != nil || got.Labels != nil || got.Spec.Volumes != nil || got.Spec.Containers[0].Image != "" || got.Spec.InitContainers[0].Command != nil || got.Spec.Affinity.NodeAffinity != nil {
		t.Errorf("kept too much: %+v", got)
	}
	if len(got.Annotations) != 2 || got.Annotations["keep"] != "me" || got.Annotations[MirrorAnnotation] != "hash" {
		t.Errorf("annotations: %v", got.Annotations)
	}
	if len(full.Annotations) != 3 {
		t.Error("the pod itself was changed")
	}
	memory := got.Spec.Containers[0].Resources.Limits["nri-vgpu.io/vgpu-memory"]
	if memory.Value() != 4096 || *got.Spec.InitContainers[0].RestartPolicy != always || got.Spec.EphemeralContainers[0].Name != "debug" || got.Spec.Affinity.PodAffinity == nil {
		t.Errorf("lost something: %+v", got.Spec)
	}
}

// TestPodsThatHaveEndedAreNotKept checks that the cache omits ended pods. A tenant may leave any
// number of ended pods in the API server, each with 256 KiB of annotations.
func TestPodsThatHaveEndedAreNotKept(t *testing.T) {
	client := fake.NewClientset()
	// The fake client ignores field selectors, so the reactor applies the selector.
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list := &corev1.PodList{}
		for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed} {
			p := pod(strings.ToLower(string(phase)), "u-"+string(phase))
			p.Status.Phase = phase
			set := fields.Set{"spec.nodeName": p.Spec.NodeName, "status.phase": string(phase)}
			if action.(clienttesting.ListAction).GetListRestrictions().Fields.Matches(set) {
				list.Items = append(list.Items, *p)
			}
		}
		return true, list, nil
	})
	c, err := New(client, Options{Node: node, Wait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	go c.Run(t.Context())
	eventually.Holds(t, 5*time.Second, "the pods are known", c.HasSynced)
	if all := c.List(); len(all) != 2 || !c.Alive("u-Pending") || !c.Alive("u-Running") {
		t.Errorf("kept are %d pods, want the two that have not ended", len(all))
	}
}

// TestPodsAreKnownSoonAfterAnOutage checks that the cache retries within seconds. Client-go alone
// would retry half a minute later.
func TestPodsAreKnownSoonAfterAnOutage(t *testing.T) {
	client := fake.NewClientset(pod("plain", "u"))
	var away atomic.Bool
	var asked atomic.Int32
	away.Store(true)
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked.Add(1)
		if away.Load() {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		asked.Add(1)
		if away.Load() {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	c, err := New(client, Options{Node: node})
	if err != nil {
		t.Fatal(err)
	}
	go c.Run(t.Context())
	// After two attempts, client-go would wait for more than three seconds.
	eventually.Holds(t, 5*time.Second, "the API server is asked three times", func() bool { return asked.Load() >= 3 })
	if c.HasSynced() {
		t.Fatal("pods are known without a list")
	}
	away.Store(false)
	begin := time.Now()
	eventually.Holds(t, 5*time.Second, "the pods are known", c.HasSynced)
	if took := time.Since(begin); took > retryPause+time.Second {
		t.Errorf("the pods were known %v after the outage", took)
	}
}

// tooLarge returns the API server's answer to a request for a version that it does not have
// (NewTooLargeResourceVersionError in k8s.io/apiserver).
func tooLarge() error {
	err := apierrors.NewTimeoutError("Too large resource version: 1000, current: 500", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// TestPodsAreKnownAfterARestoreFromABackup checks that the cache lists the pods of an API server whose
// versions are older than before.
func TestPodsAreKnownAfterARestoreFromABackup(t *testing.T) {
	client := fake.NewClientset()
	var restored atomic.Bool
	lost := watch.NewFake()
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1000"}, Items: []corev1.Pod{*pod("before", "u-before")}}
		if restored.Load() {
			if action.(clienttesting.ListActionImpl).ListOptions.ResourceVersion == "1000" {
				return true, nil, tooLarge()
			}
			list = &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "500"}, Items: []corev1.Pod{*pod("after", "u-after")}}
		}
		return true, list, nil
	})
	client.PrependWatchReactor("pods", func(clienttesting.Action) (bool, watch.Interface, error) {
		if restored.Load() {
			return true, watch.NewFake(), nil
		}
		return true, lost, nil
	})
	c, err := New(client, Options{Node: node})
	if err != nil {
		t.Fatal(err)
	}
	go c.Run(t.Context())
	eventually.Holds(t, 5*time.Second, "the pods are known", func() bool { return c.Alive("u-before") })
	restored.Store(true)
	tooOld := apierrors.NewResourceExpired("too old").Status()
	lost.Error(&tooOld)
	eventually.Holds(t, 30*time.Second, "the pods of the backup are known", func() bool { return c.Alive("u-after") && !c.Alive("u-before") })
}

func TestARefusalOfTheAPIServerIsAnAnswer(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{apierrors.NewForbidden(resource, "", errors.New("no")), true},
		{apierrors.NewResourceExpired("too old"), true},
		{apierrors.NewTooManyRequests("later", 1), true},
		{tooLarge(), true},
		{apierrors.NewTimeoutError("etcd does not answer", 1), false},
		{apierrors.NewInternalError(errors.New("no leader")), false},
		{apierrors.NewServiceUnavailable("starting"), false},
		{errors.New("connection refused"), false},
	} {
		if got := answered(tt.err); got != tt.want {
			t.Errorf("%v: %v", tt.err, got)
		}
	}
}
