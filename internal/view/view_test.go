// SPDX-License-Identifier: Apache-2.0

package view

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
)

const secret = "a token"

// listed are agents, or the reason why they could not be listed.
type listed struct {
	agents []fleet.Agent
	err    error
}

func (l listed) Agents(context.Context) ([]fleet.Agent, error) { return l.agents, l.err }

// viewOf returns a View of agents that a handler answers for.
func viewOf(t *testing.T, agents Agents, handler http.HandlerFunc) *View {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := New(Options{Agents: agents, Port: port, TokenFile: file, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestFleet(t *testing.T) {
	local := func(a fleet.Agent) []fleet.Agent { return []fleet.Agent{a} }
	runs := fleet.Agent{Node: "n1", IP: "127.0.0.1"}
	answers := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != agentapi.OverviewPath || r.Header.Get("Authorization") != "Bearer "+secret {
				t.Errorf("the view requests %s with %q", r.URL.Path, r.Header.Get("Authorization"))
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	for name, c := range map[string]struct {
		agents  listed
		handler http.HandlerFunc
		node    string // of the overview, or
		err     string
	}{
		"an answer":     {listed{agents: local(runs)}, answers(200, `{"node":"n1"}`), "n1", ""},
		"refused":       {listed{agents: local(runs)}, answers(403, "you may not"), "", "refused with 403 Forbidden: you may not"},
		"no JSON":       {listed{agents: local(runs)}, answers(200, "<html>"), "", "read the agent's answer"},
		"too long":      {listed{agents: local(runs)}, answers(200, strings.Repeat(" ", mostBytes+1)), "", "more than"},
		"it hangs up":   {listed{agents: local(runs)}, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "", "ask the agent"},
		"it is down":    {listed{agents: local(fleet.Agent{Node: "n1", Down: "it crashes"})}, nil, "", "it crashes"},
		"no agents":     {listed{err: errors.New("no right")}, nil, "", "no right"},
		"no connection": {listed{agents: local(fleet.Agent{Node: "n1", IP: "127.0.0.2"})}, nil, "", "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			got := viewOf(t, c.agents, c.handler).Fleet(t.Context())
			if c.err == "" {
				if len(got.Overviews) != 1 || got.Overviews[0].Node != c.node || len(got.Errors) != 0 {
					t.Errorf("got %+v", got)
				}
				return
			}
			if len(got.Overviews) != 0 || len(got.Errors) != 1 || !strings.Contains(got.Errors[0].Error, c.err) {
				t.Errorf("got %+v, want an error with %q", got, c.err)
			}
		})
	}
}

// TestHandler checks that the handler serves the page and the data, and lets the page load its own
// files only.
func TestHandler(t *testing.T) {
	v := viewOf(t, listed{agents: []fleet.Agent{{Node: "n1", IP: "127.0.0.1"}}}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"node":"<n1>"}`)
	})
	handler := v.Handler(t.Context())
	for path, want := range map[string]string{
		"/view/":         `<script src="view.js" defer>`,
		"/view/view.js":  "use strict",
		"/view/view.css": "color-scheme",
		"/view/fleet":    `"overviews":[{"node":"\u003cn1\u003e"`,
	} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		if answer.Code != http.StatusOK || !strings.Contains(answer.Body.String(), want) {
			t.Errorf("%s: %d %.200s", path, answer.Code, answer.Body)
		}
		if answer.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%s has the policy %q", path, answer.Header().Get("Content-Security-Policy"))
		}
	}
	for _, c := range []struct{ method, path string }{{http.MethodPost, "/view/fleet"}, {http.MethodGet, "/"}, {http.MethodGet, "/view/nothing"}} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(c.method, c.path, nil))
		if answer.Code != http.StatusNotFound && answer.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s %s: %d", c.method, c.path, answer.Code)
		}
	}
}
