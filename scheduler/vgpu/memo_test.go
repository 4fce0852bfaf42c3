// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"math"
	"testing"
)

func TestMemoRemembersVerdicts(t *testing.T) {
	m := &memo{}
	verdicts := map[int64]verdict{
		1:             {},
		2:             {fits: true},
		3:             {fits: true, valued: true},
		memoWords - 1: {fits: true, valued: true, value: 1},
		memoWords:     {fits: true, valued: true, value: 0.5},
		1<<39 + 1003:  {fits: true, valued: true, value: 1.0 / (1 << 20)},
		1<<39 + 1004:  {},
		1<<39 + 1005:  {fits: true, valued: true, value: 64},
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

// TestMemoRoundsValuesLittle checks that the memo rounds values by less than 0.03 %. Values that
// differ by more than the rounding keep their order.
func TestMemoRoundsValuesLittle(t *testing.T) {
	m := &memo{}
	for value := 1e-9; value < 100; value *= 1.0007 {
		m.put(1, verdict{fits: true, valued: true, value: value})
		got, ok := m.get(1)
		if !ok || !got.fits || !got.valued || math.Abs(got.value/value-1) > 3e-4 {
			t.Fatalf("value %g: got %+v, %t", value, got, ok)
		}
	}
}

// TestMemoTakesNoGenerationForAnother checks that generations with a common word replace each
// other, and that the memo never confuses them.
func TestMemoTakesNoGenerationForAnother(t *testing.T) {
	m := &memo{}
	m.put(7, verdict{fits: true, valued: true, value: 7})
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
