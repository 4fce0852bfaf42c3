// SPDX-License-Identifier: Apache-2.0

// Package nodefiles removes nri-vgpu's files from a node, except the files that living pods use.
// The guard watches the living pods, and calls this package again until all of them are gone.
package nodefiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/internal/usagefs"
)

// KubeletPods contains a directory for each pod that the kubelet knows. A pod's directory survives
// a reboot and exists until the pod is deleted.
const KubeletPods = "/var/lib/kubelet/pods"

// Remover removes nri-vgpu from a node, except the files that living pods use. The guard watches
// the living pods and rejects their restarted containers, which would run without limits. After the
// last pod is gone, the guard removes the remaining files and itself. In the configured
// directories, Remover removes the files of nri-vgpu, and then the directories that are empty.
type Remover struct {
	// Root is the root of the node's file system; "" for the root of this process.
	Root string
	// Proc is a procfs that shows the node's processes.
	Proc string
	// Program is the path of the guard's program on the node; "" for a node without a guard. The
	// guard's settings are in the directory of the program.
	Program string
}

func (r Remover) at(path string) string { return filepath.Join(r.Root, path) }

// Left describes the files that Remove leaves on a node.
type Left struct {
	// Pods are the UIDs of the living pods that use files.
	Pods []string
	// Others are the directories with files that nri-vgpu did not write.
	Others []string
}

// Remove removes the files that no living pod uses. The caller may call Remove again.
func (r Remover) Remove(s guardfile.Settings) (Left, error) {
	live, err := r.Living(s)
	if err != nil {
		return Left{}, err
	}
	if len(live) == 0 {
		err := r.removeAll(s)
		return Left{Others: r.others(s)}, err
	}
	left := Left{Pods: live}
	// After this call, the guard rejects containers of these pods, and no other containers.
	if err := r.retire(s, live); err != nil {
		return left, err
	}
	containers := r.at(paths.Containers(s.RunDir))
	usage := r.at(paths.Usage(s.RunDir))
	keep := []string{containers, usage, r.at(paths.Agent(s.RunDir)), r.at(paths.MPS(s.RunDir)), r.at(paths.GuardStatus(s.RunDir))}
	err = removeBut(r.at(s.RunDir), func(path string) bool { return slices.Contains(keep, path) || !inRunDir(path) })
	ofLive := func(path string) bool { return slices.Contains(live, filepath.Base(path)) }
	return left, errors.Join(err,
		removeBut(containers, ofLive),
		usagefs.RemoveBut(usage, ofLive),
		removeBut(r.at(paths.Agent(s.RunDir)), func(string) bool { return false }),
		removeOwn(r.at(s.StateDir), inStateDir))
}

// retire writes the living pods into the settings of the guard, if the node has a guard.
func (r Remover) retire(s guardfile.Settings, live []string) error {
	if r.Program == "" || slices.Equal(s.Retiring, live) {
		return nil
	}
	s.Retiring = live
	return s.Write(r.at(r.Program))
}

// candidates returns the UIDs of the pods that have files of nri-vgpu or request GPUs, as the
// runtime uses the UIDs.
func (r Remover) candidates(s guardfile.Settings, containers string) ([]string, error) {
	pods := slices.Clone(s.Retiring)
	if r.Program != "" {
		// An earlier attempt may have removed the list, after it recorded the pods in the settings.
		before, err := guardfile.ReadSettings(paths.GuardSettings(r.at(r.Program)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		pods = append(pods, before.Retiring...)
	}
	entries, err := os.ReadDir(containers)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("find containers' files: %w", err)
	}
	for _, e := range entries {
		pods = append(pods, e.Name())
	}
	asking, err := guardfile.ReadAsking(r.at(s.StateDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, guardfile.ErrAsking) {
		return nil, err
	}
	for _, p := range asking {
		pods = append(pods, p.UID)
	}
	slices.Sort(pods)
	return slices.Compact(pods), nil
}

// removeAll removes all files of nri-vgpu.
func (r Remover) removeAll(s guardfile.Settings) error {
	// The shared memory of MPS clients is a separate file system.
	_ = unix.Unmount(r.at(paths.MPSSHM(s.RunDir)), unix.MNT_DETACH)
	if err := errors.Join(usagefs.Remove(r.at(paths.Usage(s.RunDir))), removeVersions(r.at(s.InstallDir)), removeOwn(r.at(s.StateDir), inStateDir)); err != nil {
		return err
	}
	if r.Program != "" {
		if err := RemoveProgram(r.at(r.Program)); err != nil {
			return err
		}
	}
	// removeAll removes the run directory last, because a running guard writes its status into it.
	return removeOwn(r.at(s.RunDir), inRunDir)
}

// RemoveGuard removes the guard from the runtime's plugin directory. A running guard then exits.
func RemoveGuard(pluginDir string) error {
	return RemoveProgram(filepath.Join(pluginDir, paths.GuardProgram))
}

// RemoveProgram removes the guard's program and settings. A running guard then exits.
func RemoveProgram(program string) error {
	for _, path := range []string{paths.GuardSettings(program), program} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the guard (guard.plugin_dir): %w", err)
		}
	}
	return nil
}

// living returns the pods that have a process or are known to the kubelet.
func (r Remover) living(pods []string) ([]string, error) {
	if len(pods) == 0 {
		return nil, nil
	}
	files, err := filepath.Glob(filepath.Join(r.Proc, "[0-9]*", "cgroup"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("find pods' processes: %s shows none", r.Proc)
	}
	found := map[string]bool{}
	for _, uid := range pods {
		_, err := os.Stat(r.at(filepath.Join(KubeletPods, uid)))
		found[uid] = err == nil
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		for _, uid := range pods {
			found[uid] = found[uid] || ofPod(string(content), uid)
		}
	}
	return slices.DeleteFunc(slices.Clone(pods), func(uid string) bool { return !found[uid] }), nil
}

// ofPod reports whether the cgroups belong to a pod. Names of systemd's driver contain "_" in place
// of "-".
func ofPod(cgroups, uid string) bool {
	return strings.Contains(cgroups, "pod"+uid) || strings.Contains(cgroups, "pod"+strings.ReplaceAll(uid, "-", "_"))
}

// Living returns the UIDs of the living pods that use files of nri-vgpu or request GPUs.
func (r Remover) Living(s guardfile.Settings) ([]string, error) {
	pods, err := r.candidates(s, r.at(paths.Containers(s.RunDir)))
	if err != nil {
		return nil, err
	}
	return r.living(pods)
}
