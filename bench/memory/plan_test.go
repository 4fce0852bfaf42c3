// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseWays(t *testing.T) {
	const list = "alloc          cuMemAlloc_v2\nctx-v3         cuCtxCreate_v3\n\n"
	if diff := cmp.Diff([]string{"alloc", "ctx-v3"}, parseWays(list)); diff != "" {
		t.Error(diff)
	}
}

func TestChosen(t *testing.T) {
	all := []string{"alloc", "vmm", "pool"}
	got, err := chosen(all, []string{"pool", "alloc"})
	if diff := cmp.Diff([]string{"alloc", "pool"}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err := chosen(all, []string{"malloc"}); err == nil {
		t.Error("chosen returned an unknown way")
	}
	if !slices.Equal(all, []string{"alloc", "vmm", "pool"}) {
		t.Errorf("the list was changed: %v", all)
	}
}

func TestAloneSteps(t *testing.T) {
	steps := aloneSteps([]string{"alloc", "vmm"}, []uint64{gib, 2 * gib})
	if len(steps) != 4 || steps[3].way != "vmm" || steps[3].limit != 2*gib || len(steps[3].tasks) != 1 {
		t.Errorf("got %v", steps)
	}
}

func TestMixSteps(t *testing.T) {
	ways := []string{"alloc", "vmm", "pool", "ctx"}
	at := []uint64{gib, 15 * gib}
	steps := mixSteps(ways, at, 50, 7, gib/2)
	if !slices.EqualFunc(steps, mixSteps(ways, at, 50, 7, gib/2), sameStep) {
		t.Error("the same seed makes other mixes")
	}
	if slices.EqualFunc(steps, mixSteps(ways, at, 50, 8, gib/2), sameStep) {
		t.Error("another seed makes the same mixes")
	}
	most := 0
	for _, s := range steps {
		checkMix(t, s)
		if s.limit == gib && len(s.tasks) != 2 {
			t.Errorf("%d processes, whose contexts are more than the limit", len(s.tasks))
		}
		most = max(most, len(s.tasks))
	}
	if most != mostProcesses {
		t.Errorf("at most %d processes in 50 mixes, not %d", most, mostProcesses)
	}
}

func sameStep(a, b step) bool {
	return a.way == b.way && a.limit == b.limit && slices.Equal(a.tasks, b.tasks)
}

func checkMix(t *testing.T, s step) {
	t.Helper()
	last := s.tasks[len(s.tasks)-1]
	if last.way != exactWay || last.unit != 1 || last.threads != 1 || last.rounds != 1 {
		t.Errorf("the last task, %v, does not take the rest to the byte", last)
	}
	for _, task := range s.tasks {
		if task.chunk < leastChunk || task.chunk > 256*mib || task.threads < 1 || task.threads > 4 || task.rounds < 1 {
			t.Errorf("task %v", task)
		}
	}
}
