// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// profile is a driver and a card to simulate.
type profile struct {
	// name contains the names of the driver and the card, as in "r580-h200+one-queue". On a real
	// machine name is "".
	name string
	// files are the simulator's profile files, separated by colons. "" selects the simulator's
	// defaults.
	files string
}

// kind is the simulator without a profile. kind is more benign than any driver and card.
var kind = profile{name: "kind"}

// short are the cards on which the interposer charges some work more than its GPU time.
var short = map[string]struct {
	why string
	of  func(Record) bool
}{
	// On these cards the GPU times of concurrent containers are indistinguishable.
	"one-queue":       {"the probes wait in the same hardware queue behind the work", sideBySide},
	"stamped-at-once": {"an event on an idle stream does not wait for the GPU, and does not show which process uses the GPU", sideBySide},
	"far":             {"the charge includes the time from the launch to the start of the kernel", waited},
}

func sideBySide(r Record) bool { return len(r.Tenants) > 0 }

func waited(r Record) bool { return r.Tenant != nil && r.Pattern == waits }

// profilesIn returns kind and all cards in a directory of profiles. All cards have the same driver.
func profilesIn(dir, driver string) ([]profile, error) {
	files, err := filepath.Glob(filepath.Join(dir, "cards", "*.conf"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no cards in %s: set --profile-dir to the directory of the profiles", dir)
	}
	all := []profile{kind}
	for _, file := range files {
		card := strings.TrimSuffix(filepath.Base(file), ".conf")
		all = append(all, profile{driver + "+" + card, filepath.Join(dir, driver+".conf") + ":" + file})
	}
	return all, nil
}

// card returns the name of the profile's card, or kind.
func (p profile) card() string {
	_, card, found := strings.Cut(p.name, "+")
	if !found {
		return p.name
	}
	return card
}

// chosenProfiles returns the profiles whose cards are in wanted, separated by commas. If wanted
// is empty, chosenProfiles returns all.
func chosenProfiles(all []profile, wanted string) ([]profile, error) {
	if wanted == "" {
		return all, nil
	}
	var some []profile
	for name := range strings.SplitSeq(wanted, ",") {
		at := slices.IndexFunc(all, func(p profile) bool { return p.card() == name })
		if at < 0 {
			return nil, fmt.Errorf("--cards has %q; allowed: %s", name, cardNames(all))
		}
		some = append(some, all[at])
	}
	return some, nil
}

func cardNames(all []profile) string { return joined(all, profile.card) }
