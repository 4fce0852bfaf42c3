package agent

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	// stuckHandler is how long a handler may run before the agent counts as
	// dead: far longer than any runtime waits for it.
	stuckHandler = 30 * time.Second
	// stuckRound is how long no round may have ended. A round waits for the
	// driver no longer than gpu.DefaultTimeout.
	stuckRound = 60 * time.Second
)

// unhealthy says why the agent should be restarted; nothing if it should not.
func (a *Agent) unhealthy(now time.Time) []string {
	var why []string
	if stuck := a.Plugin.Stuck(); stuck > stuckHandler {
		why = append(why, fmt.Sprintf("a handler has been running for %v", stuck.Round(time.Second)))
	}
	if beat := a.beat.Load(); beat != 0 && now.Sub(time.Unix(0, beat)) > stuckRound {
		why = append(why, fmt.Sprintf("the GPUs were last looked at %v ago", now.Sub(time.Unix(0, beat)).Round(time.Second)))
	}
	return why
}

// unready says what the agent still waits for.
func (a *Agent) unready() []string {
	var why []string
	if !a.Plugin.Registered() {
		why = append(why, "not registered with the container runtime")
	}
	if !a.Pods.HasSynced() {
		why = append(why, "the node's pods are not known yet")
	}
	return why
}

// Healthz answers the liveness probe.
func (a *Agent) Healthz(w http.ResponseWriter, _ *http.Request) {
	answer(w, a.unhealthy(time.Now()))
}

// Readyz answers the readiness probe.
func (a *Agent) Readyz(w http.ResponseWriter, _ *http.Request) {
	answer(w, a.unready())
}

func answer(w http.ResponseWriter, why []string) {
	if len(why) == 0 {
		fmt.Fprintln(w, "ok")
		return
	}
	http.Error(w, strings.Join(why, "\n"), http.StatusServiceUnavailable)
}
