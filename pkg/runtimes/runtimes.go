// Package runtimes knows what container runtimes can do over NRI, from what
// they say of themselves.
package runtimes

import (
	"strconv"
	"strings"
)

// Runtime is what a container runtime can do.
type Runtime struct {
	Name, Version string
	// CDI tells whether it injects CDI devices that a plugin asks for.
	CDI bool
	// Validation tells whether it lets plugins look at what all of them
	// together made of a container. To one that does not a plugin that wants
	// to look is unknown, and not registered.
	Validation bool
}

// release is the beginning of a version: major, minor.
type release struct{ major, minor int }

func (r release) atLeast(o release) bool {
	return r.major > o.major || r.major == o.major && r.minor >= o.minor
}

// since is the first NRI version with validation, and the one by which of a
// runtime that we do not know we tell whether it has CDI.
var since = release{0, 10}

// Detect tells what a runtime can do. CDI devices from plugins are taken by
// containerd from 2.1 and CRI-O from 1.34 on; containerd 2.0 has the same NRI
// as 2.1 and silently ignores them. All else the runtime's NRI version decides.
func Detect(name, version, nriVersion string) Runtime {
	nri, ok := parseRelease(nriVersion)
	modern := ok && nri.atLeast(since)
	rt := Runtime{Name: name, Version: version, CDI: modern, Validation: modern}
	first, known := map[string]release{"containerd": {2, 1}, "cri-o": {1, 34}}[strings.ToLower(name)]
	if v, ok := parseRelease(version); known && ok {
		rt.CDI = v.atLeast(first)
	}
	return rt
}

// parseRelease reads "v2.4.2", "2.4.2+unknown", "1.34.0-dev" and the like.
func parseRelease(version string) (release, bool) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return release{}, false
	}
	major, err := strconv.Atoi(parts[0])
	if err != nil {
		return release{}, false
	}
	digits := parts[1]
	if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		digits = digits[:end]
	}
	minor, err := strconv.Atoi(digits)
	return release{major, minor}, err == nil
}
