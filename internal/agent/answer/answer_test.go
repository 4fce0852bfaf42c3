// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const mib = 1 << 20

// limits are a container's limits, by Volcano's resource names without their domain.
type limits map[string]int64

func container(name string, l limits) corev1.Container {
	list := corev1.ResourceList{}
	for word, units := range l {
		list[corev1.ResourceName("volcano.sh/vgpu-"+word)] = *resource.NewQuantity(units, resource.DecimalSI)
	}
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: list}}
}

func pod(annotations map[string]string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "uid", Annotations: annotations},
		Spec:       corev1.PodSpec{NodeName: "here", Containers: containers},
	}
}

// assigned returns the annotations of a pod with an assignment on this node.
func assigned(ids string) map[string]string {
	return map[string]string{
		volcano.Node: "here", volcano.IDs: ids, volcano.ToAllocate: ids, volcano.Phase: volcano.Allocating,
		volcano.Time: "1700000000", volcano.BindTime: "1700000000",
	}
}

// holds returns the allocation of the pod of onePod.
func holds() placement.Allocation {
	return placement.Allocation{PodUID: "uid", Container: "a", Devices: []placement.Device{
		{UUID: "GPU-1", MemoryBytes: 1000 * mib},
	}}
}

// world is a node with an Answerer, as the Answerer sees the node.
type world struct {
	t      *testing.T
	client *fake.Clientset

	synced   bool
	held     []placement.Allocation
	room     []placement.Allocation // the allocation that Reserve makes
	reserved int
}

func (w *world) List() []*corev1.Pod {
	list, err := w.client.CoreV1().Pods("ns").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var all []*corev1.Pod
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

func (w *world) HasSynced() bool { return w.synced }

func (w *world) Reserve(*corev1.Pod) error {
	w.reserved++
	if w.room == nil {
		return errors.New("no room")
	}
	w.held = w.room
	return nil
}

func (w *world) Held(string) []placement.Allocation { return w.held }

func newWorld(t *testing.T, p *corev1.Pod) (*world, *Answerer) {
	w := &world{t: t, client: fake.NewClientset(p), synced: true}
	return w, w.answerer()
}

func (w *world) answerer() *Answerer {
	return New(Options{
		Client: w.client, Config: config.Default(), Pods: w, Places: w, Log: slog.New(slog.DiscardHandler),
	})
}

func (w *world) annotations() map[string]string {
	p, err := w.client.CoreV1().Pods("ns").Get(w.t.Context(), "pod", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return p.Annotations
}

func (w *world) patches() int {
	n := 0
	for _, action := range w.client.Actions() {
		if action.GetVerb() == "patch" {
			if action.GetSubresource() != "status" {
				w.t.Errorf("wrote by way of %q", action.GetSubresource())
			}
			n++
		}
	}
	return n
}

const oneID = "GPU-1,NVIDIA,1000,0:"

func onePod() *corev1.Pod { return pod(assigned(oneID), container("a", limits{"memory": 1000})) }

func TestAnswersOnce(t *testing.T) {
	w, a := newWorld(t, onePod())
	w.room = []placement.Allocation{holds()}
	for range 3 {
		a.round(t.Context())
	}
	want := maps.Clone(onePod().Annotations)
	want[volcano.ToAllocate], want[volcano.Phase], want[volcano.Time] = "", volcano.Success, volcano.Answered
	if diff := cmp.Diff(want, w.annotations()); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if w.patches() != 1 {
		t.Errorf("%d writes, want 1", w.patches())
	}
	if diff := cmp.Diff(nodereport.Volcano{AnsweredAt: 1700000000}, a.State()); diff != "" {
		t.Errorf("state (-want +got):\n%s", diff)
	}
	// A new process finds all answers already written.
	w.answerer().round(t.Context())
	if w.patches() != 1 {
		t.Errorf("%d writes after a restart, want 1", w.patches())
	}
}

func TestARefusalIsAnswered(t *testing.T) {
	w, a := newWorld(t, onePod())
	a.round(t.Context())
	if w.annotations()[volcano.Phase] != volcano.Allocating || a.State().Pending != 1 {
		t.Errorf("answered before anything is known: %v, %+v", w.annotations(), a.State())
	}
	a.Outcome("uid", "a", true)
	a.round(t.Context())
	if w.annotations()[volcano.Phase] != volcano.Failed || a.State() != (nodereport.Volcano{AnsweredAt: 1700000000}) {
		t.Errorf("after a refusal %v, %+v", w.annotations(), a.State())
	}
	// A new process keeps the answer until the next outcome.
	w.room = []placement.Allocation{holds()}
	again := w.answerer()
	again.round(t.Context())
	if w.annotations()[volcano.Phase] != volcano.Failed {
		t.Errorf("the agent withdrew a refusal without a reason: %v", w.annotations())
	}
	again.Outcome("uid", "a", false)
	again.round(t.Context())
	if got := w.annotations(); got[volcano.Phase] != volcano.Success || got[volcano.ToAllocate] != "" {
		t.Errorf("after it was given its GPU %v", got)
	}
}

func TestAnswersWhenTheAPIServerIsBack(t *testing.T) {
	w, a := newWorld(t, onePod())
	w.room = []placement.Allocation{holds()}
	away := true
	w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return away, nil, errors.New("connection refused")
	})
	a.round(t.Context())
	if a.State().Pending != 1 {
		t.Errorf("no assignment waits, although no answer was written: %+v", a.State())
	}
	away = false
	a.round(t.Context())
	if w.annotations()[volcano.Phase] != volcano.Success || a.State().Pending != 0 {
		t.Errorf("%v, %+v", w.annotations(), a.State())
	}
}

// TestOthersAreAnnouncedWhereVolcanoIs checks that the Answerer announces pods that Volcano did not
// place only if Volcano uses the node.
func TestOthersAreAnnouncedWhereVolcanoIs(t *testing.T) {
	own := pod(nil, container("a", limits{"nri-vgpu.io/vgpu-memory": 1000}))
	w, a := newWorld(t, own)
	w.held = []placement.Allocation{holds()}
	a.round(t.Context())
	if w.patches() != 0 || w.reserved != 0 {
		t.Errorf("%d writes and %d reservations where there is no Volcano", w.patches(), w.reserved)
	}
	sent := pod(map[string]string{volcano.Group: "g"}, container("b", limits{"memory": 1000}))
	sent.Name, sent.UID = "sent", "uid-2"
	if err := w.client.Tracker().Add(sent); err != nil {
		t.Fatal(err)
	}
	a.round(t.Context())
	want := map[string]string{volcano.Node: "here", volcano.IDs: oneID, volcano.Phase: volcano.Success, volcano.Time: volcano.Answered}
	if diff := cmp.Diff(want, w.annotations()); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	a.round(t.Context())
	if a.State().Missed != 1 {
		t.Errorf("%d pods were sent without GPUs, want 1", a.State().Missed)
	}
}

func TestNothingBeforeThePodsAreKnown(t *testing.T) {
	w, a := newWorld(t, onePod())
	w.synced = false
	a.round(t.Context())
	if w.patches() != 0 || w.reserved != 0 {
		t.Errorf("%d writes, %d reservations", w.patches(), w.reserved)
	}
}

// TestDisabledKeepsNothing checks that Outcome keeps no state if the dialect is disabled, because
// no loop removes deleted pods then.
func TestDisabledKeepsNothing(t *testing.T) {
	w := &world{t: t, client: fake.NewClientset(), synced: true}
	for _, enabled := range []bool{false, true} {
		cfg := config.Default()
		cfg.Dialects.Volcano.Enabled = enabled
		a := New(Options{Client: w.client, Config: cfg, Pods: w, Places: w, Log: slog.New(slog.DiscardHandler)})
		a.Outcome("uid", "a", true)
		if kept := len(a.outcomes) > 0; kept != enabled {
			t.Errorf("enabled is %v, and the outcome is kept: %v", enabled, kept)
		}
	}
}

func TestAnOutcomeIsWrittenAtOnce(t *testing.T) {
	_, a := newWorld(t, onePod())
	a.Outcome("uid", "a", true)
	if len(a.poke) != 1 {
		t.Error("the answer waits for the next look")
	}
}

// TestPodsThatHaveGoneAreForgotten checks that the Answerer forgets pods that have gone, also
// static pods. The API server and the runtime have different UIDs of a static pod.
func TestPodsThatHaveGoneAreForgotten(t *testing.T) {
	controlled := true
	static := pod(map[string]string{pods.MirrorAnnotation: "hash", pods.HashAnnotation: "hash", pods.SourceAnnotation: "file"})
	static.UID, static.OwnerReferences = "mirror", []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "here", Controller: &controlled}}
	_, a := newWorld(t, onePod())
	for _, uid := range []string{"uid", "mirror", "hash", "gone"} {
		a.outcomes[uid], a.missed[uid] = map[string]bool{"a": true}, true
		a.failures.Note(uid, errors.New("trouble"))
	}
	a.forget([]*corev1.Pod{onePod(), static})
	want := []string{"hash", "mirror", "uid"}
	for name, kept := range map[string][]string{
		"outcomes": slices.Sorted(maps.Keys(a.outcomes)), "missed": slices.Sorted(maps.Keys(a.missed)), "failures": slices.Sorted(maps.Keys(a.failures)),
	} {
		if !slices.Equal(kept, want) {
			t.Errorf("%s are of %v, want %v", name, kept, want)
		}
	}
}

func TestAnErrorIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	_, a := newWorld(t, onePod())
	a.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, step := range []struct {
		err   error
		lines int
	}{{errors.New("one"), 1}, {errors.New("one"), 1}, {errors.New("two"), 2}, {nil, 2}, {errors.New("two"), 3}} {
		a.logOnce(onePod(), step.err)
		if lines := strings.Count(log.String(), "\n"); lines != step.lines {
			t.Errorf("%d lines after %v, want %d", lines, step.err, step.lines)
		}
	}
}

func TestPodsThatEndNeedNoAnswer(t *testing.T) {
	ended, deleted := onePod(), onePod()
	ended.Status.Phase = corev1.PodSucceeded
	now := metav1.Now()
	deleted.DeletionTimestamp = &now
	for name, tt := range map[string]struct {
		pod   *corev1.Pod
		state nodereport.Volcano
	}{
		"ended":   {ended, nodereport.Volcano{AnsweredAt: 1700000000}},
		"deleted": {deleted, nodereport.Volcano{Pending: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w, a := newWorld(t, tt.pod)
			w.room = []placement.Allocation{holds()}
			a.round(t.Context())
			if w.reserved != 0 || w.patches() != 0 {
				t.Errorf("%d reservations and %d writes", w.reserved, w.patches())
			}
			if diff := cmp.Diff(tt.state, a.State()); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPodThatHasGoneIsNoError(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for name, tt := range map[string]struct {
		answer error
		failed bool
	}{
		"gone":     {apierrors.NewNotFound(resource, "pod"), false},
		"replaced": {apierrors.NewConflict(resource, "pod", errors.New("uid")), false},
		"away":     {errors.New("connection refused"), true},
	} {
		t.Run(name, func(t *testing.T) {
			w, a := newWorld(t, onePod())
			w.room = []placement.Allocation{holds()}
			w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.answer })
			settled, err := a.answer(t.Context(), onePod())
			if settled == tt.failed || (err != nil) != tt.failed {
				t.Errorf("answer() = %t, %v", settled, err)
			}
		})
	}
}

// TestNoRoomIsAnError checks that a failed reservation is an error, even without anything to write
// yet.
func TestNoRoomIsAnError(t *testing.T) {
	w, a := newWorld(t, onePod())
	if settled, err := a.answer(t.Context(), onePod()); settled || err == nil || w.patches() != 0 {
		t.Errorf("answer() = %t, %v, with %d writes", settled, err, w.patches())
	}
}

// looked counts the rounds of an Answerer that has no pods yet.
type looked struct {
	world
	rounds int
}

func (l *looked) HasSynced() bool { l.rounds++; return false }

func TestAnswersEveryFiveSecondsAndSoonAfterAPoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &looked{}
		a := New(Options{Config: config.Default(), Pods: l, Places: l})
		ctx, cancel := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer cancel()
		go a.Run(ctx)
		for _, step := range []struct {
			sleep  time.Duration
			poke   bool
			rounds int
		}{
			{5*time.Second - 1, false, 0}, {1, false, 1}, {5 * time.Second, false, 2},
			{0, true, 2}, {gather - 1, false, 2}, {1, false, 3},
		} {
			time.Sleep(step.sleep)
			if step.poke {
				a.Poke()
				a.Poke() // adds nothing
			}
			synctest.Wait()
			if l.rounds != step.rounds {
				t.Errorf("%v later it has looked %d times, want %d", step.sleep, l.rounds, step.rounds)
			}
		}
	})
}

func TestPokeStartsARoundAtOnce(t *testing.T) {
	w, a := newWorld(t, onePod())
	w.room = []placement.Allocation{holds()}
	answered := make(chan struct{}, 8)
	a.Changed = func() { answered <- struct{}{} }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		a.Run(ctx)
		close(done)
	}()
	a.Poke()
	select {
	case <-answered:
	case <-time.After(interval - time.Second):
		t.Error("not answered before the next look")
	}
	cancel()
	<-done
}
