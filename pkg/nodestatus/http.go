// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Probes serves /healthz (whether the loop runs) and /readyz (whether the Node is as
// desired).
func (p *Patcher) Probes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, p.alive(time.Now()))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, p.snapshot().problem)
	})
	return mux
}

// Metrics returns the registry that /metrics serves.
func (p *Patcher) Metrics() *prometheus.Registry { return p.metrics.registry }

// alive returns the problem of the loop, or "" if the loop runs.
func (p *Patcher) alive(now time.Time) string {
	if turn := p.snapshot().turn; !turn.IsZero() && now.Sub(turn) > stuckAfter {
		return fmt.Sprintf("the patcher's loop has not run for %s", now.Sub(turn).Round(time.Second))
	}
	return ""
}

func answer(w http.ResponseWriter, problem string) {
	if problem != "" {
		http.Error(w, problem, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

func (p *Patcher) publish(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = s
}

func (p *Patcher) snapshot() state {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}
