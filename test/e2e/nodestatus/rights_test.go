// SPDX-License-Identifier: Apache-2.0

package nodestatus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/nri-vgpu/nri-vgpu/internal/agent/answer"
	"github.com/nri-vgpu/nri-vgpu/internal/agent/evict"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/internal/uninstall/cluster"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/nodestatus"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// symptom is the time for which a test waits for a result that does not come without a right.
const symptom = 4 * time.Second

// work runs our code that needs a right, with a client that has the account's rights. work returns
// an error if the code fails.
type work func(t *testing.T, client kubernetes.Interface) error

// needs maps each right of the manifests to its work. The keys are the role, and the verb and
// resource, with the object if the rule names an object.
var needs = map[string]map[string]work{
	"nri-vgpu": {
		"get pods":             getsPod,
		"list pods":            syncsPods,
		"watch pods":           seesNewPod,
		"list nodes":           readsNode,
		"watch nodes":          seesCapacity,
		"create events":        writesEvent,
		"patch events":         countsEvent,
		"create pods/eviction": evictsPod,
		"patch pods/status":    answersVolcano,
	},
	"extended-resource-patcher": {
		"list nodes":         advertises,
		"watch nodes":        correctsDrift,
		"patch nodes/status": advertises,
	},
	"nri-vgpu-cleanup": {
		"delete daemonsets nri-vgpu":                  begins,
		"delete daemonsets extended-resource-patcher": begins,
		"get daemonsets nri-vgpu-cleanup":             awaits,
		"list pods":                                   begins,
		"list nodes":                                  awaits,
	},
}

// manifest and rendered are the files installed with kubectl, and with Helm.
const (
	manifest = "../../../deploy/nri-vgpu.yaml"
	rendered = "../../../deploy/render/testdata/default.golden"
)

// roles returns the rules of the manifest and of the chart, by the account's name.
func roles(t *testing.T) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, file := range []string{manifest, rendered} {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := map[string][]rbacv1.PolicyRule{}
		for document := range bytes.SplitSeq(content, []byte("\n---\n")) {
			var role rbacv1.ClusterRole
			if err := yaml.Unmarshal(document, &role); err == nil && strings.HasSuffix(role.Kind, "Role") {
				found[role.Name] = append(found[role.Name], role.Rules...)
			}
		}
		for name := range found {
			rules[name] = found[name]
		}
	}
	return rules
}

// one is a rule with one right.
type one struct {
	what string
	rule rbacv1.PolicyRule
}

// single splits rules into single rights.
func single(rules []rbacv1.PolicyRule) []one {
	var all []one
	for _, rule := range rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				names := rule.ResourceNames
				if names == nil {
					names = []string{""}
				}
				for _, name := range names {
					right := one{strings.TrimSpace(verb + " " + resource + " " + name),
						rbacv1.PolicyRule{APIGroups: rule.APIGroups, Resources: []string{resource}, Verbs: []string{verb}}}
					if name != "" {
						right.rule.ResourceNames = []string{name}
					}
					all = append(all, right)
				}
			}
		}
	}
	return all
}

// TestEachRightIsNeeded checks that our code works with the rights of the manifests, and fails if
// any single right is missing.
func TestEachRightIsNeeded(t *testing.T) {
	// API servers before 1.34 do not list by a watch.
	plane.gates = "WatchList=false"
	if err := plane.restartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		plane.gates = ""
		if err := plane.restartAPI(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for account, rules := range roles(t) {
		rights := single(rules)
		if len(rights) != len(needs[account]) {
			t.Errorf("%s has %d rights, and %d are in the table", account, len(rights), len(needs[account]))
		}
		for i, right := range rights {
			t.Run(account+"/"+right.what, func(t *testing.T) {
				t.Parallel()
				does := needs[account][right.what]
				if does == nil {
					t.Fatal("the table has no purpose for this right")
				}
				name := strings.NewReplacer(" ", "-", "/", "-").Replace(account + "-" + right.what)
				if err := does(t, as(t, name+"-all", rulesOf(rights)...)); err != nil {
					t.Errorf("with all rights: %v", err)
				}
				err := does(t, as(t, name+"-less", rulesOf(slices.Delete(slices.Clone(rights), i, i+1))...))
				if err == nil {
					t.Error("nothing breaks without this right")
				}
				t.Log(err)
			})
		}
	}
}

func rulesOf(rights []one) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, right := range rights {
		rules = append(rules, right.rule)
	}
	// Volcano's annotations are reserved for schedulers and for the agent's name. This client has
	// another name.
	return append(rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods/binding"}, Verbs: []string{"create"}})
}

// repeatedly runs a function several times, because client-go backs off between lists of a resource
// that it may not watch.
func repeatedly(do func() error) error {
	time.Sleep(2 * symptom)
	for range 5 {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// during runs a program in the background while a function runs.
func during(t *testing.T, run func(context.Context), do func() error) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); run(ctx) }()
	defer func() { cancel(); <-ended }()
	return do()
}

func newCache(t *testing.T, client kubernetes.Interface, node string) *pods.Cache {
	t.Helper()
	cache, err := pods.New(client, pods.Options{Node: node, Wait: time.Second, Reads: volcano.Reads})
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

// getsPod creates a container before the watch has reported its pod.
func getsPod(t *testing.T, client kubernetes.Interface) error {
	pod := bare(t, clientOf(t, plane.admin), "rights-get", nil)
	_, err := newCache(t, client, "rights-get").Get(t.Context(), pods.Ref{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name})
	return err
}

func syncsPods(t *testing.T, client kubernetes.Interface) error {
	cache := newCache(t, client, "rights-list")
	return during(t, cache.Run, func() error { return eventually.Wait(symptom, "the node's pods are known", cache.HasSynced) })
}

func seesNewPod(t *testing.T, client kubernetes.Interface) error {
	cache := newCache(t, client, "rights-watch")
	return during(t, cache.Run, func() error {
		if err := eventually.Wait(symptom, "the node's pods are known", cache.HasSynced); err != nil {
			return err
		}
		return repeatedly(func() error {
			pod := bare(t, clientOf(t, plane.admin), "rights-watch", nil)
			return eventually.Wait(promptly, "a new pod is known", func() bool {
				_, ok := cache.Cached(pods.Ref{UID: string(pod.UID)})
				return ok
			})
		})
	})
}

// readsNode waits until the agent knows its Node.
func readsNode(t *testing.T, client kubernetes.Interface) error {
	return watchesNode(t, client, func(*ownnode.Cache, *world) error { return nil })
}

// seesCapacity waits until the agent knows that another device plugin offers devices.
func seesCapacity(t *testing.T, client kubernetes.Interface) error {
	return watchesNode(t, client, func(cache *ownnode.Cache, w *world) error {
		n := int64(0)
		return repeatedly(func() error {
			n++
			patch := fmt.Sprintf(`{"status":{"capacity":{"nvidia.com/gpu":"%d"}}}`, n)
			if _, err := w.admin.CoreV1().Nodes().Patch(t.Context(), w.node, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
				return err
			}
			return eventually.Wait(promptly, "the capacity is known", func() bool {
				quantity := cache.Node().Status.Capacity["nvidia.com/gpu"]
				return quantity.Value() == n
			})
		})
	})
}

// watchesNode runs the agent's watch of its Node until a function returns.
func watchesNode(t *testing.T, client kubernetes.Interface, do func(*ownnode.Cache, *world) error) error {
	t.Helper()
	w := &world{t: t, node: unique("rights"), admin: clientOf(t, plane.admin)}
	w.register()
	defer w.remove()
	cache, err := ownnode.New(client, w.node, func() {})
	if err != nil {
		return err
	}
	return during(t, cache.Run, func() error {
		if err := eventually.Wait(symptom, "the Node is known", func() bool { return cache.Node() != nil }); err != nil {
			return err
		}
		return do(cache, w)
	})
}

// told makes a node's recorder report an Event `times` times, and waits until an Event has this
// count.
func told(t *testing.T, client kubernetes.Interface, node string, times int, limit time.Duration) error {
	recorder := events.New(events.Options{Client: client, Node: node, Log: slog.New(slog.DiscardHandler)})
	return during(t, recorder.Run, func() error {
		for range times {
			recorder.OnNode(events.VGPUEvicted, "for a test")
		}
		return eventually.Wait(limit, fmt.Sprintf("an Event counts %d times", times), func() bool {
			all, err := clientOf(t, plane.admin).EventsV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return false
			}
			return slices.ContainsFunc(all.Items, func(e eventsv1.Event) bool {
				count := 1
				if e.Series != nil {
					count = int(e.Series.Count)
				}
				return e.ReportingInstance == node && count == times
			})
		})
	})
}

func writesEvent(t *testing.T, client kubernetes.Interface) error {
	return told(t, client, unique("rights-event"), 1, symptom)
}

// countsEvent waits for the count of a repeated Event, which the recorder writes once a minute.
func countsEvent(t *testing.T, client kubernetes.Interface) error {
	return told(t, client, unique("rights-series"), 2, 100*time.Second)
}

func unique(name string) string { return fmt.Sprintf("%s-%d", name, time.Now().UnixNano()) }

type nobodyTold struct{}

func (nobodyTold) OnPod(events.Pod, events.Reason, string, ...any) {}

// evictsPod evicts a pod that fits no GPU, so that its controller makes another pod.
func evictsPod(t *testing.T, client kubernetes.Interface) error {
	admin := clientOf(t, plane.admin)
	pod := bare(t, admin, "rights-evict", nil)
	yes := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "u", Controller: &yes}}
	pod, err := admin.CoreV1().Pods(pod.Namespace).Update(t.Context(), pod, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	cache := newCache(t, admin, "rights-evict")
	return during(t, cache.Run, func() error {
		ref := pods.Ref{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name}
		if err := eventually.Wait(symptom, "the pod is known", func() bool { _, ok := cache.Cached(ref); return ok }); err != nil {
			return err
		}
		evictor := evict.New(evict.Options{Client: client, Pods: cache, Events: nobodyTold{}, After: 1, Log: slog.New(slog.DiscardHandler)})
		return during(t, evictor.Run, func() error {
			evictor.Refused(ref, "main", "for a test")
			return eventually.Wait(symptom, "the pod is evicted", func() bool {
				now, err := admin.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
				return err != nil || now.DeletionTimestamp != nil
			})
		})
	})
}

type held []placement.Allocation

func (held) Reserve(*corev1.Pod) error            { return nil }
func (h held) Held(string) []placement.Allocation { return nil }

// answersVolcano reports to Volcano's scheduler that its assignment failed.
func answersVolcano(t *testing.T, client kubernetes.Interface) error {
	admin := clientOf(t, plane.admin)
	pod := bare(t, admin, "rights-answer", map[string]string{
		volcano.IDs: "GPU-a,NVIDIA,1024,0:;", volcano.ToAllocate: "GPU-a,NVIDIA,1024,0:;", volcano.Node: "rights-answer",
		volcano.Time: "1", volcano.BindTime: "1", volcano.Phase: "allocating",
	})
	cache := newCache(t, admin, "rights-answer")
	cfg := config.Default()
	cfg.Node.ExemptNamespaces = nil
	answerer := answer.New(answer.Options{Client: client, Config: cfg, Pods: cache, Places: held{}, Log: slog.New(slog.DiscardHandler)})
	return during(t, cache.Run, func() error {
		return during(t, answerer.Run, func() error {
			return eventually.Wait(2*symptom, "the scheduler is answered", func() bool {
				answerer.Outcome(string(pod.UID), "main", true)
				now, err := admin.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
				return err == nil && now.Annotations[volcano.Phase] != "allocating"
			})
		})
	})
}

// patches runs a patcher of a Node until a function returns.
func patches(t *testing.T, client kubernetes.Interface, do func(w *world) error) error {
	t.Helper()
	w := &world{t: t, node: unique("rights"), report: filepath.Join(t.TempDir(), nodereport.FileName), admin: clientOf(t, plane.admin)}
	w.register()
	defer w.remove()
	gpus := []gpu.GPU{{UUID: "GPU-a", MemoryBytes: 16 << 30, Healthy: true}}
	err := nodereport.Write(w.report, nodereport.Report{
		Heartbeat: time.Now(), PluginRegistered: true, GPUs: gpus, Sums: &nodereport.Sums{Free: request.Capacity(gpus, config.Default())},
	})
	if err != nil {
		return err
	}
	patcher, err := nodestatus.New(nodestatus.Options{
		Client: client, NodeName: w.node, Config: config.Default(), ReportPath: w.report, StaleAfter: time.Minute, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	return during(t, patcher.Run, func() error { return do(w) })
}

func (w *world) offers(limit time.Duration, what string) error {
	return eventually.Wait(limit, what, func() bool {
		node, err := w.admin.CoreV1().Nodes().Get(w.t.Context(), w.node, metav1.GetOptions{})
		return err == nil && units(node.Status.Allocatable) == full
	})
}

func advertises(t *testing.T, client kubernetes.Interface) error {
	return patches(t, client, func(w *world) error { return w.offers(symptom, "the Node offers its GPU") })
}

func correctsDrift(t *testing.T, client kubernetes.Interface) error {
	return patches(t, client, func(w *world) error {
		if err := w.offers(symptom, "the Node offers its GPU"); err != nil {
			return err
		}
		return repeatedly(func() error {
			w.patch(hostile("1"))
			return w.offers(promptly, "a drift is corrected")
		})
	})
}

// installed makes a namespace with the DaemonSets of an installation, and returns its name.
func installed(t *testing.T) string {
	t.Helper()
	admin, name := clientOf(t, plane.admin), unique("rights")
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, set := range []string{"nri-vgpu", "extended-resource-patcher", cleanup} {
		labels := map[string]string{"app": set}
		_, err := admin.AppsV1().DaemonSets(name).Create(t.Context(), &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Name: set},
			Spec: appsv1.DaemonSetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "none"}}},
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	return name
}

// cleanup is the DaemonSet that cleans nodes.
const cleanup = "nri-vgpu-cleanup"

func removal(client kubernetes.Interface, namespace string) cluster.Removal {
	return cluster.Removal{
		Client: client, Namespace: namespace, Name: "nri-vgpu", Patcher: "extended-resource-patcher", Timeout: symptom, Out: io.Discard,
	}
}

func begins(t *testing.T, client kubernetes.Interface) error {
	namespace := installed(t)
	err := removal(client, namespace).Begin(deadline(t))
	left, listErr := clientOf(t, plane.admin).AppsV1().DaemonSets(namespace).List(t.Context(), metav1.ListOptions{})
	if err == nil && listErr == nil && len(left.Items) != 1 {
		return fmt.Errorf("%d DaemonSets are left", len(left.Items))
	}
	return errors.Join(err, listErr)
}

// awaits waits as the chart's Job does. Only a DaemonSet's generation, which no controller observes
// in this test, could delay awaits.
func awaits(t *testing.T, client kubernetes.Interface) error {
	namespace := installed(t)
	if err := observed(t, namespace); err != nil {
		return err
	}
	return removal(client, namespace).Await(deadline(t))
}

// observed updates the DaemonSet that cleans nodes as a controller would.
func observed(t *testing.T, namespace string) error {
	t.Helper()
	sets := clientOf(t, plane.admin).AppsV1().DaemonSets(namespace)
	set, err := sets.Get(t.Context(), cleanup, metav1.GetOptions{})
	if err != nil {
		return err
	}
	set.Status.ObservedGeneration = set.Generation
	_, err = sets.UpdateStatus(t.Context(), set, metav1.UpdateOptions{})
	return err
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), symptom)
	t.Cleanup(cancel)
	return ctx
}
