// SPDX-License-Identifier: Apache-2.0

// Package symbols has the interposer's tables of the driver's names, for Go: the treatment of each
// known name, and of families of unknown names.
package symbols

import (
	_ "embed"
	"fmt"
	"strings"
)

// Treatment is the handling of an unknown function of the driver.
type Treatment string

// The treatments.
const (
	// Pass forwards a function that can neither allocate nor launch.
	Pass Treatment = "pass"
	// Refuse replaces a function that can allocate or launch with an error.
	Refuse Treatment = "refuse"
	// Capture forwards a function that may begin a capture; the interposer expects captures from
	// then on.
	Capture Treatment = "capture"
)

//go:embed families.txt
var familiesText string

//go:embed libcuda.txt
var cudaText string

// family is a line of families.txt.
type family struct {
	treatment Treatment
	pattern   string
}

var (
	families = mustFamilies(familiesText)
	owns     = ownStems(cudaText)
)

func mustFamilies(text string) []family {
	var all []family
	for _, fields := range lines(text) {
		f := family{Treatment(fields[0]), fields[len(fields)-1]}
		if len(fields) != 2 || f.treatment != Pass && f.treatment != Refuse && f.treatment != Capture {
			panic(fmt.Sprintf("families.txt: %q is not a treatment and a pattern", fields))
		}
		all = append(all, f)
	}
	return all
}

// ownStems returns the names, without versions, of the functions that the interposer replaces.
func ownStems(text string) map[string]bool {
	stems := map[string]bool{}
	for _, fields := range lines(text) {
		if len(fields) == 2 && fields[1] == "own" {
			stems[stem(fields[0])] = true
		}
	}
	return stems
}

func lines(text string) [][]string {
	var all [][]string
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(fields[0], "#") {
			all = append(all, fields)
		}
	}
	return all
}

// Treat returns the treatment of an unknown function.
func Treat(name string) Treatment {
	treatment := familyOf(name)
	if treatment == Pass && owns[stem(name)] {
		return Refuse
	}
	return treatment
}

// familyOf returns the family of a name in families.txt.
func familyOf(name string) Treatment {
	for _, f := range families {
		if fits(f.pattern, name) {
			return f.treatment
		}
	}
	return Pass
}

// fits reports whether a name fits a pattern, in which * stands for any characters.
func fits(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	first, middle, last := parts[0], parts[1:len(parts)-1], parts[len(parts)-1]
	rest, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	for _, part := range middle {
		if _, rest, ok = strings.Cut(rest, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(rest, last)
}

// stem returns a name without its version and without the suffix of per-thread
// default streams.
func stem(name string) string {
	for _, suffix := range []string{"_ptsz", "_ptds"} {
		name = strings.TrimSuffix(name, suffix)
	}
	i := strings.LastIndex(name, "_v")
	if i < 0 || i+2 == len(name) || strings.Trim(name[i+2:], "0123456789") != "" {
		return name
	}
	return name[:i]
}
