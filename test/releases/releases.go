// SPDX-License-Identifier: Apache-2.0

// Package releases builds other releases of nri-vgpu, for tests of upgrades. A Builder builds the
// previous release from the commit that the file "previous" records. A Builder also builds a next
// release from this tree and the changes in next.go.
package releases

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

// rooms are the C programs and libraries that an image contains.
const rooms = "interposer test/workload cmd/vgpuctl/devices"

// versionVariables are the variables with a program's version, in this tree and in older releases.
// The linker ignores a variable that a program does not have.
var versionVariables = []string{"internal/version.Version", "pkg/version.Version"}

// unused is the time for which a release that no test requests stays in the cache.
const unused = 7 * 24 * time.Hour

//go:embed previous
var recorded string

// Release is a built release.
type Release struct {
	// Version is the version of the release's programs and image.
	Version string
	// Dir contains the release's sources, and build with its programs.
	Dir string
}

// Archive returns the path of the release's image.
func (r Release) Archive() string { return filepath.Join(r.Dir, "build", "image", "nri-vgpu.tar") }

// Chart returns the path of the release's chart.
func (r Release) Chart() string { return filepath.Join(r.Dir, "deploy", "chart") }

// Builder builds releases into a cache that outlives the working tree.
type Builder struct {
	// Source is the repository's root.
	Source string
	// Cache is the directory of the cache. "" means the cache of the components.
	Cache string
	// Log, if set, receives a line on each build.
	Log func(format string, args ...any)
}

// Previous returns the previous release.
func (b Builder) Previous(ctx context.Context) (Release, error) {
	for line := range strings.Lines(recorded) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			return b.Commit(ctx, line)
		}
	}
	return Release{}, errors.New("test/releases/previous names no commit")
}

// Commit returns the release of a commit of this repository.
func (b Builder) Commit(ctx context.Context, commit string) (Release, error) {
	full, err := b.git(ctx, "rev-parse", "--verify", "--quiet", commit+"^{commit}")
	if err != nil {
		return Release{}, fmt.Errorf("build commit %s: this clone does not contain it: "+
			"run git fetch --unshallow in %s, or clone without --depth: %w", commit, b.Source, err)
	}
	hash := strings.TrimSpace(string(full))
	return b.build(ctx, "0.0.1-"+hash[:12], hash, func(dir string) error {
		archive, err := b.git(ctx, "archive", "--format=tar", hash)
		if err != nil {
			return fmt.Errorf("read the sources of commit %s: %w", commit, err)
		}
		unpack := exec.CommandContext(ctx, "tar", "-x", "-C", dir)
		unpack.Stdin = bytes.NewReader(archive)
		return run(unpack)
	})
}

// build returns the release of a key from the cache. If the cache lacks the release, build calls
// fill to write the sources into a directory, and builds the sources.
func (b Builder) build(ctx context.Context, version, key string, fill func(dir string) error) (Release, error) {
	cache, err := b.cache()
	if err != nil {
		return Release{}, err
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{key, version, runtime.Version(), runtime.GOARCH}, "\n")))
	r := Release{Version: version, Dir: filepath.Join(cache, "release-"+hex.EncodeToString(sum[:8]))}
	unlock, err := lock(filepath.Join(cache, ".releases.lock"))
	if err != nil {
		return Release{}, err
	}
	defer unlock()
	if now := time.Now(); os.Chtimes(r.Dir, now, now) == nil {
		return r, nil
	}
	if err := removeUnused(cache); err != nil {
		return Release{}, err
	}
	b.say("building release %s, which takes two minutes on two cores", version)
	staging := r.Dir + ".building"
	if err := os.RemoveAll(staging); err != nil {
		return Release{}, fmt.Errorf("remove an interrupted build of release %s: %w", version, err)
	}
	if err := os.MkdirAll(staging, 0o755); err != nil {
		return Release{}, fmt.Errorf("build release %s: %w", version, err)
	}
	if err := fill(staging); err != nil {
		return Release{}, err
	}
	if err := compile(ctx, staging, version); err != nil {
		return Release{}, fmt.Errorf("build release %s in %s: %w", version, staging, err)
	}
	if err := os.Rename(staging, r.Dir); err != nil {
		return Release{}, fmt.Errorf("put release %s into the cache: %w", version, err)
	}
	return r, nil
}

// compile builds an image from the sources in dir, as the Makefile does. compile omits the parts
// that no image contains.
func compile(ctx context.Context, dir, version string) error {
	bin := filepath.Join(dir, "build", "bin") + "/"
	build := []string{"go", "build", "-trimpath", "-ldflags", "-s -w", "-o", bin}
	for _, variable := range versionVariables {
		build[4] += " -X github.com/nri-vgpu/nri-vgpu/" + variable + "=" + version
	}
	others, err := withoutCgo(dir)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		cgo  string
		args []string
	}{
		{"1", []string{"make", "-j2", "c", "C_ROOMS=" + rooms, "BUILD=" + filepath.Join(dir, "build"), "VERSION=" + version}},
		{"1", append(build, "./cmd/nri-vgpu")},
		{"0", append(build, others...)},
		{"1", []string{"go", "run", "./deploy/image", "--build", "build", "--version", version}},
	} {
		cmd := exec.CommandContext(ctx, step.args[0], step.args[1:]...)
		cmd.Dir = dir
		// If make runs the tests, the variables of make must not apply.
		cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MFLAGS=", "CGO_ENABLED="+step.cgo,
			"GOFLAGS=-trimpath -tags=grpcnotrace,netgo,osusergo -gcflags=all=-dwarf=false", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
		if err := run(cmd); err != nil {
			return err
		}
	}
	return nil
}

// withoutCgo returns the programs of a release that need no cgo: all programs except the agent.
func withoutCgo(dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "cmd"))
	if err != nil {
		return nil, fmt.Errorf("list the programs: %w", err)
	}
	var programs []string
	for _, entry := range entries {
		if name := entry.Name(); entry.IsDir() && name != "nri-vgpu" {
			programs = append(programs, "./cmd/"+name)
		}
	}
	return programs, nil
}

func (b Builder) cache() (string, error) {
	cache := b.Cache
	if cache == "" {
		var err error
		if cache, err = components.CacheDir(); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make the cache of releases: %w", err)
	}
	return cache, nil
}

// removeUnused removes releases from the cache that no test has requested for days, because each
// change of this tree makes another next release.
func removeUnused(cache string) error {
	dirs, err := filepath.Glob(filepath.Join(cache, "release-*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || time.Since(info.ModTime()) < unused {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove an unused release from the cache: %w", err)
		}
	}
	return nil
}

// lock waits until no other process builds a release.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the cache of releases: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the cache of releases: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func (b Builder) say(format string, args ...any) {
	if b.Log != nil {
		b.Log(format, args...)
	}
}

// git returns the standard output of a git command.
func (b Builder) git(ctx context.Context, args ...string) ([]byte, error) {
	// root runs the tests, and the repository may belong to another user.
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*", "-C", b.Source}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("git %s: %w %s", args[0], err, bytes.TrimSpace(errs.Bytes()))
	}
	return out, nil
}

func run(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

// copyFile copies a file or a link of the tree.
func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
