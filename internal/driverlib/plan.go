// SPDX-License-Identifier: Apache-2.0

package driverlib

import (
	"cmp"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/interposer/symbols"
)

// Unknown is a name that the driver exports and the interposer does not know.
type Unknown struct {
	Name string `json:"name"`
	// Treatment is the handling of calls. Treatment is "" if the name is not
	// exported, because it is a variable or because all stubs are used.
	Treatment symbols.Treatment `json:"treatment,omitempty"`
}

// plan decides which names a library exports for a driver: known names that the
// driver exports, hooks, and a stub for each unknown function.
func plan(known []string, driver []Export, kind Kind, stubs int) (keep map[string]bool, unknown []Unknown) {
	keep = map[string]bool{}
	for _, hook := range kind.hooks {
		keep[hook] = slices.Contains(known, hook)
	}
	for _, export := range driver {
		switch {
		case slices.Contains(known, export.Name):
			keep[export.Name] = true
		case export.Data || len(export.Name) >= maxName:
			unknown = append(unknown, Unknown{Name: export.Name})
		default:
			unknown = append(unknown, Unknown{export.Name, symbols.Treat(export.Name)})
		}
	}
	// If stubs run out, plan omits names whose calls would be refused.
	slices.SortStableFunc(unknown, func(a, b Unknown) int { return cmp.Compare(rank(a), rank(b)) })
	for i := range unknown {
		if i >= stubs {
			unknown[i].Treatment = ""
		}
	}
	slices.SortFunc(unknown, func(a, b Unknown) int { return cmp.Compare(a.Name, b.Name) })
	return keep, unknown
}

func rank(u Unknown) int {
	switch u.Treatment {
	case symbols.Pass, symbols.Capture:
		return 0
	case symbols.Refuse:
		return 1
	}
	return 2
}
