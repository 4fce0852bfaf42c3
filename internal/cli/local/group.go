// SPDX-License-Identifier: Apache-2.0

package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// Groups is a directory of one user's groups. A group is a directory with the two pages that its
// runs share, and a file "members". Each run and its children hold a shared lock on the file
// "members". The kernel releases the lock when the run and its children have ended, even if they
// were killed. A process makes, joins or removes a group only under an exclusive lock on the file
// "mutex", and holds the lock briefly.
type Groups struct{ dir string }

const (
	mutexFile   = "mutex"
	membersFile = "members"
)

var groupName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// GroupsDir returns the directory of a user's groups. The directory is in $XDG_RUNTIME_DIR, or in
// /tmp if $XDG_RUNTIME_DIR names no directory.
func GroupsDir(getenv func(string) string, uid int) string {
	dir := getenv("XDG_RUNTIME_DIR")
	if info, err := os.Stat(dir); err == nil && info.IsDir() && filepath.IsAbs(dir) {
		return filepath.Join(dir, "nri-vgpu")
	}
	return fmt.Sprintf("/tmp/nri-vgpu-%d", uid)
}

// OpenGroups opens a directory of groups, and creates it if it is missing. OpenGroups rejects a
// directory that other users can write, because the other users could lift the limits.
func OpenGroups(dir string) (Groups, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Groups{}, fmt.Errorf("make the directory of runs: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return Groups{}, fmt.Errorf("stat the directory of runs: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || owner.Uid != uint32(os.Geteuid()) || info.Mode().Perm()&0o022 != 0 {
		return Groups{}, fmt.Errorf("%s must be your directory, and only you may have the right to write to it", dir)
	}
	mutex, err := os.OpenFile(filepath.Join(dir, mutexFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return Groups{}, fmt.Errorf("make the lock of runs: %w", err)
	}
	return Groups{dir}, mutex.Close()
}

// Dir returns the directory of a group's pages.
func (g Groups) Dir(name string) string { return filepath.Join(g.dir, name) }

// Member is the membership of one run in a group. The group exists while any process
// has the file open, including processes that inherited it.
type Member struct {
	*os.File
	Devices []limits.Device
	// Founder reports whether the run made the group. The founder must start the group's watcher.
	Founder bool
}

// Join makes a group with the limits of devices, or joins an existing group with
// equal limits. If devices is nil, Join joins a group with any limits.
func (g Groups) Join(name string, devices []limits.Device) (*Member, error) {
	if !groupName.MatchString(name) {
		return nil, fmt.Errorf("--group is %q; allowed: up to 64 letters, digits, '-', '_' and '.'", name)
	}
	unlock, err := g.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	g.sweep(name)
	held, founder, err := g.devicesOf(name, devices)
	if err != nil {
		return nil, err
	}
	members, err := lockFile(g.members(name), os.O_CREATE, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	return &Member{members, held, founder}, nil
}

// devicesOf returns the limits of a group. devicesOf makes the group if it is
// missing.
func (g Groups) devicesOf(name string, want []limits.Device) (held []limits.Device, founder bool, err error) {
	held, err = limits.Read(filepath.Join(g.Dir(name), limits.LimitsFile))
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !missing:
		return nil, false, fmt.Errorf("group %q: %w", name, err)
	case missing && want == nil:
		return nil, false, fmt.Errorf("group %q does not exist; set its limits: --memory, --cores or both", name)
	case missing:
		return want, true, g.found(name, want)
	case want != nil && !slices.EqualFunc(held, want, sameLimits):
		return nil, false, fmt.Errorf("group %q has other limits (%s); leave --memory, --cores, --cores-max, --policy and --gpu out to share them",
			name, describe(held))
	}
	return held, false, nil
}

// sameLimits compares limits. sameLimits ignores the size of a context, which is not
// a limit and may have been measured only after the group was made.
func sameLimits(a, b limits.Device) bool {
	a.ContextBytes, b.ContextBytes = 0, 0
	return a == b
}

func (g Groups) found(name string, devices []limits.Device) error {
	if err := os.Mkdir(g.Dir(name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make group: %w", err)
	}
	return limits.Create(g.Dir(name), devices)
}

// firstPause and lastPause bound the interval of polling for processes that released
// the lock but still use a GPU. An exiting process takes milliseconds; a daemon may
// stay for days.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
)

// RemoveWhenEmpty waits until the last member of a group has ended, and removes the
// group.
func (g Groups) RemoveWhenEmpty(name string) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		members, err := lockFile(g.members(name), 0, unix.LOCK_EX)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		members.Close() // the mutex is always locked first
		unlock, err := g.lock()
		if err != nil {
			return err
		}
		removed, err := g.remove(name)
		unlock()
		if removed || err != nil {
			return err
		}
		time.Sleep(pause)
	}
}

// sweep removes unused groups whose watchers were killed. sweep ignores groups that
// cannot be removed; a later sweep retries.
func (g Groups) sweep(except string) {
	entries, _ := os.ReadDir(g.dir)
	for _, e := range entries {
		if e.IsDir() && e.Name() != except {
			_, _ = g.remove(e.Name())
		}
	}
}

// remove removes a group without members, and reports whether it removed the group.
// The caller must hold the mutex.
func (g Groups) remove(name string) (bool, error) {
	members, err := lockFile(g.members(name), 0, unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, nil
	case err == nil:
		defer members.Close()
	case !errors.Is(err, fs.ErrNotExist): // without the file, the creator ended early
		return false, err
	}
	// Daemons and Python's subprocess close inherited files, including the file with the lock. A
	// process that uses a GPU still holds a slot of the usage page.
	usage, err := limits.ReadUsage(filepath.Join(g.Dir(name), limits.UsageFile))
	if err == nil && len(usage.Processes) > 0 || errors.Is(err, limits.ErrVersion) {
		return false, nil // only a watcher of the page's release can read its slots
	}
	if err := os.RemoveAll(g.Dir(name)); err != nil {
		return false, fmt.Errorf("remove group: %w", err)
	}
	return true, nil
}

// members returns the path of a group's members file.
func (g Groups) members(name string) string { return filepath.Join(g.Dir(name), membersFile) }

func (g Groups) lock() (unlock func(), err error) {
	f, err := lockFile(filepath.Join(g.dir, mutexFile), 0, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

func lockFile(path string, flags, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}

func describe(devices []limits.Device) string {
	text := ""
	for i, d := range devices {
		if i > 0 {
			text += "; "
		}
		text += fmt.Sprintf("%s: %s", d.UUID, show.Mebibytes(d.MemoryBytes))
		if d.ComputePPM < limits.NoComputeLimit {
			text += ", " + show.PercentTo(d.ComputePPM, d.MaximumPPM)
		}
	}
	return text
}
