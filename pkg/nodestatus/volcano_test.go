// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/ownnode"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/volcano"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// volcanoNode is a Node in the view of Volcano's scheduler and of a patcher.
type volcanoNode struct {
	corev1.Node
	registration
	cfg    config.Config
	report nodereport.Report
	now    time.Time
	// offered reports whether the patcher advertises the resources.
	offered bool
}

func newVolcanoNode() *volcanoNode {
	return &volcanoNode{
		Node:    corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}},
		cfg:     config.Default(),
		report:  nodereport.Report{GPUs: []gpu.GPU{{UUID: "GPU-1", Name: "H200", MemoryBytes: 1 << 34, Healthy: true}}},
		now:     time.Date(2026, 11, 21, 14, 0, 0, 0, time.UTC),
		offered: true,
	}
}

// turn runs one iteration of the patcher's loop, seconds later. turn returns the
// names of the written annotations.
func (n *volcanoNode) turn(seconds int) []string {
	n.now = n.now.Add(time.Duration(seconds) * time.Second)
	observed := Observation{Report: &n.report, Alive: n.now}
	desired := Resources{}
	if n.offered {
		desired[n.cfg.Dialects.Volcano.Number] = 10
	}
	changes := n.plan(&n.Node, observed, desired, n.cfg, n.now)
	for key, value := range changes {
		if value == nil {
			delete(n.Annotations, key)
		} else {
			n.Annotations[key] = *value
		}
	}
	n.written(changes, observed, n.now)
	return slices.Sorted(maps.Keys(changes))
}

func (n *volcanoNode) check(t *testing.T, seconds int, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, n.turn(seconds)); diff != "" {
		t.Errorf("written at %s (-want +got):\n%s", n.now.Format(time.TimeOnly), diff)
	}
}

func TestRegistration(t *testing.T) {
	n := newVolcanoNode()
	n.check(t, 0, volcano.Handshake, volcano.Register)
	if got := n.Annotations[volcano.Register]; got != "GPU-1,10,16384,NVIDIA-H200,true,hami-core:" {
		t.Errorf("registered as %s", got)
	}
	n.check(t, 60)
	n.report.GPUs[0].Healthy = false
	n.check(t, 1, volcano.Register)
	delete(n.Annotations, volcano.Register)
	n.check(t, 1, volcano.Register)
	n.offered = false
	n.check(t, 1, volcano.Handshake, volcano.Register)
	n.check(t, 1)
	if len(n.Annotations) != 0 {
		t.Errorf("left behind: %v", n.Annotations)
	}
}

// TestTheRegistrationStaysWithTheResources checks that a Node with resources lists its GPUs for
// Volcano's scheduler. A new agent may know neither the pods nor the GPUs, and the Node then keeps its
// resources.
func TestTheRegistrationStaysWithTheResources(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	r := startRig(t, cfg, time.Minute)
	r.api.create()
	r.report(nil)
	full := worth(cfg, testGPU("GPU-a", true))
	r.await(full, polled)
	registered, _ := r.api.annotation(volcano.Register)
	if !strings.HasPrefix(registered, "GPU-a,") {
		t.Fatalf("registered as %q", registered)
	}
	r.write(nodereport.Report{Heartbeat: time.Now(), PluginRegistered: true})
	time.Sleep(2 * pollInterval)
	r.await(full, 0)
	if got, _ := r.api.annotation(volcano.Register); got != registered {
		t.Errorf("the Node has its resources, and is registered as %q", got)
	}
}

// TestTheSchedulerIsAnsweredInTimeAndAtLeisure checks that the patcher answers in time, but not at
// once. The scheduler asks again as soon as it has read an answer, and waits 60 s for an answer.
func TestTheSchedulerIsAnsweredInTimeAndAtLeisure(t *testing.T) {
	n := newVolcanoNode()
	n.turn(0)
	answers := 0
	var asked time.Time
	for range 300 {
		if strings.HasPrefix(n.Annotations[volcano.Handshake], "Reported") {
			n.Annotations[volcano.Handshake], asked = "Requesting_2026.11.21 14:00:00", n.now
		}
		if len(n.turn(1)) > 0 {
			answers++
		}
		if n.now.Sub(asked) > 30*time.Second {
			t.Fatalf("not answered for %v", n.now.Sub(asked))
		}
	}
	if answers > 16 {
		t.Errorf("%d answers in 300 s", answers)
	}
	n.Annotations[volcano.Handshake] = "Deleted_2026.11.21 14:00:00"
	n.check(t, 30, volcano.Handshake)
}

func TestPodsThatWereMissedMakeTheSchedulerLookAgain(t *testing.T) {
	n := newVolcanoNode()
	n.turn(0)
	n.report.Volcano.Missed = 2
	n.check(t, 4)
	n.check(t, 1, volcano.Handshake)
	n.check(t, 60)
}

func TestTheSchedulerIsAnsweredEvery20Seconds(t *testing.T) {
	n := newVolcanoNode()
	n.turn(0)
	n.Annotations[volcano.Handshake] = "Requesting_2026.11.21 14:00:00"
	n.check(t, 19)
	n.check(t, 1, volcano.Handshake)
}

func TestTheLockGoesWithTheAnswer(t *testing.T) {
	at := func(s int) string {
		return time.Date(2026, 11, 21, 13, 0, s, 0, time.FixedZone("", 7200)).Format(time.RFC3339)
	}
	answered := time.Date(2026, 11, 21, 11, 0, 30, 0, time.UTC).Unix()
	for _, tt := range []struct {
		name    string
		lock    string
		state   nodereport.Volcano
		seconds int
		freed   bool
	}{
		{"the answered assignment", at(30), nodereport.Volcano{AnsweredAt: answered}, 1, true},
		{"an earlier assignment", at(29), nodereport.Volcano{AnsweredAt: answered, Pending: 3}, 1, true},
		{"of a later one", at(31), nodereport.Volcano{AnsweredAt: answered, Pending: 1}, 300, false},
		{"of a later one whose pod has not come", at(31), nodereport.Volcano{AnsweredAt: answered}, 29, false},
		{"of one whose pod never came", at(31), nodereport.Volcano{AnsweredAt: answered}, 30, true},
		{"without a time", "locked", nodereport.Volcano{AnsweredAt: answered}, 29, false},
		{"without a time for long", "locked", nodereport.Volcano{}, 30, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newVolcanoNode()
			n.turn(0)
			n.report.Volcano = tt.state
			n.Annotations[volcano.Lock] = tt.lock
			written := n.turn(0)
			if !slices.Contains(written, volcano.Lock) {
				written = n.turn(tt.seconds)
			}
			if got := slices.Contains(written, volcano.Lock); got != tt.freed {
				t.Errorf("freed: %v, want %v", got, tt.freed)
			}
		})
	}
}

// TestRegistrationOfADialectThatIsOff checks that a patcher without the dialect removes only a
// patcher's annotations, and not the annotations of another device plugin.
func TestRegistrationOfADialectThatIsOff(t *testing.T) {
	n := newVolcanoNode()
	n.turn(0)
	n.offered, n.cfg.Dialects.Volcano.Enabled = false, false
	n.check(t, 1)
	n.Annotations[ownnode.Advertised] = "volcano.sh/vgpu-memory,volcano.sh/vgpu-number"
	n.check(t, 1, volcano.Handshake, volcano.Register)
}

// TestManyLocksAreRemovedAtOnce checks that the limit on restores does not delay the removal of
// locks of Volcano's scheduler. Each lock stops the node's scheduling.
func TestManyLocksAreRemovedAtOnce(t *testing.T) {
	t.Parallel()
	r := startRig(t, config.Default(), time.Minute)
	r.api.create()
	now := time.Now()
	r.report(func(report *nodereport.Report) { report.Volcano.AnsweredAt = now.Unix() })
	r.await(worth(config.Default(), testGPU("GPU-a", true)), polled)
	for i := range 2 * restoreBurst {
		r.api.interfere(fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, volcano.Lock, now.Add(-time.Duration(i)*time.Second).UTC().Format(time.RFC3339)))
		if err := eventually.Wait(promptly, "the lock is removed", func() bool {
			_, locked := r.api.annotation(volcano.Lock)
			return !locked
		}); err != nil {
			t.Fatalf("lock %d: %v", i, err)
		}
	}
}
