// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

// stop kills the first process of a running container. If the pod's restart policy allows a
// restart, kubelet recreates the container. stop opens a pidfd before it checks the process, so
// that stop never kills a later process that reuses the id. proc is the proc file system of the
// host's pid namespace.
func stop(c adjust.Container, proc string) error {
	if c.PID == 0 {
		return errors.New("the runtime reports no process of the container")
	}
	fd, err := unix.PidfdOpen(c.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil // the process has ended
	}
	if err != nil {
		return fmt.Errorf("open a pidfd of process %d: %w", c.PID, err)
	}
	defer unix.Close(fd)
	cgroup, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(c.PID), "cgroup"))
	if err != nil {
		return fmt.Errorf("find the pod of process %d: %w", c.PID, err)
	}
	// kubelet's cgroup names contain the pod's UID, with dashes, or with
	// underscores under systemd.
	if !bytes.Contains(bytes.ReplaceAll(cgroup, []byte("_"), []byte("-")), []byte("pod"+c.PodUID)) {
		return fmt.Errorf("process %d does not belong to the container's pod", c.PID)
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", c.PID, err)
	}
	return nil
}
