// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

// server is an API server for a user who may not run commands in pods.
type server struct {
	token  int // the status of the answer to a request for a token
	fleet  agentapi.Fleet
	tokens int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	const namespace = "/api/v1/namespaces/ns/"
	switch r.Method + " " + r.URL.Path {
	case "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		fmt.Fprint(w, `{"status":{"allowed":false}}`)
	case "POST " + namespace + "serviceaccounts/nri-vgpu-viewer/token":
		s.tokens++
		w.WriteHeader(s.token)
		fmt.Fprintf(w, `{"kind":"TokenRequest","status":{"token":"secret","expirationTimestamp":%q}}`, time.Now().Add(-time.Hour).Format(time.RFC3339))
	case "GET " + namespace + "services/https:nri-vgpu-view:https/proxy/view/fleet":
		if r.Header.Get(agentapi.TokenHeader) != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_ = json.NewEncoder(w).Encode(s.fleet)
	default:
		w.WriteHeader(http.StatusForbidden)
	}
}

func fleetOf(t *testing.T, s *server) *Fleet {
	t.Helper()
	api := httptest.NewServer(s)
	t.Cleanup(api.Close)
	f, err := New(&rest.Config{Host: api.URL}, "ns")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestWithoutExec checks that a user without pods/exec reads the view, with one token for several
// queries. The clock of the API server is late by more than an hour.
func TestWithoutExec(t *testing.T) {
	s := &server{token: http.StatusCreated, fleet: agentapi.Fleet{
		Overviews: []agentapi.Overview{{Node: "n1"}, {Node: "n2"}}, Errors: []agentapi.NodeError{{Node: "n3", Error: "it is down"}},
	}}
	f := fleetOf(t, s)
	all, err := f.Overviews(t.Context())
	if len(all) != 2 || err == nil || !strings.Contains(err.Error(), "n3: it is down") {
		t.Errorf("all agents: %+v, %v", all, err)
	}
	some, _ := f.OverviewsOf(t.Context(), []Agent{{Node: "n2"}})
	if len(some) != 1 || some[0].Node != "n2" {
		t.Errorf("an agent: %+v", some)
	}
	if agents, _ := f.Agents(t.Context()); len(agents) != 2 || agents[1].Node != "n2" || agents[1].Away() != "" {
		t.Errorf("without a right to list pods: %+v", agents)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var told []string
	f.Follow(ctx, func(node string, _ agentapi.Overview, _ error) {
		if told = append(told, node); len(told) == 3 {
			cancel()
		}
	})
	if want := []string{"n1", "n2", ""}; !slices.Equal(told, want) {
		t.Errorf("followed %q, want %q", told, want)
	}
	if s.tokens != 1 {
		t.Errorf("the user requested %d tokens", s.tokens)
	}
}

func TestWithoutTheView(t *testing.T) {
	for status, want := range map[int]string{
		http.StatusForbidden:           "docs/how-to/view.md",
		http.StatusNotFound:            "view.enabled=true",
		http.StatusInternalServerError: "request a token",
	} {
		if _, err := fleetOf(t, &server{token: status}).Overviews(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d: %v", status, err)
		}
	}
}
