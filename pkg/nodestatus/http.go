package nodestatus

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Probes serves /healthz (the loop turns) and /readyz (the Node is as it should be).
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

// Metrics are what /metrics tells of.
func (p *Patcher) Metrics() *prometheus.Registry { return p.metrics.registry }

// alive says what is wrong with the loop, "" if nothing.
func (p *Patcher) alive(now time.Time) string {
	if turn := p.snapshot().turn; !turn.IsZero() && now.Sub(turn) > stuckAfter {
		return fmt.Sprintf("the loop has not turned for %s", now.Sub(turn).Round(time.Second))
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
