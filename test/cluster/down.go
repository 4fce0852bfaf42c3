// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/node"
)

// cgroupPatience is the time that the kernel may take to release a cgroup whose processes have
// ended.
const cgroupPatience = 10 * time.Second

// Down removes every trace of a cluster that runs, has crashed, or never existed. If the options
// request the logs, Down keeps the logs.
func Down(o Options) error {
	o, err := o.complete()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("taking a local cluster down needs root: run it with sudo")
	}
	if err := refuseForeign(o.StateDir); err != nil {
		return err
	}
	r, err := readRecord(o.StateDir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r = record{Device: deviceName(o.Name)}
	case err != nil:
		return err
	default:
		fmt.Fprintf(o.Out, "taking down cluster %s\n", o.Name)
	}
	if r.Pid != 0 {
		if err := endProcess(r.Pid, r.StartTime); err != nil {
			return err
		}
	}
	if err := disconnect(r.Device); err != nil {
		return err
	}
	if err := node.RemoveCgroup(cgroupOf(o.Name), cgroupPatience); err != nil {
		return err
	}
	return removeState(o)
}

// ownNames are the possible names at the top level of a cluster's state directory.
var ownNames = map[string]bool{
	"cluster.json": true, "containerd": true, "containers": true, "control.sock": true, "etcd": true, "kubeconfig": true,
	"kubelet": true, "logs": true, "pause.tar": true, "rootfs": true, "spec.json": true, "tree": true,
}

// refuseForeign returns an error for a directory that is not a cluster's state directory, so that
// Down does not empty a mistyped path.
func refuseForeign(stateDir string) error {
	entries, err := os.ReadDir(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the state directory: %w", err)
	}
	for _, e := range entries {
		if !ownNames[e.Name()] {
			return fmt.Errorf("state directory %s holds %s, which is no cluster's: name another directory", stateDir, e.Name())
		}
	}
	return nil
}

func removeState(o Options) error {
	unlock, err := lockClusters(context.Background(), filepath.Dir(o.StateDir))
	if err != nil {
		return err
	}
	defer unlock()
	if !o.KeepLogs {
		if err := os.RemoveAll(o.StateDir); err != nil {
			return fmt.Errorf("remove the state directory: %w", err)
		}
		if strings.HasPrefix(o.StateDir, stateRoot+"/") {
			_ = os.Remove(stateRoot) // fails while the directory contains other clusters
		}
		return nil
	}
	entries, err := os.ReadDir(o.StateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the state directory: %w", err)
	}
	for _, e := range entries {
		if e.Name() == "logs" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(o.StateDir, e.Name())); err != nil {
			return fmt.Errorf("remove the state directory: %w", err)
		}
	}
	return nil
}
