// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

const (
	// answerInterval is the pause between two answers to Volcano's scheduler.
	// The scheduler sends the next question as soon as it has read an answer. After 60 s
	// without an answer, the scheduler drops the node.
	answerInterval = 20 * time.Second
	// missedInterval is the pause between two answers if the scheduler has placed pods on the node
	// without having read the GPUs. A change of the Node makes the scheduler read the GPUs.
	missedInterval = 5 * time.Second
	// lockPatience is the time after which the patcher removes a lock for which no pod has arrived.
	lockPatience = 30 * time.Second
)

// registration maintains the annotations that Volcano's scheduler reads on a
// Node.
type registration struct {
	answered time.Time
	// missed is the agent's count of missed pods at the last answer.
	missed int
	// lock is the Node's lock at the last plan. lockSince is the time at which a plan first found
	// the lock.
	lock      string
	lockSince time.Time
}

// plan returns the necessary changes of the Node's annotations; nil removes an annotation. The
// patcher registers the GPUs in the same write as the resources: a scheduler that reads the
// resources without the GPUs crashes.
func (r *registration) plan(node *corev1.Node, o Observation, desired Resources, cfg config.Config, now time.Time) map[string]*string {
	changes := map[string]*string{}
	if _, offered := desired[cfg.Dialects.Volcano.Number]; !offered || !cfg.Dialects.Volcano.Enabled {
		r.withdraw(node, cfg, changes)
		return changes
	}
	// An agent that does not know the pods yet may not know the GPUs either.
	if register := volcano.Registered(o.Report.GPUs, cfg); register != "" && node.Annotations[volcano.Register] != register {
		changes[volcano.Register] = &register
	}
	if r.mustAnswer(node.Annotations[volcano.Handshake], o.Report.Volcano.Missed, now.Sub(r.answered)) {
		answer := volcano.Reported(now)
		changes[volcano.Handshake] = &answer
	}
	if r.mayUnlock(node.Annotations[volcano.Lock], o, now) {
		changes[volcano.Lock] = nil
	}
	return changes
}

// mustAnswer reports whether the patcher must answer the scheduler now, either because the scheduler
// asks or because the scheduler has missed the GPUs.
func (r *registration) mustAnswer(handshake string, missed int, since time.Duration) bool {
	return volcano.Asks(handshake) && since >= answerInterval || missed != r.missed && since >= missedInterval
}

// withdraw removes the patcher's annotations. If the dialect is disabled, the annotations belong to
// the patcher only if a patcher has advertised the dialect's resources.
func (*registration) withdraw(node *corev1.Node, cfg config.Config, changes map[string]*string) {
	if !cfg.Dialects.Volcano.Enabled && !parseAdvertised(node.Annotations[ownnode.Advertised]).Has(cfg.Dialects.Volcano.Number) {
		return
	}
	for _, key := range []string{volcano.Register, volcano.Handshake} {
		if _, ok := node.Annotations[key]; ok {
			changes[key] = nil
		}
	}
}

// mayUnlock reports whether the patcher may remove the scheduler's lock. The agent must have
// answered the assignment of the lock, or no pod must have arrived within lockPatience. The times
// in the lock and in the assignment come from the same clock.
func (r *registration) mayUnlock(lock string, o Observation, now time.Time) bool {
	if lock != r.lock {
		r.lock, r.lockSince = lock, now
	}
	if lock == "" {
		return false
	}
	if at, err := time.Parse(time.RFC3339, lock); err == nil && o.Report.Volcano.AnsweredAt >= at.Unix() {
		return true
	}
	return o.Report.Volcano.Pending == 0 && now.Sub(r.lockSince) >= lockPatience
}

// written records the changes of a plan that the patcher has written.
func (r *registration) written(changes map[string]*string, o Observation, now time.Time) {
	if changes[volcano.Handshake] != nil {
		r.answered, r.missed = now, o.Report.Volcano.Missed
	}
}
