// SPDX-License-Identifier: Apache-2.0

// Package runtimes detects the features of container runtimes from their names and versions, and
// bounds the length of an answer to them.
package runtimes

import (
	"strconv"
	"strings"
)

// Runtime describes the features of a container runtime.
type Runtime struct {
	Name, Version string
	// CDI reports whether the runtime injects CDI devices that a plugin requests.
	CDI bool
	// Validation reports whether plugins may validate the joint result of all plugins. A runtime
	// without this feature rejects the registration of a plugin that subscribes to the validation
	// event.
	Validation bool
}

// release is the beginning of a version: major, minor.
type release struct{ major, minor int }

func (r release) atLeast(o release) bool {
	return r.major > o.major || r.major == o.major && r.minor >= o.minor
}

// since is the first NRI version with validation. For an unknown runtime, since also decides
// whether the runtime supports CDI.
var since = release{0, 10}

// Detect returns the features of a runtime. The first releases that accept CDI devices from plugins
// are containerd 2.1 and CRI-O 1.34. The NRI version does not distinguish containerd 2.0, which
// silently ignores CDI devices, from 2.1. The runtime's NRI version decides everything else.
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

// parseRelease parses "v2.4.2", "2.4.2+unknown", "1.34.0-dev" and similar versions.
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
