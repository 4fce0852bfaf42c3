package nodestatus

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/volcano"
)

const (
	// answerInterval is the pause between two answers to Volcano's scheduler. It
	// asks anew as soon as it has read one, and gives the node up when it has
	// waited for 60 s.
	answerInterval = 20 * time.Second
	// missedInterval is the same for pods that it has sent here without having
	// read the GPUs: a change of the Node makes it read them.
	missedInterval = 5 * time.Second
	// lockPatience is how long a lock stays for which no pod has come.
	lockPatience = 30 * time.Second
)

// registration keeps what Volcano's scheduler reads on a Node.
type registration struct {
	answered time.Time
	// missed is what the agent had counted when that was.
	missed int
	// lock is the one that was last seen, and since when.
	lock      string
	lockSince time.Time
}

// plan is what must change of the Node's annotations: nil removes. The GPUs are
// registered in the same write as the resources: a scheduler that finds the
// resources alone ends in a fault.
func (r *registration) plan(node *corev1.Node, o Observation, desired Resources, cfg config.Config, now time.Time) map[string]*string {
	changes := map[string]*string{}
	if _, offered := desired[cfg.Dialects.Volcano.Number]; !offered || !cfg.Dialects.Volcano.Enabled {
		r.withdraw(node, cfg, changes)
		return changes
	}
	if register := volcano.Registered(o.Report.GPUs, cfg); node.Annotations[volcano.Register] != register {
		changes[volcano.Register] = &register
	}
	if r.owes(node.Annotations[volcano.Handshake], o.Report.Volcano.Missed, now.Sub(r.answered)) {
		answer := volcano.Reported(now)
		changes[volcano.Handshake] = &answer
	}
	if r.mayUnlock(node.Annotations[volcano.Lock], o, now) {
		changes[volcano.Lock] = nil
	}
	return changes
}

// owes tells whether the scheduler is to be told that the node lives.
func (r *registration) owes(handshake string, missed int, since time.Duration) bool {
	return volcano.Asks(handshake) && since >= answerInterval || missed != r.missed && since >= missedInterval
}

// withdraw removes what is ours. Where the dialect was switched off meanwhile,
// ours is what stands beside the resources that we advertised.
func (*registration) withdraw(node *corev1.Node, cfg config.Config, changes map[string]*string) {
	if !cfg.Dialects.Volcano.Enabled && !parseAdvertised(node.Annotations[AdvertisedAnnotation]).Has(cfg.Dialects.Volcano.Number) {
		return
	}
	for _, key := range []string{volcano.Register, volcano.Handshake} {
		if _, ok := node.Annotations[key]; ok {
			changes[key] = nil
		}
	}
}

// mayUnlock tells whether the assignment has been answered for which the
// scheduler has locked the node. The time in the lock is of the same clock as
// that of the assignment.
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

// written notes that a plan was carried out.
func (r *registration) written(changes map[string]*string, o Observation, now time.Time) {
	if changes[volcano.Handshake] != nil {
		r.answered, r.missed = now, o.Report.Volcano.Missed
	}
}
