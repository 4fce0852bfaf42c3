package hook

import (
	"strconv"
	"strings"
)

// release is the beginning of a version: major, minor.
type release struct{ major, minor int }

func (r release) atLeast(o release) bool {
	return r.major > o.major || r.major == o.major && r.minor >= o.minor
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

// DetectRuntime tells what a runtime can do from what it says of itself.
// CDI devices from plugins are taken by containerd from 2.1 and CRI-O from
// 1.34 on; containerd 2.0 has the same NRI as 2.1 and silently ignores them.
// Of a runtime that we do not know its NRI version decides.
func DetectRuntime(name, version, nriVersion string) Runtime {
	since, have := map[string]release{"containerd": {2, 1}, "cri-o": {1, 34}}[strings.ToLower(name)]
	v, ok := parseRelease(version)
	if !have || !ok {
		since = release{0, 10}
		v, ok = parseRelease(nriVersion)
	}
	return Runtime{Name: name, Version: version, CDI: ok && v.atLeast(since)}
}
