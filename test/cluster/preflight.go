// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// preflight checks the machine's requirements before anything starts. Each error states how to meet
// the requirement.
func preflight() error {
	if os.Geteuid() != 0 {
		return errors.New("a local cluster needs root: run it with sudo")
	}
	var missing []error
	if !hasOverlay() && (exec.Command("modprobe", "overlay").Run() != nil || !hasOverlay()) {
		missing = append(missing, errors.New("the kernel has no overlay file system: use a kernel with CONFIG_OVERLAY_FS"))
	}
	for _, ns := range []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"} {
		if _, err := os.Stat("/proc/self/ns/" + ns); err != nil {
			missing = append(missing, fmt.Errorf("the kernel has no %s namespaces: use a kernel with these namespaces", ns))
		}
	}
	for program, packageName := range map[string]string{"nsenter": "util-linux", "gcc": "gcc libc6-dev"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, fmt.Errorf("%s is not in PATH: apt-get install %s", program, packageName))
		}
	}
	return errors.Join(missing...)
}

// hasOverlay reports whether the kernel has the overlay file system. The kernel lists a module only
// after loading the module.
func hasOverlay() bool {
	fileSystems, err := os.ReadFile("/proc/filesystems")
	return err == nil && slices.Contains(strings.Fields(string(fileSystems)), "overlay")
}
