// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"testing"

	fwk "k8s.io/kube-scheduler/framework"
)

func TestMemoRemembersVerdicts(t *testing.T) {
	m := &memo{}
	verdicts := map[int64]verdict{
		1:             {},
		2:             {fits: true},
		memoWords - 1: {fits: true, score: fwk.MaxScore},
		memoWords:     {fits: true, score: 1},
		1<<40 + 3:     {fits: true, score: 55},
		1<<40 + 4:     {},
	}
	for generation, v := range verdicts {
		if got, ok := m.get(generation); ok {
			t.Errorf("generation %d has verdict %+v before it was put", generation, got)
		}
		m.put(generation, v)
	}
	for generation, v := range verdicts {
		if got, ok := m.get(generation); !ok || got != v {
			t.Errorf("generation %d: got %+v, %t, want %+v", generation, got, ok, v)
		}
	}
}

// Generations that share a word replace each other, and are never taken for each other.
func TestMemoTakesNoGenerationForAnother(t *testing.T) {
	m := &memo{}
	m.put(7, verdict{fits: true, score: 7})
	if _, ok := m.get(7 + memoWords); ok {
		t.Error("the verdict on another generation is returned")
	}
	m.put(7+memoWords, verdict{})
	if _, ok := m.get(7); ok {
		t.Error("the replaced verdict is returned")
	}
	if got, ok := m.get(7 + memoWords); !ok || got.fits {
		t.Errorf("got %+v, %t", got, ok)
	}
	if _, ok := m.get(0); ok {
		t.Error("generation 0 has a verdict")
	}
}
