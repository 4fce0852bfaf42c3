// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

func TestAnnotate(t *testing.T) {
	known := pod("a", "uid-a")
	known.Annotations = map[string]string{"old": "1", "kept": "2"}
	client := fake.NewClientset(known)
	if err := Annotate(t.Context(), client, known, map[string]string{"old": "3", "new": "4"}); err != nil {
		t.Fatal(err)
	}
	after, err := client.CoreV1().Pods("ns").Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := after.Annotations; len(got) != 3 || got["old"] != "3" || got["kept"] != "2" || got["new"] != "4" {
		t.Errorf("annotations %v", got)
	}
	patch := client.Actions()[0].(clienttesting.PatchAction)
	if patch.GetSubresource() != "status" || !strings.Contains(string(patch.GetPatch()), `"uid":"uid-a"`) {
		t.Errorf("patch of %q: %s", patch.GetSubresource(), patch.GetPatch())
	}
}

func TestAnnotateReturnsErrorsExceptForAPodThatIsGone(t *testing.T) {
	resource := schema.GroupResource{Resource: "pods"}
	for name, tt := range map[string]struct {
		answer error
		failed bool
	}{
		"gone":     {apierrors.NewNotFound(resource, "a"), false},
		"replaced": {apierrors.NewConflict(resource, "a", errors.New("another UID")), false},
		"away":     {errors.New("connection refused"), true},
	} {
		client := fake.NewClientset(pod("a", "uid-a"))
		client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tt.answer })
		if err := Annotate(t.Context(), client, pod("a", "uid-a"), nil); (err != nil) != tt.failed {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// silent is an API server that never answers.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestAnnotateEnds checks that Annotate returns after five seconds if the API server does not
// answer, because the caller has other work.
func TestAnnotateEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: silent{}})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if err := Annotate(t.Context(), client, pod("a", "uid-a"), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Annotate() = %v", err)
		}
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
