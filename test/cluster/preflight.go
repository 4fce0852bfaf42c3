package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// preflight checks, before anything is started, what a node asks of the
// machine; each error says what to do.
func preflight() error {
	if os.Geteuid() != 0 {
		return errors.New("a local cluster needs root: run it with sudo")
	}
	var missing []error
	fileSystems, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return fmt.Errorf("read what the kernel can mount: %w", err)
	}
	if !hasWord(string(fileSystems), "overlay") {
		missing = append(missing, errors.New("the kernel has no overlay file system: modprobe overlay"))
	}
	for _, ns := range []string{"cgroup", "ipc", "mnt", "net", "pid", "uts"} {
		if _, err := os.Stat("/proc/self/ns/" + ns); err != nil {
			missing = append(missing, fmt.Errorf("the kernel has no %s namespaces: use one that has", ns))
		}
	}
	for program, packageName := range map[string]string{"nsenter": "util-linux", "gcc": "gcc libc6-dev"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, fmt.Errorf("%s is not in PATH: apt-get install %s", program, packageName))
		}
	}
	return errors.Join(missing...)
}

func hasWord(text, word string) bool {
	for _, w := range strings.Fields(text) {
		if w == word {
			return true
		}
	}
	return false
}

// hasCapability tells whether the process may do what a capability allows; the
// kernel lists them as a bit set.
func hasCapability(number uint) bool {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for _, line := range strings.Split(string(status), "\n") {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			var bits uint64
			if _, err := fmt.Sscanf(strings.TrimSpace(value), "%x", &bits); err != nil {
				return false
			}
			return bits&(1<<number) != 0
		}
	}
	return false
}
