// SPDX-License-Identifier: Apache-2.0

// Package components builds the programs of a Kubernetes node from tools modules, which pin the
// versions. The package keeps the programs in a cache that outlives the working tree.
package components

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CacheVariable names the environment variable that moves the cache.
const CacheVariable = "NRI_VGPU_CACHE"

// progressInterval is the interval at which Build reports a running build.
const progressInterval = 20 * time.Second

// Binaries maps the name of each built program to its path.
type Binaries map[string]string

// Builder builds tools modules into a cache.
type Builder struct {
	// Root is the repository's root directory, which contains tools/.
	Root string
	// Cache is the directory of the built programs. "" means CacheDir().
	Cache string
	// Downloads is the address of published programs, such as OfficialBinaries, or "" to build all
	// modules from their sources. If a download fails, Build builds the module.
	Downloads string
	// Out receives progress lines about the running build. If Out is nil, Build discards the lines.
	Out io.Writer
}

// CacheDir returns $NRI_VGPU_CACHE, or nri-vgpu/bin in the user's cache directory if the variable
// is empty.
func CacheDir() (string, error) {
	if dir := os.Getenv(CacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no place to keep the node's components (set %s): %w", CacheVariable, err)
	}
	return filepath.Join(dir, "nri-vgpu", "bin"), nil
}

// FindRoot returns the repository's root: the nearest directory at or above dir that contains
// tools/kubernetes/go.mod.
func FindRoot(dir string) (string, error) {
	start := dir
	for {
		if _, err := os.Stat(filepath.Join(dir, "tools", "kubernetes", "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("%s is not inside a checkout of nri-vgpu: no tools/kubernetes/go.mod at or above it", start)
		}
		dir = parent
	}
}

// Build returns the programs of all modules. Build builds the modules that the cache lacks.
func (b *Builder) Build(ctx context.Context, modules []Module) (Binaries, error) {
	cache := b.Cache
	if cache == "" {
		var err error
		if cache, err = CacheDir(); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("make the components' cache: %w", err)
	}
	goVersion, err := goEnv(ctx, "GOVERSION", "GOARCH")
	if err != nil {
		return nil, err
	}
	if err := b.estimate(cache, goVersion, modules); err != nil {
		return nil, err
	}
	binaries := Binaries{}
	for _, m := range modules {
		dir, err := b.module(ctx, cache, goVersion, m)
		if err != nil {
			return nil, err
		}
		for _, p := range m.Programs {
			binaries[p.Name] = filepath.Join(dir, p.Name)
		}
	}
	return binaries, nil
}

// estimate reports how many modules the cache lacks, and how long their builds take.
func (b *Builder) estimate(cache, goVersion string, modules []Module) error {
	missing, total := 0, time.Duration(0)
	for _, m := range modules {
		if b.downloads(m) {
			continue
		}
		key, err := cacheKey(filepath.Join(b.Root, "tools", m.Name), goVersion, m)
		if err != nil {
			return err
		}
		if !complete(filepath.Join(cache, m.Name+"-"+key), m) {
			missing, total = missing+1, total+m.FirstBuild
		}
	}
	if missing > 0 {
		b.say("building %d of %d components from their sources: about %s in all on two cores, once", missing, len(modules), total)
	}
	return nil
}

// downloads reports whether Build first tries to download the module's programs.
func (b *Builder) downloads(m Module) bool { return b.Downloads != "" && m.Published != "" }

// module returns the directory of a module's programs, and builds them if needed. Only one process
// builds a module at a time. Other processes wait and then use the result.
func (b *Builder) module(ctx context.Context, cache, goVersion string, m Module) (string, error) {
	source := filepath.Join(b.Root, "tools", m.Name)
	key, err := cacheKey(source, goVersion, m)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, m.Name+"-"+key)
	if complete(dir, m) {
		return dir, nil
	}
	unlock, err := lock(filepath.Join(cache, "."+m.Name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if complete(dir, m) {
		return dir, nil
	}
	if b.downloads(m) {
		published, err := b.download(ctx, cache, m)
		if err == nil || ctx.Err() != nil {
			return published, err
		}
		b.say("%v; building %s from its sources", err, m.Name)
	}
	if err := b.build(ctx, source, dir, m); err != nil {
		return "", err
	}
	return dir, nil
}

// build compiles a module into a temporary directory and renames the directory to dir. Therefore an
// interrupted build leaves no directory that looks complete.
func (b *Builder) build(ctx context.Context, source, dir string, m Module) error {
	staging := dir + ".building"
	if err := os.RemoveAll(staging); err != nil {
		return fmt.Errorf("clear an interrupted build of %s: %w", m.Name, err)
	}
	if err := os.MkdirAll(staging, 0o755); err != nil {
		return fmt.Errorf("build %s: %w", m.Name, err)
	}
	b.say("building %s (the first time takes about %s on two cores)", m.Name, m.FirstBuild)
	start := time.Now()
	done := b.tick(m, start)
	output, err := compile(ctx, source, staging, m)
	done()
	if err != nil {
		return buildError(dir+".log", m, output, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("replace an incomplete build of %s: %w", m.Name, err)
	}
	if err := os.Rename(staging, dir); err != nil {
		return fmt.Errorf("keep the build of %s: %w", m.Name, err)
	}
	b.say("built %s in %s", m.Name, time.Since(start).Round(time.Second))
	return nil
}

// compile runs the Go compiler and returns its output.
func compile(ctx context.Context, source, dir string, m Module) ([]byte, error) {
	args := append([]string{"build"}, buildFlags(m)...)
	if len(m.Completed) > 0 {
		work := dir + ".completed"
		defer os.RemoveAll(work)
		modFile, output, err := completeModules(ctx, source, work, m)
		if err != nil {
			return output, err
		}
		args = append(args, "-modfile="+modFile)
	}
	output := dir + string(filepath.Separator)
	if len(m.Programs) == 1 {
		output = filepath.Join(dir, m.Programs[0].Name)
	}
	args = append(args, "-o", output)
	for _, p := range m.Programs {
		args = append(args, p.Package)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off", "CGO_ENABLED="+boolDigit(m.CGO))
	if m.CGO {
		cmd.Env = append(cmd.Env, "CGO_CFLAGS=-O2 -Wno-deprecated-declarations")
	}
	return cmd.CombinedOutput()
}

// sharedTags are the Makefile's tags. buildFlags repeats all flags of the Makefile, so that the
// components share compiled packages with the programs of nri-vgpu.
const sharedTags = "grpcnotrace,netgo,osusergo"

func buildFlags(m Module) []string {
	tags := strings.TrimSuffix(sharedTags+","+m.Tags, ",")
	flags := []string{"-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false", "-tags=" + tags, "-ldflags", strings.TrimSpace("-s -w " + m.LDFlags)}
	if m.ModFile != "" {
		flags = append(flags, "-modfile="+m.ModFile)
	}
	return flags
}

// buildError writes all output to a file, and returns an error with the end of the output.
func buildError(log string, m Module, output []byte, cause error) error {
	where := " (all of it in " + log + ")"
	if err := os.WriteFile(log, output, 0o644); err != nil {
		where = ""
	}
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	if len(lines) > 30 {
		lines = lines[len(lines)-30:]
	}
	return fmt.Errorf("build %s: %w%s:\n%s", m.Name, cause, where, strings.Join(lines, "\n"))
}

// cacheKey returns a hash of all inputs of the build: the files of the tools module, including
// go.sum, the compiler and its flags.
func cacheKey(source, goVersion string, m Module) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(source, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n", strings.TrimPrefix(path, source), len(content))
		h.Write(content)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("tools module %s: %w", m.Name, err)
	}
	fmt.Fprintf(h, "%s %v %q %v\n", goVersion, m.CGO, buildFlags(m), m.Programs)
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func complete(dir string, m Module) bool {
	for _, p := range m.Programs {
		if _, err := os.Stat(filepath.Join(dir, p.Name)); err != nil {
			return false
		}
	}
	return true
}

// lock waits for the file's lock, which the kernel releases when its holder dies.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the components' cache: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

func goEnv(ctx context.Context, names ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", append([]string{"env"}, names...)...).Output()
	if err != nil {
		return "", fmt.Errorf("go, which builds the node's components, does not run (is it in PATH?): %w", err)
	}
	return string(bytes.TrimSpace(out)), nil
}

func boolDigit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func (b *Builder) say(format string, args ...any) {
	if b.Out != nil {
		fmt.Fprintf(b.Out, format+"\n", args...)
	}
}

// tick reports progress at intervals until the returned function is called.
func (b *Builder) tick(m Module, start time.Time) (stop func()) {
	ticker := time.NewTicker(progressInterval)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-ticker.C:
				b.say("  still building %s, %s of about %s", m.Name, time.Since(start).Round(time.Second), m.FirstBuild)
			case <-done:
				return
			}
		}
	}()
	return func() { ticker.Stop(); close(done) }
}
