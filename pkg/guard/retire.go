package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/usagefs"
)

// retireInterval is how late the end of the last pod is seen.
const retireInterval = 5 * time.Second

// kubeletPods is where kubelet has a directory of each pod that it knows, also
// after a reboot, until the pod has been deleted. bootGrace is how long a guard
// that has no such directories to look at waits for kubelet to start pods again.
const (
	kubeletPods = "/var/lib/kubelet/pods"
	bootGrace   = 10 * time.Minute
)

// Remover takes nri-vgpu off a node: at once, but for what pods still use that
// live. Of these the guard keeps watch: their containers that start again are
// refused, as nobody would limit them, and when the last pod has gone it removes
// what is left, and itself.
type Remover struct {
	// Root is the root of the node's file system, "" where it is the own.
	Root string
	// Proc shows the node's processes.
	Proc string
	// Program is the guard's on the node, "" where there is none; its settings lie
	// beside it.
	Program string
}

func (r Remover) at(path string) string { return filepath.Join(r.Root, path) }

// Remove removes what no pod uses that lives, and gives the UIDs of those that do.
// It may be called again.
func (r Remover) Remove(s Settings) ([]string, error) {
	live, err := r.Living(s)
	if err != nil {
		return nil, err
	}
	if len(live) == 0 {
		return nil, r.removeAll(s)
	}
	// From here on containers of these pods are refused, and no others.
	if err := r.retire(s, live); err != nil {
		return live, err
	}
	containers := r.at(layout.Containers(s.RunDir))
	usage := r.at(layout.Usage(s.RunDir))
	keep := []string{containers, usage, r.at(layout.Agent(s.RunDir)), r.at(layout.MPS(s.RunDir)), r.at(layout.GuardStatus(s.RunDir))}
	err = removeBut(r.at(s.RunDir), func(path string) bool { return slices.Contains(keep, path) })
	ofLive := func(path string) bool { return slices.Contains(live, filepath.Base(path)) }
	return live, errors.Join(err,
		removeBut(containers, ofLive),
		usagefs.RemoveBut(usage, ofLive),
		removeBut(r.at(layout.Agent(s.RunDir)), func(string) bool { return false }),
		remove(r.at(s.StateDir)))
}

// retire tells the guard, if there is one, which pods are left.
func (r Remover) retire(s Settings, live []string) error {
	if r.Program == "" || slices.Equal(s.Retiring, live) {
		return nil
	}
	s.Retiring = live
	return s.Write(r.at(r.Program))
}

// candidates are the pods that have our files or ask for GPUs, by the runtime's
// UIDs.
func (r Remover) candidates(s Settings, containers string) ([]string, error) {
	pods := slices.Clone(s.Retiring)
	if r.Program != "" {
		// Of an earlier attempt, which has removed the list.
		before, err := readSettings(layout.GuardSettings(r.at(r.Program)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		pods = append(pods, before.Retiring...)
	}
	entries, err := os.ReadDir(containers)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look for containers' files: %w", err)
	}
	for _, e := range entries {
		pods = append(pods, e.Name())
	}
	asking, err := ReadAsking(r.at(s.StateDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrAsking) {
		return nil, err
	}
	for _, p := range asking {
		pods = append(pods, p.UID)
	}
	slices.Sort(pods)
	return slices.Compact(pods), nil
}

// removeAll removes everything.
func (r Remover) removeAll(s Settings) error {
	// The clients' shared memory is a file system of its own.
	_ = unix.Unmount(r.at(layout.MPSSHM(s.RunDir)), unix.MNT_DETACH)
	if err := errors.Join(usagefs.Remove(r.at(layout.Usage(s.RunDir))), remove(r.at(s.InstallDir)), remove(r.at(s.StateDir))); err != nil {
		return err
	}
	if r.Program != "" {
		if err := RemoveProgram(r.at(r.Program)); err != nil {
			return err
		}
	}
	// Last, as a guard that runs keeps its status there.
	return remove(r.at(s.RunDir))
}

// RemoveProgram removes the guard's program and its settings. One that runs ends.
func RemoveProgram(program string) error {
	for _, path := range []string{layout.GuardSettings(program), program} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the guard (guard.plugin_dir): %w", err)
		}
	}
	return nil
}

// remove removes a directory; where it is a mount of its own, all that is in it.
func remove(dir string) error {
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("remove what was installed: %w", err)
	}
	return nil
}

// removeBut removes what is in a directory but for what is to be kept.
func removeBut(dir string, keep func(path string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what was installed: %w", err)
	}
	var problems []error
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); !keep(path) {
			problems = append(problems, remove(path))
		}
	}
	return errors.Join(problems...)
}

// living are those of the pods that have a process, or that kubelet knows.
func (r Remover) living(pods []string) ([]string, error) {
	if len(pods) == 0 {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(r.Proc, "[0-9]*", "cgroup"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("look for pods' processes: %s shows none", r.Proc)
	}
	found := map[string]bool{}
	for _, uid := range pods {
		_, err := os.Stat(r.at(filepath.Join(kubeletPods, uid)))
		found[uid] = err == nil
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		for _, uid := range pods {
			found[uid] = found[uid] || ofPod(string(content), uid)
		}
	}
	return slices.DeleteFunc(slices.Clone(pods), func(uid string) bool { return !found[uid] }), nil
}

// ofPod tells whether cgroups are a pod's; systemd's names have "_" for "-".
func ofPod(cgroups, uid string) bool {
	return strings.Contains(cgroups, "pod"+uid) || strings.Contains(cgroups, "pod"+strings.ReplaceAll(uid, "-", "_"))
}

// AwaitRemoval returns when nri-vgpu has been removed from the node, and does the
// rest of it where pods were still using something.
func (g *Guard) AwaitRemoval(ctx context.Context) {
	started := time.Now()
	ticker := time.NewTicker(retireInterval)
	defer ticker.Stop()
	for !g.removed() {
		s, installed := g.settings()
		_, err := os.Stat(kubeletPods)
		if installed && len(s.Retiring) > 0 && (err == nil || time.Since(started) > bootGrace) {
			// What cannot be removed now is tried again.
			_, _ = Remover{Proc: g.proc, Program: g.program}.Remove(s)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// removed tells whether program and settings are both gone: an upgrade replaces
// each of them in one step.
func (g *Guard) removed() bool {
	for _, path := range []string{g.program, layout.GuardSettings(g.program)} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// Living gives the UIDs of the pods that live and still use something, or ask for
// it.
func (r Remover) Living(s Settings) ([]string, error) {
	pods, err := r.candidates(s, r.at(layout.Containers(s.RunDir)))
	if err != nil {
		return nil, err
	}
	return r.living(pods)
}
