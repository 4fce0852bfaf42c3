package ctl

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/pkg/contexts"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	// contextsName is the file of the sizes of contexts, in the directory of groups:
	// it goes with the session or at reboot, and nobody else can write it.
	contextsName = "contexts.json"
	// contextsLock keeps runs that start together from measuring all at once.
	contextsLock = "contexts.lock"
	// contextsFailed is touched when a GPU could not be measured: the runs of the
	// next minute do not try again.
	contextsFailed = "contexts.failed"
	failedFor      = time.Minute
)

func (g Groups) contextsFile() string { return filepath.Join(g.dir, contextsName) }

// driverOf names the driver's version: the kernel module's, where that is seen, else
// the CUDA version that it is for.
func driverOf(one GPU) string {
	version, err := os.ReadFile("/sys/module/nvidia/version")
	if text := strings.TrimSpace(string(version)); err == nil && text != "" {
		return text
	}
	return fmt.Sprintf("CUDA %d", one.CUDAVersion)
}

// sizeContexts fills in what a context takes on each device, as far as that can be
// found out. The first run measures; a process without the size is charged more than
// any context takes.
func (g Groups) sizeContexts(ctx context.Context, lib string, gpus []GPU, devices []limits.Device) {
	if g.recallContexts(gpus, devices) {
		return
	}
	lock, err := lockFile(filepath.Join(g.dir, contextsLock), os.O_CREATE, unix.LOCK_EX)
	if err != nil {
		return
	}
	defer lock.Close()
	// Another run may have measured meanwhile, or failed to.
	info, err := os.Stat(filepath.Join(g.dir, contextsFailed))
	if g.recallContexts(gpus, devices) || err == nil && time.Since(info.ModTime()) < failedFor {
		return
	}
	if !g.measureContexts(ctx, lib, gpus, devices) {
		_ = os.WriteFile(filepath.Join(g.dir, contextsFailed), nil, 0o600)
	}
	g.recallContexts(gpus, devices)
}

// recallContexts fills in what is known, and reports whether that is all.
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

// measureContexts measures what is not known of the devices, and keeps it.
func (g Groups) measureContexts(ctx context.Context, lib string, gpus []GPU, devices []limits.Device) bool {
	driver := newNVML(lib)
	defer driver.close()
	measurer := contexts.Measurer{Driver: driver, Maker: &contexts.Child{
		Program: filepath.Join(lib, contexts.ProgramName),
		Library: func() (string, error) { return "", nil }, // the loader finds it, as the program's
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

// pidNamespace is the inode of this process's pid namespace, 0 if it is not known.
func pidNamespace() uint64 {
	var stat unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &stat); err != nil {
		return 0
	}
	return stat.Ino
}
