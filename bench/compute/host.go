package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// containerMemory is the memory limit of each container: room for the contexts
// of four processes.
const containerMemory = "4Gi"

// startTimeout bounds the start of a container's processes.
const startTimeout = time.Minute

// host starts programs.
type host struct {
	build  string   // where the project is built
	runDir string   // where vgpuctl keeps its groups
	env    []string // with which programs find the driver
	policy []string // vgpuctl's arguments for the policy "share"
	groups int      // made so far
}

// process is a program that runs.
type process struct {
	command        *exec.Cmd
	stdout, stderr bytes.Buffer
	done           chan struct{}
	err            error // of the end; valid when done is closed
}

// tenant is a container: processes under one limit.
type tenant []*process

func (h *host) start(ctx context.Context, path string, args ...string) (*process, error) {
	p := &process{command: exec.CommandContext(ctx, path, args...), done: make(chan struct{})}
	p.command.Env = append(os.Environ(), h.env...)
	p.command.Env = append(p.command.Env, "XDG_RUNTIME_DIR="+h.runDir)
	p.command.Stdout, p.command.Stderr = &p.stdout, &p.stderr
	// A child of the program that has its output must not delay us.
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
	return h.startProgram(ctx, l, "spin", args)
}

// startProgram starts a load's processes under its limit, if it has one: the
// first of them makes the group that the others join.
func (h *host) startProgram(ctx context.Context, l load, name string, args []string) (tenant, error) {
	program := filepath.Join(h.build, "workload", name)
	group := ""
	if l.limit > 0 {
		h.groups++
		group = fmt.Sprintf("tenant%d", h.groups)
	}
	var t tenant
	for i := range l.pattern.processes {
		p, err := h.startMember(ctx, l, group, i == 0, program, args)
		if err != nil {
			t.stop()
			return nil, err
		}
		t = append(t, p)
		if i == 0 && group != "" && l.pattern.processes > 1 {
			if err := h.awaitGroup(ctx, group, p); err != nil {
				t.stop()
				return nil, err
			}
		}
	}
	return t, nil
}

func (h *host) startMember(ctx context.Context, l load, group string, first bool, program string, args []string) (*process, error) {
	if group == "" {
		return h.start(ctx, program, args...)
	}
	run := []string{"run", "--group", group}
	if first {
		run = append(run, "--memory", containerMemory, "--cores", strconv.Itoa(l.limit))
		if l.lends {
			run = append(run, h.policy...)
		}
	}
	tool, work := []string{h.vgpuctl()}, append([]string{program}, args...)
	if priority, ok := realTime(); ok {
		tool = append([]string{"chrt", "--other", "0"}, tool...)
		work = append([]string{"chrt", "--rr", priority}, work...)
	}
	command := slices.Concat(tool, run, []string{"--"}, work)
	return h.start(ctx, command[0], command[1:]...)
}

// realTime is this process's priority, if it is a real-time one. Its children have it, too;
// but a program in Go, as vgpuctl is, has threads that wait for each other without sleeping
// while it starts: at real-time priority on two processors, these held up everybody, the
// thread that they waited for included, for a turn of 100 ms.
func realTime() (priority string, ok bool) {
	attributes, err := unix.SchedGetAttr(0, 0)
	if err != nil || attributes.Policy != unix.SCHED_RR && attributes.Policy != unix.SCHED_FIFO {
		return "", false
	}
	return strconv.Itoa(int(attributes.Priority)), true
}

func (h *host) vgpuctl() string { return filepath.Join(h.build, "bin", "vgpuctl") }

// awaitGroup waits until a group's pages are there.
func (h *host) awaitGroup(ctx context.Context, group string, founder *process) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	pages := filepath.Join(h.runDir, "nri-vgpu", group, "limits")
	for {
		if _, err := os.Stat(pages); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the limits of group %s: %w", group, context.Cause(ctx))
		case <-founder.done:
			return founder.failure()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// knowsPolicy tells whether this vgpuctl can lend idle time.
func (h *host) knowsPolicy(ctx context.Context) bool {
	help, err := exec.CommandContext(ctx, h.vgpuctl(), "run", "--help").Output()
	return err == nil && len(h.policy) > 0 && strings.Contains(string(help), h.policy[0])
}

// failure is why a program ended that should not have.
func (p *process) failure() error {
	output := strings.TrimSpace(p.stderr.String() + " " + p.stdout.String())
	return fmt.Errorf("%s ended: %w: %s", filepath.Base(p.command.Path), orEnd(p.err), output)
}

// wait waits for a program's end and returns what it printed.
func (p *process) wait() ([]byte, error) {
	<-p.done
	if p.err != nil {
		return nil, p.failure()
	}
	return p.stdout.Bytes(), nil
}

// ended is the failure of a process that has ended, nil while all run.
func (t tenant) ended() error {
	for _, p := range t {
		select {
		case <-p.done:
			return p.failure()
		default:
		}
	}
	return nil
}

// stop kills all processes and waits for their end.
func (t tenant) stop() {
	for _, p := range t {
		_ = p.command.Process.Kill() // it may have ended
	}
	for _, p := range t {
		<-p.done
	}
}

func orEnd(err error) error {
	if err == nil {
		return errEarly
	}
	return err
}

func formatNumber(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
