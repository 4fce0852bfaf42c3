package hook

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// stop ends a running container by its first process; kubelet makes it anew,
// if its pod is one whose containers are restarted. The process is looked at
// once it is held, so that no other which got its number later is ended. proc
// is /proc of the host's pid namespace.
func (c Container) stop(proc string) error {
	if c.PID == 0 {
		return errors.New("the runtime does not tell its process")
	}
	fd, err := unix.PidfdOpen(c.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // it has ended
	}
	if err != nil {
		return fmt.Errorf("hold process %d: %w", c.PID, err)
	}
	defer unix.Close(fd)
	cgroup, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(c.PID), "cgroup"))
	if err != nil {
		return fmt.Errorf("see whose process %d is: %w", c.PID, err)
	}
	// kubelet names cgroups by the pod, with dashes or, under systemd,
	// underscores.
	if !bytes.Contains(bytes.ReplaceAll(cgroup, []byte("_"), []byte("-")), []byte("pod"+c.PodUID)) {
		return fmt.Errorf("process %d is not of its pod", c.PID)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end process %d: %w", c.PID, err)
	}
	return nil
}
