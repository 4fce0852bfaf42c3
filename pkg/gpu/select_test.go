// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func uuids(gpus []GPU) []string {
	var all []string
	for _, g := range gpus {
		all = append(all, g.UUID)
	}
	return all
}

func TestLeftOut(t *testing.T) {
	lost := false
	inv := NewInventory(script(func() ([]GPU, error) {
		gpus := two()
		if lost {
			gpus[0].UUID = ""
		}
		return gpus, nil
	}), 0)
	inv.Select(Selection{Offers: func(g GPU) bool { return g.UUID != "GPU-a" }})
	for range 2 {
		gpus, err := inv.Refresh(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"GPU-b"}, uuids(gpus)); diff != "" {
			t.Error(diff)
		}
		lost = true // a GPU without a UUID is known by the index of an offered GPU only
	}
	lost = false
	if _, err := inv.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"GPU-a"}, uuids(inv.LeftOut())); diff != "" {
		t.Error(diff)
	}
	for uuid, want := range map[string]bool{"GPU-a": true, "GPU-b": false, "GPU-c": false} {
		if got := inv.Foreign(uuid); got != want {
			t.Errorf("%s: foreign is %t", uuid, got)
		}
	}
	// The driver lists processes on GPU-a.
	active, err := inv.Activity(t.Context(), time.Second)
	if err != nil || len(active) != 0 {
		t.Errorf("activity on GPUs that the node does not offer: %v, %v", active, err)
	}
	if processes, err := inv.Processes(t.Context()); err != nil || len(processes) != 1 {
		t.Errorf("detection sees %v, %v", processes, err)
	}
}

func TestClaimed(t *testing.T) {
	reason := "another plugin offers it"
	inv := NewInventory(script(func() ([]GPU, error) { return two(), nil }), 0)
	inv.Select(Selection{Claimed: func(g GPU) string {
		if g.UUID == "GPU-b" {
			return reason
		}
		return ""
	}})
	for _, want := range []string{reason, ""} {
		reason = want
		gpus, err := inv.Refresh(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !gpus[0].Healthy || gpus[1].Healthy != (want == "") || gpus[1].Reason != want {
			t.Errorf("with reason %q: %+v", want, gpus)
		}
		if inv.Foreign("GPU-a") || inv.Foreign("GPU-b") != (want != "") || len(inv.LeftOut()) != 0 {
			t.Errorf("with reason %q: %+v are foreign, left out %v", want, gpus, inv.LeftOut())
		}
	}
}
