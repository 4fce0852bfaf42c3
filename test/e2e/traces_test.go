// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/test/cluster"
)

// traces returns the traces of a removed cluster on this machine: mounts, processes, cgroups, and
// files. With keptLogs, traces ignores logs. The cluster's own tests check a bare node. In this
// test, nri-vgpu and pods with GPUs have run on the node.
func traces(name string, keptLogs bool) ([]string, error) {
	var left []string
	dir := cluster.DefaultStateDir(name)
	files, err := filepath.Glob(dir + "/*")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if !keptLogs || filepath.Base(file) != "logs" {
			left = append(left, file)
		}
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return nil, fmt.Errorf("look for mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir+"/") {
			left = append(left, strings.TrimSpace(line))
		}
	}
	cgroup := "/nri-vgpu-clusters/" + name
	processes, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	for _, file := range processes {
		// The process may have ended meanwhile.
		if content, err := os.ReadFile(file); err == nil && strings.Contains(strings.ReplaceAll(string(content), "\n", "/"), cgroup+"/") {
			left = append(left, file)
		}
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasSuffix(path, cgroup) {
			left = append(left, path)
		}
		return nil
	})
	return left, err
}
