// SPDX-License-Identifier: Apache-2.0

package why

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const (
	namespaced   = "GET /api/v1/namespaces/"
	getPod       = namespaced + "ns/pods/train"
	getConfig    = namespaced + "system/configmaps/nri-vgpu"
	listNodes    = "GET /api/v1/nodes"
	listPods     = "GET /api/v1/pods"
	listAgents   = namespaced + "system/pods"
	getOverviews = namespaced + "system/services/https:nri-vgpu-view:https/proxy/view/fleet"
)

// apiServer serves objects by method and path to a user who may not run commands in pods. apiServer
// refuses requests for other objects, and counts the requests.
type apiServer struct {
	objects  map[string]any
	requests map[string]int
}

// cluster returns an API server with a waiting pod and four nodes. The first node lists its GPUs. The
// agent of the second node reports the GPUs. The third node has no agent, and the fourth node has no
// GPUs. A pod holds 8 GiB of one GPU of the first node.
func cluster() *apiServer {
	held, gone, waits := on("held", "GPU-0", 8<<10), on("gone", "GPU-1", 8<<10), on("waits", "GPU-1", 8<<10)
	held.Spec.NodeName, gone.Spec.NodeName, gone.Status.Phase = "listed", "listed", corev1.PodFailed
	unlisted := func(n *corev1.Node) { n.Annotations = nil }
	empty := func(n *corev1.Node) {
		unlisted(n)
		n.Status.Allocatable = amounts(map[corev1.ResourceName]int64{memory: 0, "cpu": 8})
	}
	agent := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Spec: corev1.PodSpec{NodeName: "reported", Containers: []corev1.Container{{Name: "agent"}}}}
	agent.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	return &apiServer{requests: map[string]int{}, objects: map[string]any{
		getPod:     pod("train", map[corev1.ResourceName]int64{memory: 12 << 10}),
		getConfig:  corev1.ConfigMap{Data: map[string]string{"config.toml": ""}},
		listNodes:  corev1.NodeList{Items: []corev1.Node{*node("listed"), *node("reported", unlisted), *node("silent", unlisted), *node("empty", empty)}},
		listPods:   corev1.PodList{Items: []corev1.Pod{*held, *gone, *waits}},
		listAgents: corev1.PodList{Items: []corev1.Pod{agent}},
		getOverviews: agentapi.Fleet{Overviews: []agentapi.Overview{
			{Node: "reported", GPUs: []agentapi.GPU{{Device: agentapi.Device{UUID: "GPU-2"}, Room: &agentapi.Room{MemoryBytes: 16 * gib, FreeMemoryBytes: 4 * gib, FreeComputePPM: request.Whole, FreeSlots: 1}}}},
			{Node: "silent", GPUs: []agentapi.GPU{{Device: agentapi.Device{UUID: "GPU-3"}, Room: &agentapi.Room{}}}}, // no agent of the list reports it
		}},
		"POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews": map[string]any{"status": map[string]any{"allowed": false}},
		"POST /api/v1/namespaces/system/serviceaccounts/nri-vgpu-viewer/token": map[string]any{
			"kind": "TokenRequest", "status": map[string]any{"token": "secret", "expirationTimestamp": time.Now().Add(time.Hour).Format(time.RFC3339)},
		},
	}}
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Method + " " + r.URL.Path
	s.requests[key]++
	object, ok := s.objects[key]
	w.Header().Set("Content-Type", "application/json")
	if !ok {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	_ = json.NewEncoder(w).Encode(object)
}

func (s *apiServer) gather(t *testing.T) (Answer, error) {
	t.Helper()
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	f, err := fleet.New(&rest.Config{Host: server.URL}, "system")
	if err != nil {
		t.Fatal(err)
	}
	return Gather(t.Context(), f, "ns", "train")
}

// TestGather checks the nodes and the GPUs of an explanation.
func TestGather(t *testing.T) {
	a, err := cluster().gather(t)
	if err != nil || a.Unknown != nil || a.Invalid != nil || a.Mode != config.Default().Scheduling.Mode || a.Left != "" {
		t.Fatalf("%v, %+v", err, a)
	}
	got := map[string]string{}
	for _, n := range a.Nodes {
		for _, g := range n.GPUs {
			got[n.Name] += g.UUID + ": " + g.Against + "; "
		}
		got[n.Name] += n.Against
	}
	want := map[string]string{
		"listed":   "GPU-0: 8192 of 12288 MiB are free; GPU-1: ; ",
		"reported": "GPU-2: 4096 of 12288 MiB are free; ",
		"silent":   got["silent"],
	}
	if diff := cmp.Diff(want, got); diff != "" || !strings.Contains(got["silent"], "does not list its GPUs") {
		t.Errorf("%q: %s", got["silent"], diff)
	}
}

// TestGatherAsksNoMoreThanNecessary checks which requests an explanation needs.
func TestGatherAsksNoMoreThanNecessary(t *testing.T) {
	bound := pod("train", map[corev1.ResourceName]int64{memory: 1})
	bound.Spec.NodeName = "listed"
	for _, tt := range []struct {
		name   string
		change func(*apiServer)
		want   []string
	}{
		{"a bound pod", func(s *apiServer) { s.objects[getPod] = bound }, []string{getPod, getConfig}},
		{"a pod without GPUs", func(s *apiServer) { s.objects[getPod] = pod("train", nil) }, []string{getPod, getConfig}},
		{"nodes that list their GPUs", func(s *apiServer) { s.objects[listNodes] = corev1.NodeList{Items: []corev1.Node{*node("listed")}} },
			[]string{getPod, getConfig, listNodes, listPods}},
	} {
		s := cluster()
		tt.change(s)
		_, err := s.gather(t)
		if got := slices.Sorted(maps.Keys(s.requests)); err != nil || !cmp.Equal(got, slices.Sorted(slices.Values(tt.want))) {
			t.Errorf("%s: %v, requests for %q, want %q", tt.name, err, got, tt.want)
		}
	}
}

// TestGatherFails checks that an explanation needs the pod, the configuration, the nodes and the pods,
// and that the answers of agents may be missing. Without a right to list the agents' pods, the view
// names the agents.
func TestGatherFails(t *testing.T) {
	for _, missing := range []string{getPod, getConfig, listNodes, listPods} {
		s := cluster()
		delete(s.objects, missing)
		if a, err := s.gather(t); err == nil {
			t.Errorf("without %s: %+v", missing, a)
		}
	}
	for missing, known := range map[string]bool{listAgents: true, getOverviews: false} {
		s := cluster()
		delete(s.objects, missing)
		if a, err := s.gather(t); err != nil || (a.Unknown == nil) != known || len(a.Nodes) != 3 {
			t.Errorf("without %s: %v, %+v", missing, err, a)
		}
	}
}

// TestOfUnlisted checks that only agents of nodes that do not list their GPUs are queried.
func TestOfUnlisted(t *testing.T) {
	unlisted := *node("unlisted")
	unlisted.Annotations = nil
	got := ofUnlisted([]fleet.Agent{{Node: "listed"}, {Node: "unlisted"}, {Node: "without GPUs"}}, []corev1.Node{*node("listed"), unlisted})
	if diff := cmp.Diff([]fleet.Agent{{Node: "unlisted"}}, got); diff != "" {
		t.Error(diff)
	}
}

// TestRooms checks that Rooms keeps all fields of a room, and omits GPUs without a room.
func TestRooms(t *testing.T) {
	got := Rooms([]agentapi.Overview{
		{Node: "a", GPUs: []agentapi.GPU{
			{Device: agentapi.Device{UUID: "GPU-0"}, Room: &agentapi.Room{MemoryBytes: 1, FreeMemoryBytes: 2, FreeComputePPM: 3, FreeSlots: 4, Holders: 5, Exclusive: true, MPS: true, FreeClients: 6}},
			{Device: agentapi.Device{UUID: "GPU-1", Index: 1, Unhealthy: "lost", MIG: agentapi.MIG{Parent: "GPU-9", Index: 2}}, Room: &agentapi.Room{}},
			{Device: agentapi.Device{UUID: "GPU-2"}},
		}},
		{Node: "b"},
	})
	want := map[string][]placement.Room{"a": {
		{UUID: "GPU-0", Healthy: true, MemoryBytes: 1, FreeMemoryBytes: 2, FreeComputePPM: 3, FreeSlots: 4, Holders: 5, Exclusive: true, MPS: true, FreeClients: 6},
		{UUID: "GPU-1", Index: 1, MIG: gpu.MIG{Parent: "GPU-9", Index: 2}},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestSchedulerReport checks that only the condition of a pod that is not scheduled counts.
func TestSchedulerReport(t *testing.T) {
	p := pod("p")
	p.Spec.SchedulerName = "s"
	for _, tt := range []struct {
		conditions []corev1.PodCondition
		want       string
	}{
		{nil, "nothing yet (schedulerName is s)"},
		{[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "x"}}, "nothing yet (schedulerName is s)"},
		{[]corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, Message: "x"}}, "nothing yet (schedulerName is s)"},
		{[]corev1.PodCondition{{Type: corev1.PodReady}, {Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "x"}}, "x"},
	} {
		p.Status.Conditions = tt.conditions
		if got := schedulerReport(p); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.conditions, got, tt.want)
		}
	}
}
