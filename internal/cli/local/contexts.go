// SPDX-License-Identifier: Apache-2.0

package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/contexts"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	// contextsName is the file with the sizes of contexts, in the directory of
	// groups. Only the user can write the file. The file disappears with the session
	// or at reboot.
	contextsName = "contexts.json"
	// contextsLock serializes the measurements of concurrent runs.
	contextsLock = "contexts.lock"
	// contextsFailed is the file that a run touches when its measurement of a GPU fails. Runs of
	// the next minute do not retry the measurement.
	contextsFailed = "contexts.failed"
	failedFor      = time.Minute
)

func (g Groups) contextsFile() string { return filepath.Join(g.dir, contextsName) }

// driverOf returns the version of the driver's kernel module. If the module's version is not
// readable, driverOf returns the CUDA version that the driver supports.
func driverOf(one GPU) string {
	version, err := os.ReadFile("/sys/module/nvidia/version")
	if text := strings.TrimSpace(string(version)); err == nil && text != "" {
		return text
	}
	return fmt.Sprintf("CUDA %d", one.CUDAVersion)
}

// sizeContexts sets the size of a context on each device, if known or measurable. The first run
// measures the sizes. A process without a measured size is charged more than any context uses.
func (g Groups) sizeContexts(ctx context.Context, lib string, gpus []GPU, devices []limits.Device) {
	if g.recallContexts(gpus, devices) {
		return
	}
	lock, err := lockFile(filepath.Join(g.dir, contextsLock), os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		return
	}
	defer lock.Close()
	// While this run waited for the lock, another run may have measured the sizes or failed.
	info, err := os.Stat(filepath.Join(g.dir, contextsFailed))
	if g.recallContexts(gpus, devices) || err == nil && time.Since(info.ModTime()) < failedFor {
		return
	}
	if !g.measureContexts(ctx, lib, gpus, devices) {
		_ = os.WriteFile(filepath.Join(g.dir, contextsFailed), nil, 0o600)
	}
	g.recallContexts(gpus, devices)
}

// recallContexts sets the recorded sizes, and reports whether the size is recorded for every
// device.
func (g Groups) recallContexts(gpus []GPU, devices []limits.Device) bool {
	sizes, err := contexts.ReadFile(g.contextsFile())
	if err != nil {
		return false
	}
	all := true
	for i := range devices {
		k := slices.IndexFunc(sizes, func(s contexts.Size) bool {
			return s.UUID == devices[i].UUID && s.Driver == driverOf(gpuOf(gpus, s.UUID)) && s.PIDNamespace == pidNamespace()
		})
		if k < 0 {
			all = false
			continue
		}
		devices[i].ContextBytes = sizes[k].Bytes
	}
	return all
}

func gpuOf(gpus []GPU, uuid string) GPU {
	if k := slices.IndexFunc(gpus, func(one GPU) bool { return one.UUID == uuid }); k >= 0 {
		return gpus[k]
	}
	return GPU{}
}

// measureContexts measures the missing sizes and records them. measureContexts reports whether all
// measurements succeeded.
func (g Groups) measureContexts(ctx context.Context, lib string, gpus []GPU, devices []limits.Device) bool {
	driver := newNVML(lib)
	defer driver.close()
	measurer := contexts.Measurer{Driver: driver, Maker: &contexts.Child{
		Program: filepath.Join(lib, contexts.ProgramName),
		Library: func() (string, error) { return "", nil }, // the loader finds libcuda.so.1
	}}
	sizes, _ := contexts.ReadFile(g.contextsFile())
	all := true
	for _, d := range devices {
		if d.ContextBytes > 0 {
			continue
		}
		size, err := measurer.Measure(ctx, d.UUID)
		if err != nil {
			all = false
			continue
		}
		size.Driver, size.PIDNamespace = driverOf(gpuOf(gpus, d.UUID)), pidNamespace()
		sizes = slices.DeleteFunc(sizes, func(old contexts.Size) bool { return old.UUID == d.UUID })
		sizes = append(sizes, size)
	}
	return contexts.WriteFile(g.contextsFile(), sizes) == nil && all
}

// pidNamespace returns the inode of this process's pid namespace, 0 on error.
func pidNamespace() uint64 {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &stat); err != nil {
		return 0
	}
	return stat.Ino
}
