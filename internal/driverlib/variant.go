// SPDX-License-Identifier: Apache-2.0

package driverlib

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/leased"
)

// Paths are the paths of a driver's libraries, by file name.
type Paths map[string]string

// Library describes an interposer's library for a driver.
type Library struct {
	Name string `json:"name"`
	// Driver is the path of the driver's library, "" if the library was not found.
	Driver string `json:"driver,omitempty"`
	// Unknown are the driver's names that the interposer does not know.
	Unknown []Unknown `json:"unknown,omitempty"`
	// Error is the reason why the library is used as built.
	Error string `json:"error,omitempty"`
}

// Variant is the interposer's libraries for one driver.
type Variant struct {
	// Dir contains both libraries. If no library could be made for the driver, Dir is the directory
	// of the libraries as built.
	Dir       string    `json:"dir"`
	Libraries []Library `json:"libraries"`
}

// Make makes variants of the interposer's libraries in plain for a driver. Make stores the variants
// in a directory under parent, named after a hash of the content, and uses an existing directory.
// If a library cannot be made for the driver, Make uses the library as built. The error then
// contains the reason, and the Variant can still be used.
func Make(plain, parent string, driver Paths) (Variant, error) {
	v := Variant{Dir: plain}
	contents := map[string][]byte{}
	made := false
	var errs []error
	for _, kind := range Kinds {
		content, err := leased.Read(filepath.Join(plain, kind.Name), maxLibrary)
		if err != nil {
			return v.failed(driver, fileError{fmt.Errorf("read nri-vgpu's library, which its installation writes: %w", err)})
		}
		library := Library{Name: kind.Name, Driver: driver[kind.Name]}
		variant, unknown, err := makeOne(content, library.Driver, kind)
		if err == nil {
			content, library.Unknown, made = variant, unknown, true
		} else {
			library.Error = err.Error()
			errs = append(errs, err)
		}
		contents[kind.Name] = content
		v.Libraries = append(v.Libraries, library)
	}
	if !made {
		return v, errors.Join(errs...)
	}
	dir, err := store(parent, contents)
	if err != nil {
		return v.failed(driver, fileError{err})
	}
	v.Dir = dir
	return v, errors.Join(errs...)
}

// fileError is an error about nri-vgpu's own files, for example because a disk is full. Another attempt
// may succeed.
type fileError struct{ error }

func (e fileError) Unwrap() error { return e.error }

// failed returns a variant in which both libraries failed with err.
func (v Variant) failed(driver Paths, err error) (Variant, error) {
	v.Libraries = nil
	for _, kind := range Kinds {
		v.Libraries = append(v.Libraries, Library{Name: kind.Name, Driver: driver[kind.Name], Error: err.Error()})
	}
	return v, err
}

func makeOne(plain []byte, driver string, kind Kind) ([]byte, []Unknown, error) {
	if driver == "" {
		return nil, nil, fmt.Errorf("the driver's %s was not found: install the driver, or correct driver.root", kind.Name)
	}
	exports, err := ReadExports(driver, kind)
	if err != nil {
		return nil, nil, err
	}
	content, unknown, err := Rewrite(plain, exports, kind)
	if err != nil {
		return nil, nil, fmt.Errorf("make %s for the driver: %w", kind.Name, err)
	}
	return content, unknown, nil
}

// store writes libraries into a directory under parent that is named after a hash of
// their content.
func store(parent string, contents map[string][]byte) (string, error) {
	hash := sha256.New()
	for _, kind := range Kinds {
		fmt.Fprintf(hash, "%s %d\n", kind.Name, len(contents[kind.Name]))
		hash.Write(contents[kind.Name])
	}
	dir := filepath.Join(parent, hex.EncodeToString(hash.Sum(nil)[:8]))
	if holds(dir, contents) {
		return dir, usable(dir)
	}
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", fmt.Errorf("make the directory of libraries for drivers: %w", err)
	}
	staging, err := os.MkdirTemp(parent, ".making-")
	if err != nil {
		return "", fmt.Errorf("make libraries for the driver: %w", err)
	}
	defer os.RemoveAll(staging)
	for name, content := range contents {
		if err := write(filepath.Join(staging, name), content); err != nil {
			return "", fmt.Errorf("make libraries for the driver: %w", err)
		}
	}
	// MkdirTemp allows only the owner, but containers run as any user.
	if err := os.Chmod(staging, 0o755); err != nil {
		return "", fmt.Errorf("make libraries for the driver: %w", err)
	}
	if err := os.Rename(staging, dir); err != nil && !holds(dir, contents) {
		return "", fmt.Errorf("make libraries for the driver: %w: %s has other files: remove the directory once no container uses it", err, dir)
	}
	return dir, usable(dir)
}

func write(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	// The umask reduced the mode at creation.
	return errors.Join(err, file.Chmod(0o755), file.Sync(), file.Close())
}

// holds reports whether a directory contains files with these names and contents. Of a file with a
// lease, holds compares only the size. Only root on the node can write to the directory.
func holds(dir string, contents map[string][]byte) bool {
	for name, content := range contents {
		path := filepath.Join(dir, name)
		have, err := leased.Read(path, maxLibrary)
		if errors.Is(err, leased.Err) && leased.HasSize(path, int64(len(content))) {
			continue
		}
		if err != nil || !bytes.Equal(have, content) {
			return false
		}
	}
	return true
}

// usable rejects a directory on a noexec mount. The loader ignores a preloaded library
// that it cannot load.
func usable(dir string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return fmt.Errorf("find out how %s is mounted: %w", dir, err)
	}
	if stat.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("use the libraries in %s: %w: it is mounted noexec: mount it without, or change paths.install_dir", dir, fs.ErrPermission)
	}
	return nil
}

// Found reports whether any library of the driver was found.
func (v Variant) Found() bool {
	return slices.ContainsFunc(v.Libraries, func(l Library) bool { return l.Driver != "" })
}

// Summary lists in one line the names of the driver that the interposer does not know, "" if the
// interposer knows all names.
func (v Variant) Summary() string {
	var passed, refused, missing []string
	for _, library := range v.Libraries {
		for _, u := range library.Unknown {
			switch u.Treatment {
			case "refuse":
				refused = append(refused, u.Name)
			case "":
				missing = append(missing, u.Name)
			default:
				passed = append(passed, u.Name)
			}
		}
	}
	var parts []string
	for _, part := range []struct {
		phrase string
		names  []string
	}{{"refused", refused}, {"missing", missing}, {"passed on", passed}} {
		if len(part.names) > 0 {
			slices.Sort(part.names)
			parts = append(parts, fmt.Sprintf("%s: %s", part.phrase, list(part.names)))
		}
	}
	return strings.Join(parts, "; ")
}

// list joins the first names, followed by the number of the other names.
func list(names []string) string {
	const most = 20
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
