// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/driverlib"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

// libraryNames are the interposer's libraries, in the order of preloading.
var libraryNames = []string{"libcuda.so.1", "libnvidia-ml.so.1"}

// mark is a string that only the interposer's libraries contain; the driver's
// libraries have the same names. mark is the environment variable that contains the
// path of the pages.
const mark = pagesVariable

// LibraryDirs returns the directories in which to search for the interposer, in
// order. exe is the path of vgpuctl. $NRI_VGPU_LIB, if set, is the only
// directory.
func LibraryDirs(exe string, getenv func(string) string) []string {
	if dir := getenv("NRI_VGPU_LIB"); dir != "" {
		return []string{dir}
	}
	beside := filepath.Dir(exe)
	return []string{
		filepath.Join(beside, "../lib"),
		filepath.Join(beside, "lib"), // as in a release's archive
		beside,
		"/usr/local/nri-vgpu/lib",
		filepath.Join("/opt/nri-vgpu", version.Version),
	}
}

// FindLibraries returns the first of dirs that contains the interposer.
func FindLibraries(dirs []string) (string, error) {
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil || !slices.ContainsFunc(libraryNames, func(name string) bool { return isOurs(filepath.Join(abs, name)) }) {
			continue
		}
		for _, name := range libraryNames {
			if !isOurs(filepath.Join(abs, name)) {
				return "", fmt.Errorf("%s lacks %s of nri-vgpu's libraries: install nri-vgpu again", abs, name)
			}
		}
		if strings.ContainsAny(abs, ": ") {
			return "", fmt.Errorf("the loader cannot preload libraries from %q, because its name has a colon or space: move the directory", abs)
		}
		return abs, nil
	}
	return "", fmt.Errorf("nri-vgpu's libraries are not in %s; set NRI_VGPU_LIB to the directory of the libraries", strings.Join(dirs, ", "))
}

// isOurs reports whether the library at path is the interposer's.
func isOurs(path string) bool {
	data, err := os.ReadFile(path)
	return err == nil && bytes.HasPrefix(data, []byte("\x7fELF")) && bytes.Contains(data, []byte(mark))
}

// DriverLibraries returns the directory of the libraries in lib, adapted to the driver that a
// program with this environment finds. DriverLibraries stores the adapted libraries beside lib, or
// in the group's directory if the directory of lib is not writable. On failure DriverLibraries
// returns lib, which exports the names that this version knows.
func DriverLibraries(lib, group string, getenv func(string) string) string {
	driver := driverlib.Find(getenv)
	for _, parent := range []string{paths.Variants(lib), filepath.Join(group, "lib")} {
		// An error reports libraries that stay as built. The variant can still be used.
		if v, _ := driverlib.Make(lib, parent, driver); v.Dir != lib && !strings.ContainsAny(v.Dir, ": ") {
			return v.Dir
		}
	}
	return lib
}
