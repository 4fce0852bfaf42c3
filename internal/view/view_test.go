// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/fleet"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
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
	v, err := New(Options{Agents: agents, Port: port, TokenFile: tokenFile(t), MostBytes: 16 << 20, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// tokenFile returns a file with the token of a View.
func tokenFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// fleetOf returns the data that a View serves.
func fleetOf(t *testing.T, handler http.Handler) (f agentapi.Fleet) {
	t.Helper()
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, agentapi.FleetPath, nil))
	decoder := json.NewDecoder(answer.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		t.Fatal(err)
	}
	return f
}

func answers(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// n1 is an agent that runs.
var n1 = fleet.Agent{Node: "n1", IP: "127.0.0.1", Ready: true}

func TestCollect(t *testing.T) {
	refuses := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "a secret", http.StatusForbidden) }
	hangsUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	for name, c := range map[string]struct {
		agent   fleet.Agent
		handler http.HandlerFunc
		err     string // "" for an overview
	}{
		"an answer":          {n1, answers(`{"node":"n1"}`), ""},
		"refused":            {n1, refuses, "status 403"},
		"no JSON":            {n1, answers("<html>a secret"), "not an overview"},
		"another type":       {n1, answers(`{"node":"n1","gpus":[1234]}`), "not an overview"},
		"null":               {n1, answers(`null`), "another node"},
		"nothing":            {n1, answers(`{}`), "another node"},
		"another node":       {n1, answers(`{"node":"n2"}`), "another node"},
		"too many bytes":     {n1, answers(`{"node":"n1"` + strings.Repeat(" ", mostBytes) + "}"), "more than"},
		"the longest answer": {n1, answers(`{"node":"n1"` + strings.Repeat(" ", mostBytes-len(`{"node":"n1"}`)) + "}"), ""},
		"too many values":    {n1, answers(`{"node":"n1","containers":[{}` + strings.Repeat(",{}", mostCommas) + "]}"), "more than"},
		"it grows":           {n1, answers(`{"node":"n1","containers":[{}` + strings.Repeat(",{}", mostCommas-1) + "]}"), "more than"},
		"a long header": {n1, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("A", strings.Repeat("x", 2*mostHeaderBytes))
		}, "ask the agent"},
		"it hangs up":      {n1, hangsUp, "ask the agent"},
		"it is down":       {fleet.Agent{Node: "n1", Down: "it crashes"}, nil, "it crashes"},
		"it is not ready":  {fleet.Agent{Node: "n1", Pod: "p", IP: "127.0.0.1"}, answers(`{"node":"n1"}`), "its pod p is not ready"},
		"not at that port": {fleet.Agent{Node: "n1", IP: "127.0.0.2", Ready: true}, nil, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			v := viewOf(t, listed{agents: []fleet.Agent{c.agent}}, c.handler)
			got := fleetOf(t, v.Handler(t.Context()))
			if c.err == "" {
				if len(got.Overviews) != 1 || got.Overviews[0].Node != "n1" || len(got.Errors) != 0 {
					t.Errorf("got %+v", got)
				}
				return
			}
			if len(got.Overviews) != 0 || len(got.Errors) != 1 || !strings.Contains(got.Errors[0].Error, c.err) || got.Errors[0].Node != "n1" {
				t.Fatalf("got %.300v, want an error with %q", got, c.err)
			}
			if text := got.Errors[0].Error; strings.Contains(text, "secret") || strings.Contains(text, "1234") {
				t.Errorf("the error quotes the answer: %s", text)
			}
		})
	}
	v := viewOf(t, listed{err: errors.New("no right")}, nil)
	if got := fleetOf(t, v.Handler(t.Context())); len(got.Errors) != 1 || got.Errors[0].Error != "no right" || got.Overviews == nil {
		t.Errorf("without a list of agents: %+v", got)
	}
}

// TestRequest checks that the View sends its token to the agent, and to no address to which the agent
// redirects.
func TestRequest(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the view requests %s", r.URL)
	}))
	defer elsewhere.Close()
	v := viewOf(t, listed{agents: []fleet.Agent{n1}}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != agentapi.OverviewPath || r.Header.Get("Authorization") != "Bearer "+secret {
			t.Errorf("the view requests %s with %q", r.URL.Path, r.Header.Get("Authorization"))
		}
		http.Redirect(w, r, elsewhere.URL+"/latest/meta-data", http.StatusFound)
	})
	got := fleetOf(t, v.Handler(t.Context()))
	if len(got.Errors) != 1 || !strings.Contains(got.Errors[0].Error, "status 302") {
		t.Errorf("got %+v", got)
	}
}

// TestAttribution checks that all parts of an answer have the agent's node, and that no list is null.
func TestAttribution(t *testing.T) {
	text, err := normalize([]byte(`{"node":"n1","gpus":[{"node":"n2"}],"containers":[{"node":"n2"}],"processes":[{"node":"n2"}]}`), "n1")
	if err != nil || strings.Count(string(text), `"node":"n1"`) != 4 || bytes.Contains(text, []byte("null")) {
		t.Errorf("%s, %v", text, err)
	}
	if text, err = normalize([]byte(`{"node":"n1","gpus":null}`), "n1"); err != nil || bytes.Contains(text, []byte("null")) {
		t.Errorf("%s, %v", text, err)
	}
}

// pipes is a network in memory, which the fake clock of synctest supports. An agent that answers is at
// 127.0.0.1. Agents at 127.0.0.9 accept connections and never answer.
type pipes struct {
	answering, silent chan net.Conn
	closed            chan struct{}
	once              *sync.Once
}

func newPipes() pipes {
	return pipes{answering: make(chan net.Conn), silent: make(chan net.Conn, 1000), closed: make(chan struct{}), once: &sync.Once{}}
}

func (p pipes) dial(ctx context.Context, _, address string) (net.Conn, error) {
	near, far := net.Pipe()
	if strings.HasPrefix(address, "127.0.0.9:") {
		p.silent <- far
		return near, nil
	}
	select {
	case p.answering <- far:
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.answering:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443} }

// viewThrough returns a View whose agents are on a network in memory.
func viewThrough(t *testing.T, p pipes, agents Agents, handler http.HandlerFunc) *View {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Listener.Close()
	server.Listener = p
	server.StartTLS()
	t.Cleanup(server.Close)
	v, err := newView(Options{Agents: agents, Port: "443", TokenFile: tokenFile(t), MostBytes: 16 << 20, Log: slog.New(slog.DiscardHandler)}, p.dial)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestSilentAgents checks that agents that do not answer delay a collection by at most patience. The
// View then skips these agents, and queries these agents last after silence. No connection to a
// silent agent outlives patience.
func TestSilentAgents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var agents []fleet.Agent
		for i := range 3 * atOnce {
			agents = append(agents, fleet.Agent{Node: fmt.Sprint("a", i), IP: "127.0.0.9", Ready: true})
		}
		p := newPipes()
		v := viewThrough(t, p, listed{agents: append(agents, n1)}, answers(`{"node":"n1"}`))
		collect := func(when string, takes time.Duration, answered int) {
			t.Helper()
			began := time.Now()
			got := v.collect(t.Context())
			if took := time.Since(began); took != takes {
				t.Errorf("%s a collection takes %v, want %v", when, took, takes)
			}
			if len(got.Overviews) != answered || len(got.Errors) != len(agents)+1-answered || !strings.Contains(got.Errors[0].Error, "does not answer within 2s") {
				t.Errorf("%s: %d overviews, %d errors: %.300v", when, len(got.Overviews), len(got.Errors), got.Errors)
			}
		}
		collect("first", patience, 0)
		collect("with agents that were not queried in time", agentPatience, 1)
		collect("with silent agents", 0, 1)
		time.Sleep(silence)
		collect("after silence", patience, 1)
		time.Sleep(patience)
		synctest.Wait()
		for range len(p.silent) {
			c := <-p.silent
			_ = c.SetReadDeadline(time.Now())
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Fatalf("a connection to a silent agent is open: %v", err)
			}
		}
	})
}

// TestAnAgentAnswersAgain checks that the View queries a silent agent again after silence.
func TestAnAgentAnswersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		v := viewThrough(t, newPipes(), listed{agents: []fleet.Agent{n1}}, func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) == 1 {
				<-r.Context().Done()
			}
			answers(`{"node":"n1"}`)(w, r)
		})
		began := time.Now()
		for i, want := range []struct {
			at       time.Duration
			asked    int64
			answered int
		}{{0, 1, 0}, {silence - 1, 1, 0}, {silence, 2, 1}, {silence, 3, 1}} {
			time.Sleep(time.Until(began.Add(want.at)))
			if got := v.collect(t.Context()); len(got.Overviews) != want.answered || asked.Load() != want.asked {
				t.Errorf("collection %d: %+v after %d queries, want %+v", i, got, asked.Load(), want)
			}
		}
	})
}

// TestMemory checks that the worst answers of many agents do not take more memory than the chart's
// limit for the view.
func TestMemory(t *testing.T) {
	const limit = 256 << 20
	worst := `{"node":"n1","processes":[0` + strings.Repeat(",0", mostCommas/4) + `],"gpus":[0` + strings.Repeat(",0", mostCommas/4) +
		`],"containers":[{}` + strings.Repeat(",{}", 8<<10) + `]}`
	full := `{"node":"n1","version":"` + strings.Repeat("x", mostBytes-1<<10) + `"}`
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit * 95 / 100))
	var agents []fleet.Agent
	for range 2 * atOnce {
		agents = append(agents, n1)
	}
	var n atomic.Int64
	v := viewOf(t, listed{agents: agents}, func(w http.ResponseWriter, r *http.Request) {
		answers([]string{worst, full}[n.Add(1)%2])(w, r)
	})
	ended, peak := make(chan struct{}), make(chan uint64)
	go func() { peak <- peakHeap(ended) }()
	handler := v.Handler(t.Context())
	var viewers sync.WaitGroup
	for range 3 {
		viewers.Go(func() {
			for range 2 {
				answer := httptest.NewRecorder()
				request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, agentapi.FleetPath, nil)
				request.Header.Set("Accept-Encoding", "gzip")
				handler.ServeHTTP(answer, request)
			}
		})
	}
	viewers.Wait()
	close(ended)
	if most := <-peak; most > limit {
		t.Errorf("the heap grows to %d MiB, want at most %d", most>>20, limit>>20)
	}
	got := fleetOf(t, handler)
	if sum := int64(len(got.Overviews) * len(full)); sum == 0 || sum > v.MostBytes {
		t.Errorf("the view keeps %d bytes, want at most %d", sum, v.MostBytes)
	}
}

// peakHeap samples the heap until ended is closed, and returns its largest size.
func peakHeap(ended <-chan struct{}) (most uint64) {
	var m runtime.MemStats
	for {
		select {
		case <-ended:
			return most
		case <-time.After(2 * time.Millisecond):
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapInuse)
		}
	}
}

func TestTheTokenMustExist(t *testing.T) {
	if _, err := New(Options{TokenFile: filepath.Join(t.TempDir(), "none")}); err == nil || !strings.Contains(err.Error(), "read the token for agents") {
		t.Errorf("without a token: %v", err)
	}
}

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "the view's query of an agent", documented.Time(agentPatience), documented.Time(patience)+" for all agents",
		documented.Time(silence), fmt.Sprintf("%d agents at a time", atOnce))
	documented.Bound(t, "an agent's answer to the view", documented.Bytes(mostBytes), documented.Count(mostCommas)+" values", documented.Bytes(mostHeaderBytes)+" for a header")
}

// TestHandler checks that the handler serves the page and the data, and lets the page load its own
// files only.
func TestHandler(t *testing.T) {
	v := viewOf(t, listed{agents: []fleet.Agent{{Node: "<n1>", IP: "127.0.0.1", Ready: true}}}, answers(`{"node":"<n1>"}`))
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
		for header, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
		} {
			if got := answer.Header().Get(header); got != want {
				t.Errorf("%s has %s %q, want %q", path, header, got, want)
			}
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
