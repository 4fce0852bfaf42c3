// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProfilesIn(t *testing.T) {
	all, err := profilesIn("../../gpusim/profiles")
	if err != nil {
		t.Fatal(err)
	}
	vague := map[string]bool{}
	for _, p := range all {
		vague[p.name] = p.vague
	}
	want := map[string]bool{"kind": false, "r535-h100": false, "r550-4060ti": true, "r580-h200": false, "future": false}
	if diff := cmp.Diff(want, vague); diff != "" || all[0].name != "kind" || all[0].file != "" {
		t.Errorf("%v, first %+v", diff, all[0])
	}
	if none, err := profilesIn(t.TempDir()); err == nil {
		t.Errorf("in an empty directory: %v", none)
	}
}

func TestNVMLRegime(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "true",
		"name = x\n nvml=own-zero # or so\n": "own-zero",
		"# nvml = not-available\nnvml_open = 5ms\n": "true",
	} {
		path := filepath.Join(t.TempDir(), "p.conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := nvmlRegime(path); got != want || err != nil {
			t.Errorf("%q: %q, error %v, want %q", text, got, err, want)
		}
	}
	if _, err := nvmlRegime("/nonexistent"); err == nil {
		t.Error("no error without a file")
	}
}

func TestChosenProfiles(t *testing.T) {
	all := []profile{{name: "a"}, {name: "b"}, {name: "c"}}
	if got, err := chosenProfiles(all, ""); len(got) != 3 || err != nil {
		t.Errorf("%v, error %v", got, err)
	}
	if got, err := chosenProfiles(all, "c,a"); len(got) != 2 || got[0].name != "c" || err != nil {
		t.Errorf("%v, error %v", got, err)
	}
	if got, err := chosenProfiles(all, "a,d"); err == nil {
		t.Errorf("an unknown profile is %v", got)
	}
}
