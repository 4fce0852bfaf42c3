// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// libraryName is NVML's SONAME.
const libraryName = "libnvidia-ml.so.1"

// libraryDirs are the directories in which distributions and NVIDIA's driver
// container install the driver's libraries.
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

// LibraryError reports that FindLibrary did not find NVML.
type LibraryError struct {
	Tried []string
}

func (e *LibraryError) Error() string {
	return fmt.Sprintf("%s not found (tried %s): install the NVIDIA driver, or set driver.root or driver.nvml_library to its place",
		libraryName, strings.Join(e.Tried, ", "))
}

// FindLibrary returns the path of NVML. If explicit is set, FindLibrary returns explicit. If
// explicit is empty, FindLibrary returns the first match in the usual directories under root.
func FindLibrary(root, explicit string) (string, error) {
	if explicit != "" {
		if !isFile(explicit) {
			return "", &LibraryError{Tried: []string{explicit}}
		}
		return explicit, nil
	}
	path, tried := findUnder(root, libraryName)
	if path == "" {
		return "", &LibraryError{Tried: tried}
	}
	return path, nil
}

// cudaLibraryName is libcuda's SONAME.
const cudaLibraryName = "libcuda.so.1"

// FindCUDALibrary returns the path of the driver's libcuda. If opts.Library is set, FindCUDALibrary
// first looks in the directory of opts.Library. Then FindCUDALibrary searches the usual directories
// under opts.Root.
func FindCUDALibrary(opts Options) (string, error) {
	if opts.Library != "" {
		if path := filepath.Join(filepath.Dir(opts.Library), cudaLibraryName); isFile(path) {
			return path, nil
		}
	}
	path, tried := findUnder(opts.Root, cudaLibraryName)
	if path == "" {
		return "", fmt.Errorf("%s not found (tried %s): mount the library into the agent's container beside NVML", cudaLibraryName, strings.Join(tried, ", "))
	}
	return path, nil
}

// findUnder searches for a library in the usual directories under root.
func findUnder(root, name string) (path string, tried []string) {
	for _, dir := range libraryDirs {
		candidate := filepath.Join(dir, name)
		if found, err := resolve(filepath.Join("/", root), candidate); err == nil && isFile(found) {
			return found, nil
		}
		tried = append(tried, filepath.Join("/", root, candidate))
	}
	return "", tried
}

// FindBeside returns the path of another driver library. If nvml is set, FindBeside looks in the
// directory of nvml. If nvml is empty, FindBeside looks in the usual directories under root.
func FindBeside(root, nvml, name string) (string, error) {
	dirs := libraryDirs
	if nvml != "" {
		root, dirs = "/", []string{filepath.Dir(nvml)}
	}
	for _, dir := range dirs {
		if found, err := resolve(filepath.Join("/", root), filepath.Join(dir, name)); err == nil && isFile(found) {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s not found in %s under %s", name, strings.Join(dirs, ", "), filepath.Join("/", root))
}

// maxLinks bounds the symbolic links in one path, as the kernel does.
const maxLinks = 40

// resolve follows the links of path as if root were the root directory. A link to
// /etc/alternatives, as in Debian's driver package, therefore points to the driver's /etc.
func resolve(root, path string) (string, error) {
	rest := strings.Split(path, "/")
	at := "/"
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		next := filepath.Join(at, name)
		info, err := os.Lstat(filepath.Join(root, next))
		if err != nil {
			return "", err
		}
		if info.Mode()&os.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: too many symbolic links", path)
		}
		target, err := os.Readlink(filepath.Join(root, next))
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return filepath.Join(root, at), nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
