// SPDX-License-Identifier: Apache-2.0

// Package install copies the libraries and vgpuctl to the host. Each version has a directory that
// never changes, because running containers mount files of the directory.
package install

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/install/standin"
	"github.com/nri-vgpu/nri-vgpu/internal/leased"
	"github.com/nri-vgpu/nri-vgpu/internal/machine"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// ErrDiffers means that the version is installed with different files.
var ErrDiffers = errors.New("this version is installed with other content")

// versionName matches versions that are valid directory names and not hidden.
var versionName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]*$`)

// file is a file to install. The file is a link, a copy of a source, or has fixed content.
type file struct {
	name, source string
	content      []byte
	mode         os.FileMode
	// link is the target of the link in a container; empty for other files.
	link string
}

func files(source string) []file {
	list := standIns()
	for _, name := range paths.Helpers {
		list = append(list, file{name: name, source: filepath.Join(source, "lib", name), mode: 0o755})
	}
	return append(list, []file{
		{name: paths.CUDALibrary, source: filepath.Join(source, "lib", paths.CUDALibrary), mode: 0o755},
		{name: paths.NVMLLibrary, source: filepath.Join(source, "lib", paths.NVMLLibrary), mode: 0o755},
		{name: paths.Vgpuctl, source: filepath.Join(source, "bin", paths.Vgpuctl), mode: 0o755},
		{name: paths.Preload, content: paths.PreloadContent(), mode: 0o644},
	}...)
}

// standIns returns the files that loaders preload from a directory for each platform. A 64-bit
// loader finds links to the interposer's libraries. A 32-bit loader finds empty libraries whose
// names are the paths of the interposer's libraries. The directory paths.StandIns itself also
// contains the links: some shells read LD_PRELOAD from a file and expand $PLATFORM to an empty
// string.
func standIns() []file {
	var list []file
	for name, path := range map[string]string{paths.CUDALibrary: paths.ContainerCUDA, paths.NVMLLibrary: paths.ContainerNVML} {
		for _, platform := range append([]string{""}, machine.Platforms...) {
			list = append(list, file{name: filepath.Join(paths.StandIns, platform, name), link: path})
		}
		for _, platform := range machine.Platforms32 {
			content := standin.Library(elf.ELFCLASS32, path)
			list = append(list, file{name: filepath.Join(paths.StandIns, platform, name), content: content, mode: 0o755})
		}
	}
	return list
}

// Install copies the files in source's directories lib and bin to the version's directory in dir.
// Install returns the path of the version's directory, which Install creates atomically and never
// changes. If the files of an existing directory differ, Install returns ErrDiffers.
func Install(source, dir, version string) (string, error) {
	if !versionName.MatchString(version) {
		return "", fmt.Errorf("version %q cannot be the name of a directory", version)
	}
	removeAbandoned(dir, paths.Staging)
	target := paths.Versioned(dir, version)
	if _, err := os.Stat(target); err == nil {
		return target, verify(source, target)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("install into %s (paths.install_dir): %w", dir, err)
	}
	staging, err := os.MkdirTemp(dir, paths.Staging)
	if err != nil {
		return "", fmt.Errorf("install into %s (paths.install_dir): %w", dir, err)
	}
	defer os.RemoveAll(staging)
	if err := fill(staging, source); err != nil {
		return "", err
	}
	if err := os.Rename(staging, target); err != nil {
		// Another process created the directory first.
		if errors.Is(err, fs.ErrExist) {
			return target, verify(source, target)
		}
		return "", fmt.Errorf("rename %s into place: %w", target, err)
	}
	return target, sync(dir)
}

func fill(staging, source string) error {
	for _, f := range files(source) {
		if err := f.copyTo(filepath.Join(staging, f.name)); err != nil {
			return fmt.Errorf("install %s: %w", f.name, err)
		}
	}
	return filepath.WalkDir(staging, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		// MkdirTemp permits access only to the owner, and the umask reduced the other directories'
		// modes. Containers run as any user.
		if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // only this process writes there
			return fmt.Errorf("open the directory to all: %w", err)
		}
		return sync(path)
	})
}

func (f file) open() (io.ReadCloser, error) {
	if f.link != "" {
		return io.NopCloser(strings.NewReader(f.link)), nil
	}
	if f.source == "" {
		return io.NopCloser(bytes.NewReader(f.content)), nil
	}
	return leased.Open(f.source, os.O_RDONLY)
}

func (f file) copyTo(path string) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if f.link != "" {
		return os.Symlink(f.link, path)
	}
	from, err := f.open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	// The umask reduced the mode at creation.
	if err := to.Chmod(f.mode); err != nil {
		return err
	}
	return to.Sync()
}

func sync(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("write %s to disk: %w", dir, err)
	}
	return nil
}

// verify compares the installed files with the files of source. Containers mount the installed files,
// and may have leases on the files. verify compares only the size of a file with a lease, because an
// open of each file would wait for 45 s. A container can only read the file. verify does not replace
// the file, because running containers must have the same file as the host.
func verify(source, target string) error {
	for _, f := range files(source) {
		path := filepath.Join(target, f.name)
		want, err := f.checksum()
		if err != nil {
			return fmt.Errorf("read %s: %w", f.name, err)
		}
		have, err := f.installed(path).checksum()
		if errors.Is(err, leased.Err) && leased.HasSize(path, want.size) {
			continue
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, leased.Err) {
			return fmt.Errorf("read the installed files: %w", err)
		}
		if err != nil || have != want {
			return fmt.Errorf("%s: %w, and containers may use it: build with another version, or remove %s once no container uses it", path, ErrDiffers, target)
		}
	}
	return nil
}

// installed returns the file that is installed at path.
func (f file) installed(path string) file {
	if f.link == "" {
		return file{source: path}
	}
	link, err := os.Readlink(path)
	if err != nil {
		return file{source: path}
	}
	return file{link: link}
}

// checksum identifies a content.
type checksum struct {
	hash [sha256.Size]byte
	size int64
}

func (f file) checksum() (checksum, error) {
	r, err := f.open()
	if err != nil {
		return checksum{}, err
	}
	defer r.Close()
	hash := sha256.New()
	size, err := io.Copy(hash, r)
	if err != nil {
		return checksum{}, err
	}
	return checksum{[sha256.Size]byte(hash.Sum(nil)), size}, nil
}
