// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// A Package is a Debian package of this machine.
type Package struct{ Name, Version, Architecture string }

// Packages returns the Debian packages that contain the shared libraries among the files, sorted. On
// a machine without dpkg, Packages returns none.
func Packages(files []File) ([]Package, error) {
	var names []string
	for _, f := range files {
		if f.Source == "" || !strings.Contains(filepath.Base(f.Path), ".so") {
			continue
		}
		if name, found := owner(f.Source); found {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var packages []Package
	for _, name := range slices.Compact(names) {
		p, err := installed(name)
		if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// owner returns the name of the package that contains a library, as dpkg-query prints the name.
func owner(library string) (name string, found bool) {
	real, err := filepath.EvalSymlinks(library)
	if err != nil {
		real = library
	}
	// dpkg lists files by the path at installation, which may predate the merge of /usr.
	for _, candidate := range []string{library, real, strings.TrimPrefix(real, "/usr")} {
		out, err := exec.Command("dpkg-query", "--search", candidate).Output()
		if name, _, ok := strings.Cut(string(out), ": "); err == nil && ok {
			return name, true
		}
	}
	return "", false
}

// installed returns the installed version of a package, whose name may include the architecture.
func installed(name string) (Package, error) {
	out, err := exec.Command("dpkg-query", "--show", "--showformat=${Package} ${Version} ${Architecture}", name).Output()
	if err != nil {
		return Package{}, fmt.Errorf("read the version of the system's package %s: %w", name, err)
	}
	fields := strings.Fields(string(out))
	if len(fields) != 3 {
		return Package{}, fmt.Errorf("version of the system's package %s: dpkg-query printed %q", name, out)
	}
	return Package{Name: fields[0], Version: fields[1], Architecture: fields[2]}, nil
}
