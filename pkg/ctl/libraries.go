package ctl

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/driverlib"
	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/version"
)

// The interposer's libraries, in the order in which they are preloaded.
var libraryNames = []string{"libcuda.so.1", "libnvidia-ml.so.1"}

// mark is in the interposer's libraries and not in the driver's, which have
// the same names: the environment variable that tells them where pages are.
const mark = pagesVariable

// LibraryDirs are the places where the interposer may be, best first. exe is
// the path of vgpuctl. $NRI_VGPU_LIB, if set, is the only one.
func LibraryDirs(exe string, getenv func(string) string) []string {
	if dir := getenv("NRI_VGPU_LIB"); dir != "" {
		return []string{dir}
	}
	beside := filepath.Dir(exe)
	return []string{
		filepath.Join(beside, "../lib"),
		beside,
		"/usr/local/nri-vgpu/lib",
		filepath.Join("/opt/nri-vgpu", version.Version),
	}
}

// FindLibraries is the first of dirs that has the interposer.
func FindLibraries(dirs []string) (string, error) {
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil || !slices.ContainsFunc(libraryNames, func(name string) bool { return isOurs(filepath.Join(abs, name)) }) {
			continue
		}
		for _, name := range libraryNames {
			if !isOurs(filepath.Join(abs, name)) {
				return "", fmt.Errorf("%s has a part of nri-vgpu's libraries only: %s is missing; install it again", abs, name)
			}
		}
		if strings.ContainsAny(abs, ": ") {
			return "", fmt.Errorf("%q cannot be preloaded from, for its name has a colon or space; move it", abs)
		}
		return abs, nil
	}
	return "", fmt.Errorf("nri-vgpu's libraries are not in %s; set NRI_VGPU_LIB to where they are", strings.Join(dirs, ", "))
}

// isOurs tells the interposer from the driver.
func isOurs(path string) bool {
	data, err := os.ReadFile(path)
	return err == nil && bytes.HasPrefix(data, []byte("\x7fELF")) && bytes.Contains(data, []byte(mark))
}

// DriverLibraries returns the directory of the libraries in lib as they are made for
// the driver that a program with this environment finds. They are kept beside lib, or
// in the group's directory where that cannot be written. Where they cannot be made it
// returns lib: then programs find the names that this version knows.
func DriverLibraries(lib, group string, getenv func(string) string) string {
	driver := driverlib.Find(getenv)
	for _, parent := range []string{layout.Variants(lib), filepath.Join(group, "lib")} {
		// An error tells what was used as it is built; the variant has the rest.
		if v, _ := driverlib.Make(lib, parent, driver); v.Dir != lib && !strings.ContainsAny(v.Dir, ": ") {
			return v.Dir
		}
	}
	return lib
}
