// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// containerMemory is the memory limit of each container. containerMemory has room
// for the contexts of four processes.
const containerMemory = "4Gi"

// startTimeout bounds the start of a container's processes.
const startTimeout = time.Minute

// host starts programs.
type host struct {
	build  string   // directory of the built project
	runDir string   // parent directory of vgpuctl's groups
	env    []string // environment with which programs find the driver
	policy []string // vgpuctl's arguments for the policy "share"
	groups int      // number of groups made so far
}

// process is a running program.
type process struct {
	command        *exec.Cmd
	stdout, stderr bytes.Buffer
	done           chan struct{}
	err            error // the result of waiting; valid once done is closed
}

// tenant is a container: processes under one limit.
type tenant struct {
	processes []*process
	// pages is the directory of the container's pages, or "" without a limit.
	pages string
	quota *quota // nil without a quota
}

func (h *host) start(ctx context.Context, path string, args ...string) (*process, error) {
	p := &process{command: exec.CommandContext(ctx, path, args...), done: make(chan struct{})}
	p.command.Env = append(os.Environ(), h.env...)
	p.command.Env = append(p.command.Env, "XDG_RUNTIME_DIR="+h.runDir)
	p.command.Stdout, p.command.Stderr = &p.stdout, &p.stderr
	// The program's children may hold the program's output open. Wait waits at most WaitDelay for
	// the children.
	p.command.WaitDelay = time.Second
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(path), err)
	}
	go func() {
		p.err = p.command.Wait()
		close(p.done)
	}()
	return p, nil
}

// startTenant starts all processes of a load with these arguments of spin.
func (h *host) startTenant(ctx context.Context, l load, args ...string) (tenant, error) {
	args = append([]string{"--kernel-us", formatNumber(l.kernelUS)}, append(args, l.pattern.args...)...)
	if l.pattern.varies {
		args = append(args, "--other-us", formatNumber(l.kernelUS/10))
	}
	return h.startProgram(ctx, l, "spin", args)
}

// startProgram starts a load's processes under its limit, if any. The first process makes the
// group, and the other processes join the group.
func (h *host) startProgram(ctx context.Context, l load, name string, args []string) (tenant, error) {
	h.groups++
	group := fmt.Sprintf("tenant%d", h.groups)
	var t tenant
	if l.limit > 0 {
		t.pages = filepath.Join(h.runDir, "nri-vgpu", group)
	}
	if l.cores > 0 {
		var err error
		if t.quota, err = newQuota(fmt.Sprintf("nri-vgpu-bench-%d-%s", os.Getpid(), group), l.cores); err != nil {
			return t, err
		}
	}
	work := t.quota.within(append([]string{filepath.Join(h.build, "workload", name)}, args...))
	for i := range l.pattern.processes {
		p, err := h.startMember(ctx, l, group, i == 0, work)
		if err != nil {
			return t, errors.Join(err, t.stop())
		}
		t.processes = append(t.processes, p)
		if i == 0 && t.pages != "" && l.pattern.processes > 1 {
			if err := awaitPages(ctx, t.pages, p); err != nil {
				return t, errors.Join(err, t.stop())
			}
		}
	}
	return t, nil
}

// startMember starts one process of a container.
func (h *host) startMember(ctx context.Context, l load, group string, first bool, work []string) (*process, error) {
	if l.limit == 0 {
		return h.start(ctx, work[0], work[1:]...)
	}
	run := []string{"run", "--group", group}
	if first {
		run = append(run, "--memory", containerMemory, "--cores", strconv.Itoa(l.limit))
		if l.lends {
			run = append(run, h.policy...)
		}
	}
	return h.start(ctx, h.vgpuctl(), slices.Concat(run, []string{"--"}, work)...)
}

func (h *host) vgpuctl() string { return filepath.Join(h.build, "bin", "vgpuctl") }

// awaitPages waits until a container's pages exist.
func awaitPages(ctx context.Context, pages string, founder *process) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if _, err := os.Stat(filepath.Join(pages, limits.LimitsFile)); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the limits of %s: %w", filepath.Base(pages), context.Cause(ctx))
		case <-founder.done:
			return founder.failure()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// knowsPolicy reports whether this vgpuctl can lend idle time.
func (h *host) knowsPolicy(ctx context.Context) bool {
	help, err := exec.CommandContext(ctx, h.vgpuctl(), "run", "--help").Output()
	return err == nil && len(h.policy) > 0 && strings.Contains(string(help), h.policy[0])
}

// failure returns the error of a program that ended unexpectedly.
func (p *process) failure() error {
	output := strings.TrimSpace(p.stderr.String() + " " + p.stdout.String())
	return fmt.Errorf("%s ended: %w: %s", filepath.Base(p.command.Path), orEnd(p.err), output)
}

// wait waits until the program has ended, and returns the program's output.
func (p *process) wait() ([]byte, error) {
	<-p.done
	if p.err != nil {
		return nil, p.failure()
	}
	return p.stdout.Bytes(), nil
}

// ended returns the error of a process that has ended, or nil while all processes run.
func (t tenant) ended() error {
	for _, p := range t.processes {
		select {
		case <-p.done:
			return p.failure()
		default:
		}
	}
	return nil
}

// metered returns the GPU time charged to the container.
func (t tenant) metered() (time.Duration, error) {
	if t.pages == "" {
		return 0, nil
	}
	usage, err := limits.ReadUsage(filepath.Join(t.pages, limits.UsageFile))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, d := range usage.Devices {
		sum += d.GPUTime
	}
	return sum, nil
}

// stop kills all processes and waits until they have ended.
func (t tenant) stop() error {
	for _, p := range t.processes {
		_ = p.command.Process.Kill() // the process may have ended
	}
	for _, p := range t.processes {
		<-p.done
	}
	if t.quota == nil {
		return nil
	}
	return t.quota.remove()
}

func orEnd(err error) error {
	if err == nil {
		return errEarly
	}
	return err
}

func formatNumber(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
