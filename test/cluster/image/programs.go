// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// mergedDirs are the links by which a distribution with a merged /usr keeps the old paths. Images
// contain these links.
var mergedDirs = []string{"bin", "lib", "lib64", "sbin"}

// BaseLayout returns the files that any image for Linux programs needs: the merged /usr, a
// world-writable /tmp, and a root user.
func BaseLayout() []File {
	files := []File{
		{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{Path: "/etc/passwd", Content: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{Path: "/etc/group", Content: []byte("root:x:0:\nnogroup:x:65534:\n")},
		{Path: "/root", Mode: fs.ModeDir | 0o700},
	}
	for _, d := range mergedDirs {
		files = append(files,
			File{Path: "/usr/" + d, Mode: fs.ModeDir | 0o755},
			File{Path: "/" + d, Link: "usr/" + d})
	}
	return files
}

// HostPrograms returns the named programs of this machine, found in PATH, as files in /usr/bin of
// an image, with their shared libraries.
func HostPrograms(names ...string) ([]File, error) {
	programs := make(map[string]string, len(names))
	for _, name := range names {
		found, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("find a program for an image: %w", err)
		}
		programs["/usr/bin/"+filepath.Base(name)] = found
	}
	return Programs(programs)
}

// Programs returns files for programs. The map contains the path on this machine for each path in
// the image. Programs adds the dynamic linker and all shared libraries, at the paths where the
// linker searches.
func Programs(programs map[string]string) ([]File, error) {
	r := resolver{dirs: libraryDirs(), seen: map[string]string{}}
	files := make([]File, 0, len(programs))
	for target, source := range programs {
		files = append(files, File{Path: target, Source: source, Mode: 0o755})
		if err := r.resolve(source); err != nil {
			return nil, err
		}
	}
	for target, source := range r.seen {
		files = append(files, File{Path: target, Source: source, Mode: 0o755})
	}
	return files, nil
}

// A resolver collects the libraries of programs, as the dynamic linker does.
type resolver struct {
	dirs []string
	// seen maps the path in the image to the path on this machine.
	seen map[string]string
}

func (r *resolver) resolve(file string) error {
	f, err := elf.Open(file)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) {
		return nil // a script
	}
	if err != nil {
		return fmt.Errorf("find the libraries of %s: %w", file, err)
	}
	defer f.Close()
	if interpreter := interpreterOf(f); interpreter != "" {
		found, err := r.interpreter(interpreter, f.Machine)
		if err != nil {
			return fmt.Errorf("find the dynamic linker of %s: %w", file, err)
		}
		if err := r.add(mergedPath(interpreter), found); err != nil {
			return err
		}
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("find the libraries of %s: %w", file, err)
	}
	for _, name := range needed {
		found, err := r.find(name, f.Machine)
		if err != nil {
			return fmt.Errorf("find the libraries of %s: %w", file, err)
		}
		if err := r.add(libraryPath(found), found); err != nil {
			return err
		}
	}
	return nil
}

// interpreter returns the path on this machine of a program's dynamic linker.
func (r *resolver) interpreter(file string, machine elf.Machine) (string, error) {
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	return r.find(filepath.Base(file), machine)
}

// add adds a library and its dependencies, unless the library is already there.
func (r *resolver) add(target, file string) error {
	if _, done := r.seen[target]; done {
		return nil
	}
	r.seen[target] = file
	return r.resolve(file)
}

func (r *resolver) find(name string, machine elf.Machine) (string, error) {
	for _, dir := range r.dirs {
		candidate := filepath.Join(dir, name)
		f, err := elf.Open(candidate)
		if err != nil {
			continue
		}
		same := f.Machine == machine
		f.Close()
		if same {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("%s is in none of %s", name, strings.Join(r.dirs, ", "))
}

func interpreterOf(f *elf.File) string {
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		content := make([]byte, p.Filesz)
		if _, err := p.ReadAt(content, 0); err != nil {
			return ""
		}
		return strings.TrimRight(string(content), "\x00")
	}
	return ""
}

// mergedPath returns the path of a file in an image with a merged /usr.
func mergedPath(file string) string {
	for _, d := range mergedDirs {
		if strings.HasPrefix(file, "/"+d+"/") {
			return "/usr" + file
		}
	}
	return path.Clean(file)
}

// libraryPath returns the path of a library in an image. A library of Debian's cross compiler has the
// same path as on a machine of the library's architecture.
func libraryPath(file string) string {
	for _, m := range multiarch {
		if name, cross := strings.CutPrefix(file, crossDir(m)+"/"); cross {
			return path.Join("/usr/lib", m, name)
		}
	}
	return mergedPath(file)
}

// multiarch contains Debian's names of the architectures.
var multiarch = []string{"x86_64-linux-gnu", "aarch64-linux-gnu"}

// crossDir returns the directory of the libraries of Debian's cross compiler for an architecture.
func crossDir(multiarch string) string { return path.Join("/usr", multiarch, "lib") }

// libraryDirs returns the dynamic linker's directories on this machine, and the directories of cross
// compilers.
func libraryDirs() []string {
	var dirs []string
	for _, m := range multiarch {
		dirs = append(dirs, "/lib/"+m, "/usr/lib/"+m, crossDir(m))
	}
	configs, _ := filepath.Glob("/etc/ld.so.conf.d/*.conf")
	for _, config := range append(configs, "/etc/ld.so.conf") {
		dirs = append(dirs, configuredDirs(config)...)
	}
	return append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
}

func configuredDirs(config string) []string {
	f, err := os.Open(config)
	if err != nil {
		return nil
	}
	defer f.Close()
	var dirs []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if line := strings.TrimSpace(lines.Text()); strings.HasPrefix(line, "/") {
			dirs = append(dirs, line)
		}
	}
	return dirs
}
