// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestModes simulates a small fleet in each mode. Only the mode sums binds pods that fit no single
// GPU.
func TestModes(t *testing.T) {
	o := options{nodes: 30, load: 0.85, life: 2 * time.Minute, length: 2 * time.Minute}
	for _, kind := range builtIn {
		for _, s := range scenarios(o, kind.sizes) {
			if s.mode.name == "sums" && s.policy == "binpack" {
				continue // the agent repeats refusals for half a minute
			}
			t.Run(kind.resources+"/"+s.mode.name+"/"+s.policy, func(t *testing.T) {
				t.Parallel()
				out, err := simulate(s)
				if err != nil {
					t.Fatal(err)
				}
				r := result{Mode: s.mode.name, Policy: s.policy, Resources: kind.resources, Refusals: 1000 * part(out.refusals, out.binds)}
				if err := r.broken(); err != nil {
					t.Error(err)
				}
				if r.Mode == "sums" && r.Refusals < 50 {
					t.Errorf("%.1f refusals per 1,000 bindings: sums are no measure of single GPUs", r.Refusals)
				}
				if out.binds < 200 || len(out.waits) < 200 || out.utilisation < 0.3 || out.utilisation > 1 || out.fragmentation < 0 || out.fragmentation > 1 {
					t.Errorf("%d bindings, %d starts, utilisation %v, fragmentation %v", out.binds, len(out.waits), out.utilisation, out.fragmentation)
				}
				if !slices.IsSorted(out.waits) || out.waits[0] < startAfter {
					t.Errorf("a pod waited for %v", out.waits[0])
				}
			})
		}
	}
}

// TestTheLedgerAgrees runs a fleet to its end, and compares each node's ledger with the pods that
// are bound to it.
func TestTheLedgerAgrees(t *testing.T) {
	for _, s := range scenarios(options{nodes: 5, load: 0.9, life: time.Minute, length: time.Minute}, builtIn[1].sizes) {
		f, err := newFleet(s)
		if err != nil {
			t.Fatal(err)
		}
		f.after(0, f.arrive)
		f.runUntil(3 * time.Minute)
		for _, n := range f.nodes {
			requested := make([]int64, len(n.resources))
			for _, p := range n.bound {
				for i, units := range p.units {
					requested[i] += units
				}
			}
			if diff := cmp.Diff(requested, n.requested); diff != "" {
				t.Errorf("%s, %s: the requests:\n%s", s.mode.name, s.policy, diff)
			}
			for _, uid := range n.ledger.Holders() {
				if !slices.ContainsFunc(n.bound, func(p *pod) bool { return p.asked.UID == uid }) {
					t.Errorf("%s, %s: the ledger holds GPUs for pod %s, which has ended", s.mode.name, s.policy, uid)
				}
			}
		}
	}
}

func TestBehind(t *testing.T) {
	for _, policy := range []string{"binpack", "spread"} {
		for fit, want := range map[float64]bool{0.8: false, 0.79: false, 0.78: true} {
			results := []result{{Mode: "fit", Policy: "unscored", Resources: "memory", Utilisation: 0.1}, {Mode: "scheduler", Policy: policy, Resources: "memory+cores", Utilisation: 0.9}}
			for _, mode := range []string{"fit", "scheduler"} {
				for _, p := range []string{"binpack", "spread"} {
					r := result{Mode: mode, Policy: p, Resources: "memory", Utilisation: 0.8}
					if mode == "fit" && p == policy {
						r.Utilisation = fit
					}
					results = append(results, r)
				}
			}
			if err := behind(results, "memory"); (err != nil) != want {
				t.Errorf("%s, %v: %v", policy, fit, err)
			}
		}
	}
}
