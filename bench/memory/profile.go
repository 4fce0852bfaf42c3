// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/bench/internal/report"
)

// profile is a driver to measure with.
type profile struct {
	name string
	file string // for the simulator; "" for its own driver, and for a real driver
	// vague reports whether NVML does not list the memory of processes, even on the host.
	vague bool
	// mixContext is the size of contexts in mixes in bytes, or 0 for the driver's own size.
	mixContext uint64
}

// kind is the simulator without a profile. The contexts of kind are small in mixes, so that several
// processes fit even a small limit.
var kind = profile{name: "kind", mixContext: 64 * mib}

// profilesIn returns the simulator's own driver and all profiles of a directory. On
// a machine with a GPU profilesIn returns a single profile for the real driver.
func profilesIn(dir string) ([]profile, error) {
	if report.GPU() == report.Real {
		return []profile{{name: report.Real}}, nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.conf"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no profiles in %s: set --profile-dir to the directory of the profiles", dir)
	}
	all := []profile{kind}
	for _, file := range files {
		regime, err := nvmlRegime(file)
		if err != nil {
			return nil, err
		}
		all = append(all, profile{
			name:  strings.TrimSuffix(filepath.Base(file), ".conf"),
			file:  file,
			vague: regime == "not-available",
		})
	}
	return all, nil
}

// nvmlRegime returns the way in which NVML lists processes, according to a profile.
func nvmlRegime(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read a profile: %w", err)
	}
	defer file.Close()
	regime := "true"
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		if key, value, ok := strings.Cut(line, "="); ok && strings.TrimSpace(key) == "nvml" {
			regime = strings.TrimSpace(value)
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("read profile %s: %w", path, err)
	}
	return regime, nil
}

// chosenProfiles returns the profiles whose names are in wanted, separated by
// commas. If wanted is empty, chosenProfiles returns all.
func chosenProfiles(all []profile, wanted string) ([]profile, error) {
	if wanted == "" {
		return all, nil
	}
	var some []profile
	for name := range strings.SplitSeq(wanted, ",") {
		at := slices.IndexFunc(all, func(p profile) bool { return p.name == name })
		if at < 0 {
			return nil, fmt.Errorf("profile %q; allowed: %s", name, strings.Join(names(all), ", "))
		}
		some = append(some, all[at])
	}
	return some, nil
}

func names(profiles []profile) []string {
	all := make([]string, 0, len(profiles))
	for _, p := range profiles {
		all = append(all, p.name)
	}
	return all
}
