package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// libraryName is NVML's SONAME.
const libraryName = "libnvidia-ml.so.1"

// libraryDirs are the places where distributions and NVIDIA's driver
// container put the driver's libraries.
var libraryDirs = []string{
	"/usr/lib/x86_64-linux-gnu",
	"/usr/lib/aarch64-linux-gnu",
	"/usr/lib64",
	"/usr/lib",
	"/lib/x86_64-linux-gnu",
	"/lib/aarch64-linux-gnu",
	"/lib64",
	"/lib",
	"/usr/lib64/nvidia",
	"/usr/lib/nvidia",
	"/usr/local/nvidia/lib64",
	"/usr/lib/wsl/lib",
	"/run/current-system/sw/lib",
	"/run/opengl-driver/lib",
	"/home/kubernetes/bin/nvidia/lib64",
}

// LibraryError says that NVML was found nowhere.
type LibraryError struct {
	Tried []string
}

func (e *LibraryError) Error() string {
	return fmt.Sprintf("%s not found (tried %s): install the NVIDIA driver, or set driver.root or driver.nvml_library to where it is",
		libraryName, strings.Join(e.Tried, ", "))
}

// FindLibrary gives the path of NVML: explicit, if that is set, else the first
// that is found in the usual directories under root.
func FindLibrary(root, explicit string) (string, error) {
	if explicit != "" {
		if !isFile(explicit) {
			return "", &LibraryError{Tried: []string{explicit}}
		}
		return explicit, nil
	}
	tried := make([]string, 0, len(libraryDirs))
	for _, dir := range libraryDirs {
		path := filepath.Join("/", root, dir, libraryName)
		if isFile(path) {
			return path, nil
		}
		tried = append(tried, path)
	}
	return "", &LibraryError{Tried: tried}
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
