// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var web = Pod{Namespace: "shop", Name: "web", UID: "u-web"}

// start returns a running recorder, in a synctest bubble.
func start(t *testing.T) (*Recorder, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset()
	r := New(Options{Client: client, Node: "node-1", Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	go r.Run(ctx)
	t.Cleanup(func() {
		cancel()
		time.Sleep(writeTimeout) // a write may be in progress
	})
	return r, client
}

func written(t *testing.T, client *fake.Clientset) []eventsv1.Event {
	t.Helper()
	synctest.Wait()
	list, err := client.EventsV1().Events(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func dropped(r *Recorder, cause string) float64 {
	return testutil.ToFloat64(r.metrics.dropped.WithLabelValues(cause))
}

func TestAnEventNamesItsObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, client := start(t)
		r.OnPod(web, VGPURefused, "no room for %q", "main")
		r.OnNode(GPURecovered, "GPU 0 is back")
		now := metav1.NowMicro()
		got := map[string]eventsv1.Event{}
		for _, e := range written(t, client) {
			if !strings.HasPrefix(e.Name, e.Regarding.Name+".") {
				t.Errorf("an event of %s is called %s", e.Regarding.Name, e.Name)
			}
			e.Name, e.TypeMeta, e.ManagedFields = "", metav1.TypeMeta{}, nil
			got[e.Reason] = e
		}
		want := map[string]eventsv1.Event{
			"VGPURefused": {
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, EventTime: now,
				ReportingController: Controller, ReportingInstance: "node-1",
				Action: "Refuse", Reason: "VGPURefused", Type: corev1.EventTypeWarning,
				Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web", UID: "u-web"},
				Note:      `no room for "main"`,
			},
			"GPURecovered": {
				ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, EventTime: now,
				ReportingController: Controller, ReportingInstance: "node-1",
				Action: "Watch", Reason: "GPURecovered", Type: corev1.EventTypeNormal,
				Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "node-1", UID: "node-1"},
				Note:      "GPU 0 is back",
			},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestEventNamesAreValid checks that the API server accepts the names of Events about pods with long
// names.
func TestEventNamesAreValid(t *testing.T) {
	for _, pod := range []string{"web", strings.Repeat("a", 253), strings.Repeat("a", 235) + "." + strings.Repeat("b", 17), strings.Repeat("a", 234) + "--" + strings.Repeat("b", 17)} {
		name := eventName(pod)
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 || !strings.HasPrefix(name, pod[:min(len(pod), 234)]) {
			t.Errorf("an event of %s is called %s: %q", pod, name, problems)
		}
	}
}

func TestWhatRepeatsIsOneEventWithACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, client := start(t)
		for range 100 { // kubelet retries every few seconds
			r.OnPod(web, VGPURefused, "no room")
			time.Sleep(5 * time.Second)
		}
		time.Sleep(2 * repeatInterval)
		events := written(t, client)
		if len(events) != 1 || events[0].Series == nil || events[0].Series.Count != 100 {
			t.Fatalf("got %+v, want one event that happened 100 times", events)
		}
		if writes := len(client.Actions()); writes > 15 {
			t.Errorf("%d requests were made in ten minutes", writes)
		}
		client.ClearActions()
		time.Sleep(forgetAfter)
		synctest.Wait()
		if actions := client.Actions(); len(actions) > 0 {
			t.Errorf("without an Event, the recorder sent %v", actions)
		}
		if len(r.series) != 0 || len(r.buckets) != 0 {
			t.Errorf("it still remembers %d events and %d objects", len(r.series), len(r.buckets))
		}
		r.OnPod(web, VGPURefused, "no room")
		if events := written(t, client); len(events) != 2 {
			t.Errorf("a late repetition is not a new Event: %+v", events)
		}
	})
}

func TestADeletedEventIsWrittenAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, client := start(t)
		r.OnPod(web, VGPURefused, "no room")
		name := written(t, client)[0].Name
		if err := client.EventsV1().Events("shop").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		r.OnPod(web, VGPURefused, "no room")
		time.Sleep(2 * repeatInterval)
		r.OnPod(web, VGPURefused, "no room")
		if events := written(t, client); len(events) != 1 || events[0].Name == name {
			t.Errorf("got %+v", events)
		}
	})
}

func TestManyDifferentNotesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, client := start(t)
		for n := range 50 {
			r.OnPod(web, VGPURefused, "free: %d MiB", n)
		}
		r.OnPod(web, VGPUEvicted, "another reason")
		r.OnPod(Pod{Namespace: "shop", Name: "other", UID: "u-other"}, VGPURefused, "another pod")
		if events := written(t, client); len(events) != burst+2 {
			t.Errorf("%d events were written, want %d", len(events), burst+2)
		}
		if n := dropped(r, causeRate); n != 50-burst {
			t.Errorf("%v were counted as dropped, want %d", n, 50-burst)
		}
		time.Sleep(refill)
		r.OnPod(web, VGPURefused, "later")
		if events := written(t, client); len(events) != burst+3 {
			t.Error("no more is written a minute later")
		}
	})
}

// TestWhatIsKeptOfPodsIsBounded checks that the recorder keeps at most maxKept series and buckets.
// A tenant can create refused pods as fast as the API server accepts them.
func TestWhatIsKeptOfPodsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, client := start(t)
		created := 0
		client.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
			created++
			return true, action.(clienttesting.CreateAction).GetObject(), nil
		})
		for n := range maxKept + 100 {
			r.OnPod(Pod{Namespace: "shop", Name: "web", UID: types.UID(strconv.Itoa(n))}, VGPURefused, "no room")
			synctest.Wait()
		}
		if created != maxKept+100 {
			t.Errorf("%d events were written, want %d", created, maxKept+100)
		}
		if len(r.series) > maxKept || len(r.buckets) > maxKept {
			t.Errorf("%d events and %d allowances are kept, want %d at the most", len(r.series), len(r.buckets), maxKept)
		}
	})
}

func TestAHangingAPIServerKeepsNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, client := start(t)
		asked := false
		client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			asked = true
			time.Sleep(writeTimeout)
			return true, nil, context.DeadlineExceeded
		})
		begin := time.Now()
		for range 2 * queueLength {
			r.OnNode(GPUUnhealthy, "GPU 0 is lost")
		}
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("it kept its caller waiting for %v", waited)
		}
		synctest.Wait()
		if n := dropped(r, causeQueue); !asked || n < queueLength-1 {
			t.Errorf("%v were counted as dropped of %d that do not fit", n, queueLength)
		}
		time.Sleep(writeTimeout + 1)
		synctest.Wait()
		if n := dropped(r, causeAPI); n != 1 {
			t.Error("the Event that the API server rejected was not counted")
		}
	})
}

func TestANilRecorderIsSilent(*testing.T) {
	var r *Recorder
	r.OnPod(web, VGPURefused, "x")
	r.OnNode(GPUUnhealthy, "x")
}

func TestShorten(t *testing.T) {
	for _, note := range []string{"", "x", strings.Repeat("é", maxNote/2), strings.Repeat("é", maxNote), "a" + strings.Repeat("é", maxNote)} {
		got := shorten(note)
		if len(got) > maxNote || !utf8.ValidString(got) {
			t.Errorf("%d bytes were cut to %d, valid: %v", len(note), len(got), utf8.ValidString(got))
		}
		if len(note) <= maxNote && got != note {
			t.Errorf("a note of %d bytes was changed", len(note))
		}
		if len(got) < min(len(note), maxNote-4) {
			t.Errorf("%d bytes were cut to only %d", len(note), len(got))
		}
	}
}
