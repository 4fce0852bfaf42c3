// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// cgroupRoot is the directory of the kernel's control groups.
const cgroupRoot = "/sys/fs/cgroup"

// quotaPeriodUS is the period of a CPU quota, in microseconds, as the kubelet sets it.
const quotaPeriodUS = 100_000

// quota is a control group with a CPU quota, like the containers of a pod with a CPU
// limit.
type quota struct{ dir string }

// newQuota creates a control group with a quota of this many cores. newQuota needs root.
func newQuota(name string, cores float64) (*quota, error) {
	used := strconv.Itoa(int(cores * quotaPeriodUS))
	// cgroup v2 has one tree for all resources, and cgroup v1 has a tree for each resource.
	root, limits := cgroupRoot, map[string]string{"cpu.max": fmt.Sprintf("%s %d", used, quotaPeriodUS)}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); errors.Is(err, fs.ErrNotExist) {
		root, limits = filepath.Join(root, "cpu"), map[string]string{
			"cpu.cfs_period_us": strconv.Itoa(quotaPeriodUS), "cpu.cfs_quota_us": used}
	}
	q := &quota{filepath.Join(root, name)}
	if err := os.Mkdir(q.dir, 0o755); err != nil {
		return nil, fmt.Errorf("create a control group for a CPU quota (as root, or without %q in --workloads): %w", quotas, err)
	}
	for file, content := range limits {
		if err := os.WriteFile(filepath.Join(q.dir, file), []byte(content), 0o644); err != nil {
			return nil, errors.Join(fmt.Errorf("set a CPU quota: %w", err), q.remove())
		}
	}
	return q, nil
}

// remove removes the group. The processes of the group must have ended.
func (q *quota) remove() error {
	if err := os.Remove(q.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a control group: %w", err)
	}
	return nil
}

// within returns a command that runs command in the group.
func (q *quota) within(command []string) []string {
	if q == nil {
		return command
	}
	return append([]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(q.dir, "cgroup.procs")}, command...)
}
