// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	// stuckHandler is the time for which a handler may run before the agent counts as dead. No
	// runtime waits nearly as long for a handler.
	stuckHandler = 30 * time.Second
	// stuckRound is the longest acceptable time since the end of the last round. A round waits for
	// the driver at most gpu.DefaultTimeout.
	stuckRound = 60 * time.Second
)

// unhealthy returns the reasons to restart the agent, nil without reasons.
func (h *Heartbeat) unhealthy(now time.Time) []string {
	var why []string
	if stuck := h.Plugin.Stuck(); stuck > stuckHandler {
		why = append(why, fmt.Sprintf("a handler has been running for %v", stuck.Round(time.Second)))
	}
	if beat := h.beat.Load(); beat != nil && now.Sub(*beat) > stuckRound {
		why = append(why, fmt.Sprintf("the GPUs were last examined %v ago", now.Sub(*beat).Round(time.Second)))
	}
	return why
}

// unready returns the conditions for which the agent still waits.
func (h *Heartbeat) unready() []string {
	var why []string
	if !h.Plugin.Registered() {
		why = append(why, "not registered with the container runtime")
	}
	if !h.Pods.HasSynced() {
		why = append(why, "the node's pods are not known yet")
	}
	return why
}

// Healthz answers the liveness probe.
func (h *Heartbeat) Healthz(w http.ResponseWriter, _ *http.Request) {
	answer(w, h.unhealthy(time.Now()))
}

// Readyz answers the readiness probe.
func (h *Heartbeat) Readyz(w http.ResponseWriter, _ *http.Request) {
	answer(w, h.unready())
}

func answer(w http.ResponseWriter, why []string) {
	if len(why) == 0 {
		fmt.Fprintln(w, "ok")
		return
	}
	http.Error(w, strings.Join(why, "\n"), http.StatusServiceUnavailable)
}
