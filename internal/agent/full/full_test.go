// SPDX-License-Identifier: Apache-2.0

package full

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
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
	if err := New(fake.NewClientset(), "", "").Set(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "--pod-name") {
		t.Errorf("got %v", err)
	}
}
