// SPDX-License-Identifier: Apache-2.0

package resize

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
)

// server is an API server with one pod, and the pod's node.
type server struct {
	pod *corev1.Pod
	// conflicts is the number of writes that conflict.
	conflicts int
	// answers are the node's reports, one for each read of the pod after the request. The last
	// remains.
	answers []string
	writes  int
	// failure, if not nil, is the error of reads after the request.
	failure error
	took    time.Duration // by the last run
}

func newServer(annotation string, answers ...string) *server {
	gpu := corev1.ResourceRequirements{Limits: corev1.ResourceList{
		"nri-vgpu.io/vgpu-memory": resource.MustParse("4096"), "nri-vgpu.io/vgpu-cores": resource.MustParse("20"),
	}}
	cpu := corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}
	s := &server{answers: answers, pod: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Resources: gpu}, {Name: "idle", Resources: cpu}}},
	}}
	if annotation != "" {
		s.pod.Annotations[resize.Annotation] = annotation
	}
	return s
}

func (s *server) Pod(_ context.Context, _, name string) (*corev1.Pod, error) {
	if name != "p" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	if s.writes > 0 && s.failure != nil {
		return nil, s.failure
	}
	if s.writes > 0 && len(s.answers) > 0 {
		s.pod.Annotations[resize.ReportAnnotation] = s.answers[0]
		if len(s.answers) > 1 {
			s.answers = s.answers[1:]
		}
	}
	return s.pod.DeepCopy(), nil
}

func (s *server) Annotate(_ context.Context, pod *corev1.Pod, key, value string) error {
	if s.conflicts > 0 {
		s.conflicts--
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, pod.Name, errors.New("changed"))
	}
	s.writes++
	s.pod.Annotations[key] = value
	return nil
}

// run runs the command, and returns its output and the annotation.
func run(t *testing.T, s *server, o Options) (out, annotation string, err error) {
	t.Helper()
	o.Namespace, o.Wait = "ns", 10*time.Second
	if o.Pod == "" {
		o.Pod = "p"
	}
	var written bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		err = Run(t.Context(), s, o, &written)
		s.took = time.Since(begin)
	})
	return written.String(), s.pod.Annotations[resize.Annotation], err
}

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		name, before, answer string
		o                    Options
		annotation, out      string
	}{
		{"memory", "", `{"main":{"memory":8192,"requested":{"memory":8192}}}`, Options{Memory: "8192"},
			`{"main":{"memory":8192}}`, "8192 MiB of each of its GPUs, and the time of its spec"},
		{"memory as a quantity", "", `{"main":{"memory":8192,"requested":{"memory":8192}}}`, Options{Memory: "8Gi"},
			`{"main":{"memory":8192}}`, "8192 MiB of each"},
		{"time beside memory", `{"main":{"memory":8192}}`, `{"main":{"memory":8192,"cores":50,"requested":{"memory":8192,"cores":50}}}`, Options{Cores: 50},
			`{"main":{"memory":8192,"cores":50}}`, "8192 MiB and 50 % of the time of each of its GPUs"},
		{"the time of the spec", "", `{"main":{"requested":{"cores":30}}}`, Options{Cores: 30}, `{"main":{"cores":30}}`, "the sizes of its spec"},
		{"time alone", "", `{"main":{"cores":30,"requested":{"cores":30}}}`, Options{Cores: 30}, `{"main":{"cores":30}}`, "30 % of the time of each of its GPUs, and the memory of its spec"},
		{"reset", `{"main":{"memory":8192},"side":{"cores":1}}`, `{"side":{"requested":{"cores":1}}}`, Options{Reset: true}, `{"side":{"cores":1}}`, "the sizes of its spec"},
		{"reset of all", `{"main":{"memory":8192}}`, `{}`, Options{Reset: true}, "", "the sizes of its spec"},
		{"a named container", "", `{"main":{"cores":5,"requested":{"cores":5}}}`, Options{Container: "main", Cores: 5}, `{"main":{"cores":5}}`, "container main of pod ns/p now has 5 %"},
		{"all time", "null", `{"main":{"cores":100,"requested":{"cores":100}}}`, Options{Cores: 100}, `{"main":{"cores":100}}`, "100 % of the time"},
		{"reset of an unreadable annotation", `{"main":{"memory":8589934592}}`, `{}`, Options{Reset: true}, "", "the sizes of its spec"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(tt.before, tt.answer)
			s.pod.Annotations[resize.ReportAnnotation] = `{"main":{"memory":1,"requested":{"memory":1}}}`
			s.conflicts = 4
			out, annotation, err := run(t, s, tt.o)
			if err != nil || annotation != tt.annotation || !strings.Contains(out, tt.out) || s.writes != 1 {
				t.Errorf("printed %q, annotation %s, %d writes, %v", out, annotation, s.writes, err)
			}
		})
	}
}

func TestRunWaitsForTheNode(t *testing.T) {
	deferred := `{"main":{"requested":{"memory":8192},"pending":"Deferred","message":"no room"}}`
	done := `{"main":{"memory":8192,"requested":{"memory":8192}}}`
	s := newServer("", "", `{"main":{"memory":1,"requested":{"memory":1}}}`, deferred, deferred, done)
	if out, _, err := run(t, s, Options{Memory: "8192"}); err != nil || !strings.Contains(out, "8192 MiB") || s.took != 400*time.Millisecond {
		t.Errorf("printed %q after %v, %v", out, s.took, err)
	}
	_, _, err := run(t, newServer("", deferred), Options{Memory: "8192"})
	if !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), "pending after 10s: deferred: no room; the node retries") {
		t.Errorf("deferred: %v", err)
	}
	_, _, err = run(t, newServer(""), Options{Memory: "8192"})
	if !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), "node n1 has not answered: run kubectl vgpu doctor n1") {
		t.Errorf("without an answer: %v", err)
	}
	unbound := newServer("")
	unbound.pod.Spec.NodeName = ""
	if _, _, err = run(t, unbound, Options{Memory: "8192"}); !errors.Is(err, ErrPending) || !strings.Contains(err.Error(), "has no node yet") {
		t.Errorf("without a node: %v", err)
	}
	_, _, err = run(t, newServer("", `{"main":{"requested":{"memory":8192},"pending":"Infeasible","message":"never"}}`), Options{Memory: "8192"})
	if !errors.Is(err, ErrInfeasible) || !strings.Contains(err.Error(), "infeasible: never") {
		t.Errorf("infeasible: %v", err)
	}
}

// TestRunStopsWaiting checks that Run returns when no answer for the pod can follow.
func TestRunStopsWaiting(t *testing.T) {
	broken := newServer("")
	broken.failure = errors.New("no right")
	if _, _, err := run(t, broken, Options{Memory: "8192"}); !errors.Is(err, broken.failure) || errors.Is(err, ErrPending) || broken.took != 0 {
		t.Errorf("without an answer of the API server: %v after %v", err, broken.took)
	}
	replaced := newServer(`{"main":{"memory":8192}}`)
	first := *replaced.pod
	api := &replacing{server: replaced, first: &first}
	replaced.pod.UID = "v"
	first.UID = "u"
	if err := Run(t.Context(), api, Options{Namespace: "ns", Pod: "p", Memory: "8192", Wait: time.Minute}, io.Discard); err == nil || !strings.Contains(err.Error(), "replaced the pod") {
		t.Errorf("with another pod: %v", err)
	}
	if replaced.writes != 0 {
		t.Errorf("%d writes of a size that was already requested", replaced.writes)
	}
}

// full is an output that accepts no text.
type full struct{}

var errFull = errors.New("no space")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestRunReportsAFullOutput(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Minute} {
		s := newServer("", `{"main":{"cores":5,"requested":{"cores":5}}}`)
		if err := Run(t.Context(), s, Options{Namespace: "ns", Pod: "p", Cores: 5, Wait: wait}, full{}); !errors.Is(err, errFull) {
			t.Errorf("with a wait of %v: %v", wait, err)
		}
	}
}

// replacing is a server whose pod is replaced after the first read.
type replacing struct {
	*server
	first *corev1.Pod
}

func (r *replacing) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if pod := r.first; pod != nil {
		r.first = nil
		return pod, nil
	}
	return r.server.Pod(ctx, namespace, name)
}

func TestRunWithoutWaiting(t *testing.T) {
	s := newServer("")
	var out bytes.Buffer
	if err := Run(t.Context(), s, Options{Namespace: "ns", Pod: "p", Cores: 5}, &out); err != nil || !strings.Contains(out.String(), "requested a size for container main") || s.writes != 1 {
		t.Errorf("printed %q, %d writes, %v", out.String(), s.writes, err)
	}
}

func TestRunRefuses(t *testing.T) {
	two := newServer("")
	two.pod.Spec.InitContainers = []corev1.Container{{Name: "init", Resources: two.pod.Spec.Containers[0].Resources}}
	none := newServer("")
	none.pod.Spec.Containers = none.pod.Spec.Containers[1:]
	ended := newServer("")
	ended.pod.Status.Phase = corev1.PodSucceeded
	failed := newServer("")
	failed.pod.Status.Phase = corev1.PodFailed
	busy := newServer("")
	busy.conflicts = 5
	for _, tt := range []struct {
		name string
		s    *server
		o    Options
		why  string
	}{
		{"nothing", newServer(""), Options{}, "name a size"},
		{"reset and a size", newServer(""), Options{Reset: true, Cores: 1}, "no --memory or --cores"},
		{"too much time", newServer(""), Options{Cores: 101}, "1 to 100"},
		{"no memory", newServer(""), Options{Memory: "0"}, "whole MiB"},
		{"a part of a MiB", newServer(""), Options{Memory: "1500k"}, "whole MiB"},
		{"negative memory", newServer(""), Options{Memory: "-8Gi"}, "whole MiB"},
		{"text", newServer(""), Options{Memory: "much"}, "whole MiB"},
		{"another container", newServer(""), Options{Container: "other", Cores: 1}, "it has: main, idle"},
		{"a container without a request", newServer(""), Options{Container: "idle", Cores: 1}, "these containers request extended resources: main"},
		{"bytes", newServer(""), Options{Memory: "8589934592"}, "1 to 16777216 MiB"},
		{"an ended pod", ended, Options{Cores: 1}, "has ended (Succeeded)"},
		{"a failed pod", failed, Options{Cores: 1}, "has ended (Failed)"},
		{"a quantity of nothing", newServer(""), Options{Memory: "0Mi"}, "whole MiB"},
		{"reset and memory", newServer(""), Options{Reset: true, Memory: "1"}, "no --memory or --cores"},
		{"several containers", two, Options{Cores: 1}, "choose with -c: init, main"},
		{"no container", none, Options{Cores: 1}, "no container of pod ns/p"},
		{"another pod", newServer(""), Options{Pod: "q", Cores: 1}, "not found"},
		{"an unreadable annotation", newServer("x"), Options{Cores: 1}, "kubectl annotate pod -n ns p nri-vgpu.io/resize-"},
		{"a pod that changes all the time", busy, Options{Cores: 1}, "changed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if out, _, err := run(t, tt.s, tt.o); err == nil || !strings.Contains(err.Error(), tt.why) || out != "" || tt.s.writes != 0 {
				t.Errorf("printed %q, %d writes, %v, want %q", out, tt.s.writes, err, tt.why)
			}
		})
	}
}
