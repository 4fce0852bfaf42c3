// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

// breakOurs kills the agent and the patcher, and sometimes stops or slows them, or replaces the
// agent's pod.
func (w *world) breakOurs(ctx context.Context, r *rand.Rand) {
	for loop.Sleep(ctx, between(r, 300*time.Millisecond, 4*time.Second)) {
		switch r.IntN(16) {
		case 0:
			w.halt(ctx, agent, between(r, 100*time.Millisecond, 6*time.Second))
		case 1:
			w.slow(ctx, agent, between(r, time.Second, 4*time.Second))
		case 2:
			w.halt(ctx, patcher, between(r, 100*time.Millisecond, 6*time.Second))
		case 3:
			w.slow(ctx, patcher, between(r, time.Second, 3*time.Second))
		case 4:
			w.replaceAgent()
		case 5, 6, 7, 8, 9:
			w.kill(ctx, patcher, 0)
		default:
			w.kill(ctx, agent, 0)
		}
	}
}

// replaceAgent replaces the agent's pod as an upgrade does.
func (w *world) replaceAgent() {
	w.log("replacing the agent's pod")
	w.count.add("faults", "agent's pod replaced")
	// If the API server is down, the test does not replace the agent.
	_ = call(func(ctx context.Context) error { return w.deleteAgent(ctx) })
}

// breakNode kills, stops and slows the components of the node.
func (w *world) breakNode(ctx context.Context, r *rand.Rand) {
	for loop.Sleep(ctx, between(r, time.Second, 10*time.Second)) {
		t := nodes[r.IntN(len(nodes))]
		switch r.IntN(6) {
		case 0:
			w.halt(ctx, t, between(r, 100*time.Millisecond, 5*time.Second))
		case 1:
			w.slow(ctx, t, between(r, time.Second, 5*time.Second))
		default:
			w.kill(ctx, t, between(r, 0, 4*time.Second))
		}
	}
}

// breakHardware makes GPUs fail, fills /run, and kills tenants' programs.
func (w *world) breakHardware(ctx context.Context, r *rand.Rand) {
	for loop.Sleep(ctx, between(r, time.Second, 8*time.Second)) {
		gpu := strconv.Itoa(r.IntN(gpus))
		switch r.IntN(8) {
		case 0:
			w.failGPU(ctx, between(r, time.Second, 12*time.Second), gpu, "lost")
		case 1:
			w.failGPU(ctx, between(r, time.Second, 5*time.Second), gpu, "nvml-hang", strconv.Itoa(1+r.IntN(15)))
		case 2:
			w.failGPU(ctx, between(r, time.Second, 8*time.Second), gpu, "nvml-error", "999")
		case 3:
			// These are XIDs of an application, of the hardware, and of a GPU that fell off the
			// bus.
			xid := []string{"31", "48", "79"}[r.IntN(3)]
			w.failGPU(ctx, between(r, time.Second, 8*time.Second), gpu, "xid", xid)
		case 4:
			w.fillDisk(ctx, between(r, time.Second, 8*time.Second))
		default:
			w.killTenant(r)
		}
	}
}

// failGPU injects a fault, and ends the fault after a time.
func (w *world) failGPU(ctx context.Context, length time.Duration, gpu string, fault ...string) {
	w.log("GPU %s: %v for %v", gpu, fault, length.Round(time.Millisecond))
	w.count.add("faults", "GPU "+fault[0])
	w.faults.note()
	w.inject(append([]string{"--gpu", gpu}, fault...)...)
	loop.Sleep(ctx, length)
	w.inject("--gpu", gpu, "clear")
	w.faults.note()
}

func (w *world) inject(args ...string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	args = append(append([]string{"gpusim", "inject"}, args...), "/dev/gpusim")
	if _, err := w.Cluster.Exec(ctx, args...); err != nil {
		w.Errorf("inject: %v", err)
	}
}

// filler returns the path of the file that fills the node's /run, which contains the state
// directory.
func (w *world) filler() string { return filepath.Join(w.Cluster.Root(), runDir, "filler") }

func (w *world) fillDisk(ctx context.Context, length time.Duration) {
	w.log("/run is full for %v", length.Round(time.Millisecond))
	w.count.add("faults", "/run full")
	defer func() {
		w.emptyDisk()
		w.full.note()
	}()
	w.full.note()
	for end := time.Now().Add(length); time.Now().Before(end); {
		// The fault fills repeatedly, to take also the space that other programs free.
		w.full.note()
		if err := fill(w.filler()); err != nil {
			w.Errorf("fill /run: %v", err)
			return
		}
		if !loop.Sleep(ctx, 50*time.Millisecond) {
			return
		}
	}
}

func (w *world) emptyDisk() {
	if err := os.Remove(w.filler()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.Errorf("empty /run: %v", err)
	}
}

// fill appends to a file until the file system is full.
func fill(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return nil
		}
		return err
	}
	defer f.Close()
	page := make([]byte, 4096)
	for {
		if _, err := f.Write(page); errors.Is(err, syscall.ENOSPC) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// killTenant kills a program in a container, which then restarts.
func (w *world) killTenant(r *rand.Rand) {
	if p, ok := w.scanner.pick(r); ok && syscall.Kill(p.pid, syscall.SIGKILL) == nil {
		w.log("killed process %d of %s", p.pid, p.where())
		w.count.add("kills", "tenant's program")
	}
}
