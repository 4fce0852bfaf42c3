// SPDX-License-Identifier: Apache-2.0

package full

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// TestSet checks the labels after each Set, and that a Set without a change sends no request.
func TestSet(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "agent", Labels: map[string]string{
		"app": "agent", request.FitFull + "stale": "true",
	}}}
	client := fake.NewClientset(pod)
	failing := false
	client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return failing, nil, errors.New("the API server is away")
	})
	l := New(client, "ns", "agent")
	for _, step := range []struct {
		shapes   []string
		requests int // a failed request is followed by a read
		fails    bool
	}{
		{[]string{"1-4096-0-0"}, 2, false}, // reads the labels, and writes
		{[]string{"1-4096-0-0"}, 0, false},
		{[]string{"1-4096-0-0", "2-0-100-0"}, 1, false},
		{[]string{"2-0-100-0"}, 1, true},
		{[]string{"2-0-100-0"}, 2, false},
		{nil, 1, false},
	} {
		failing = step.fails
		client.ClearActions()
		if err := l.Set(t.Context(), step.shapes); (err != nil) != step.fails {
			t.Errorf("%v: %v", step.shapes, err)
		}
		if got := len(client.Actions()); got != step.requests {
			t.Errorf("%v: %d requests, want %d: %v", step.shapes, got, step.requests, client.Actions())
		}
		if step.fails {
			continue
		}
		want := map[string]string{"app": "agent"}
		for _, shape := range step.shapes {
			want[request.FitFull+shape] = "true"
		}
		got, err := client.CoreV1().Pods("ns").Get(t.Context(), "agent", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got.Labels); diff != "" {
			t.Errorf("%v: labels (-want +got):\n%s", step.shapes, diff)
		}
	}
}

func TestSetNeedsAName(t *testing.T) {
	for _, name := range [][2]string{{"", ""}, {"ns", ""}, {"", "agent"}} {
		if err := New(fake.NewClientset(), name[0], name[1]).Set(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "--pod-name") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// deadlines refuses requests, and records the time until each request's deadline.
type deadlines struct{ left []time.Duration }

func (d *deadlines) RoundTrip(r *http.Request) (*http.Response, error) {
	end, _ := r.Context().Deadline()
	d.left = append(d.left, time.Until(end))
	return nil, errors.New("no API server")
}

// TestSetIsBounded checks that the heartbeat, which calls Set, waits at most 2 s for the API server.
func TestSetIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d deadlines
		client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "https://api"}, &http.Client{Transport: &d})
		if err != nil {
			t.Fatal(err)
		}
		if err := New(client, "ns", "agent").Set(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "read the labels of the agent's pod ns/agent") {
			t.Errorf("got %v", err)
		}
		if diff := cmp.Diff([]time.Duration{2 * time.Second}, d.left); diff != "" {
			t.Errorf("time for each request (-want +got):\n%s", diff)
		}
	})
}
