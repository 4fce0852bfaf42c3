// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const patience = 20 * time.Second

// here runs the simulated control program in the test's own namespaces.
type here struct {
	program string
	env     []string
}

func (h here) Start(_ context.Context, env []string) (int, error) {
	run := exec.Command(h.program, "-f")
	run.Env = slices.Concat(env, h.env)
	if err := run.Start(); err != nil {
		return 0, err
	}
	go func() { _ = run.Wait() }()
	return run.Process.Pid, nil
}

func (h here) Control(ctx context.Context, env []string, command string) (string, error) {
	return control(ctx, h.program, slices.Concat(env, h.env), command)
}

// said records the reasons of the Events.
type said struct {
	mu      sync.Mutex
	reasons []string
}

func (s *said) OnNode(reason events.Reason, _ string, _ ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reasons = append(s.reasons, reason.Name)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.reasons, " ")
}

// node is a machine with two simulated GPUs. MPS serves the GPUs that options.GPUs returns.
type node struct {
	machine *simtest.Machine
	uuids   []string
	options Options
	said    *said
}

func newNode(t *testing.T) *node {
	t.Helper()
	// The path of a socket must be short.
	dir, err := os.MkdirTemp("/tmp", "mps")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{machine: simtest.NewAt(t, filepath.Join(dir, "gpusim"), 2, 8<<30), said: &said{}}
	o, err := oracle.Open(n.machine.Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	gpus, err := o.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gpus {
		n.uuids = append(n.uuids, g.UUID)
	}
	host := here{program: filepath.Join(n.machine.ToolDir, "nvidia-cuda-mps-control"), env: n.machine.Env()}
	sharing := config.Default().Sharing
	sharing.Method = config.ShareByMPS
	n.options = Options{
		Config: sharing,
		Dirs:   DirsOf(config.Paths{RunDir: filepath.Join(dir, "run"), StateDir: filepath.Join(dir, "state")}),
		Host:   host, GPUs: func() []string { return n.uuids }, Proc: registry.HostProc, Events: n.said,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	t.Setenv("GPUSIM_STATE", filepath.Join(n.machine.Dir, "state"))
	t.Cleanup(func() {
		s := New(n.options)
		_, _ = s.control(context.Background(), "quit -t 0")
		n.machine.Tool(t, "destroy", n.machine.Dir)
		os.RemoveAll(dir)
	})
	return n
}

// supervise runs a supervisor, like an agent, until the test calls stop.
func (n *node) supervise(t *testing.T) (s *Supervisor, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s = New(n.options)
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return s, stop
}

func (n *node) ready(t *testing.T, s *Supervisor) {
	t.Helper()
	eventually.Holds(t, patience, "the daemon is ready", func() bool { return s.Ready(n.uuids) == nil })
}

func (n *node) pid(t *testing.T, s *Supervisor) int {
	t.Helper()
	r, err := s.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	return r.PID
}

// client starts a program that holds memory of GPU 0, like a program in a container that has the
// clients' directory.
func (n *node) client(t *testing.T, dir string) *exec.Cmd {
	t.Helper()
	run := n.machine.Command(t, simtest.Workload(t, "fill"), "--max", "1GiB", "--hold", "600")
	run.Env = append(run.Env, "CUDA_MPS_PIPE_DIRECTORY="+dir)
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	return run
}

func (n *node) hasOneClient(t *testing.T, s *Supervisor) {
	t.Helper()
	eventually.Holds(t, patience, "the daemon has one client", func() bool {
		clients, err := s.clients(t.Context())
		return err == nil && len(clients) == 1
	})
}

func TestDaemonIsStartedAndComesBack(t *testing.T) {
	n := newNode(t)
	s, _ := n.supervise(t)
	n.ready(t, s)
	if err := s.Ready([]string{"GPU-other"}); err == nil || !strings.Contains(err.Error(), "GPU-other") {
		t.Errorf("a GPU that is not served: %v", err)
	}
	first := n.pid(t, s)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually.Holds(t, patience, "its end is known", func() bool { return s.Ready(n.uuids) != nil })
	n.ready(t, s)
	if second := n.pid(t, s); second == first {
		t.Error("the daemon is ready, and was not started again")
	}
	eventually.Holds(t, patience, "Events report both", func() bool { return n.said.String() == "MPSUnavailable MPSRecovered" })
	n.client(t, n.options.Dirs.Clients)
	n.hasOneClient(t, s)
}

func TestClientsDoNotReachThePrivilegedSocket(t *testing.T) {
	n := newNode(t)
	s, _ := n.supervise(t)
	n.ready(t, s)
	for name, want := range map[string]bool{"control": true, "log": true, "control_privileged": false, "control_lock": false} {
		_, err := os.Stat(filepath.Join(n.options.Dirs.Clients, name))
		if has := err == nil; has != want {
			t.Errorf("clients have %s: %t, want %t", name, has, want)
		}
	}
}

func TestNextAgentFindsTheDaemon(t *testing.T) {
	n := newNode(t)
	s, stop := n.supervise(t)
	n.ready(t, s)
	client := n.client(t, n.options.Dirs.Clients)
	n.hasOneClient(t, s)
	daemon := n.pid(t, s)
	stop()
	next, _ := n.supervise(t)
	n.ready(t, next)
	if got := n.pid(t, next); got != daemon {
		t.Errorf("process %d runs after the agent's restart, want %d", got, daemon)
	}
	n.hasOneClient(t, next)
	if err := client.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the client has ended: %v", err)
	}
}

func TestDaemonIsRestartedForMoreGPUsOnceItHasNoClients(t *testing.T) {
	n := newNode(t)
	all := n.uuids
	n.uuids = all[:1]
	s, stop := n.supervise(t)
	n.ready(t, s)
	client := n.client(t, n.options.Dirs.Clients)
	n.hasOneClient(t, s)
	daemon := n.pid(t, s)
	stop()
	n.uuids = all
	next, _ := n.supervise(t)
	eventually.Holds(t, patience, "the daemon is found", func() bool { return next.Ready(all[:1]) == nil })
	next.mu.Lock()
	d := next.daemon
	next.mu.Unlock()
	next.renew(t.Context(), d, 1)
	if err := next.Ready(all); err == nil {
		t.Error("a GPU is served of which the daemon does not know")
	}
	if n.pid(t, next) != daemon {
		t.Error("the daemon was restarted under its client")
	}
	_ = client.Process.Kill()
	_ = client.Wait()
	n.ready(t, next)
	if got := n.said.String(); got != "" {
		t.Errorf("Events report an intended restart: %s", got)
	}
}

func TestDaemonThatIsNoLongerWantedEndsWithItsLastClient(t *testing.T) {
	n := newNode(t)
	if os.Geteuid() == 0 { // only root may set a compute mode
		n.options.Config.MPS.ComputeMode = config.ModeExclusiveProcess
	}
	n.options.Modes = nvml.Modes{Options: nvml.Options{Library: filepath.Join(n.machine.LibraryDir, "libnvidia-ml.so.1")}}
	n.machine.Tool(t, "inject", "--gpu", "1", "lost", n.machine.Dir)
	s, stop := n.supervise(t)
	eventually.Holds(t, patience, "the daemon is ready", func() bool { return s.Ready(n.uuids[:1]) == nil })
	if err := s.Ready(n.uuids[1:]); os.Geteuid() == 0 && (err == nil || !strings.Contains(err.Error(), "lost")) {
		t.Errorf("a lost GPU is served: %v", err)
	}
	n.machine.Tool(t, "inject", "clear", n.machine.Dir)
	n.ready(t, s)
	if os.Geteuid() == 0 {
		if before, err := n.options.Modes.Set(n.uuids[1], exclusiveProcess); err != nil || before != exclusiveProcess {
			t.Errorf("the compute mode is %d (%v), want %d", before, err, exclusiveProcess)
		}
	}
	client := n.client(t, n.options.Dirs.Clients)
	n.hasOneClient(t, s)
	daemon := n.pid(t, s)
	stop()
	n.options.Config.Method = config.ShareByTime
	next, _ := n.supervise(t)
	d := next.open(record{PID: daemon, Started: started(t, daemon)})
	if d == nil {
		t.Fatal("the daemon ended with the agent")
	}
	defer d.close()
	if err := next.quit(t.Context(), d); err == nil {
		t.Error("the daemon was ended under its client")
	}
	_ = client.Process.Kill()
	_ = client.Wait()
	eventually.Holds(t, patience, "the daemon ends", d.ended)
	eventually.Holds(t, patience, "the compute modes are as before", func() bool {
		before, err := n.options.Modes.Set(n.uuids[1], 0)
		return err == nil && before == 0
	})
}

func started(t *testing.T, pid int) uint64 {
	t.Helper()
	p, err := registry.HostProc.Look(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p.Started
}

func TestDaemonThatCannotBeStarted(t *testing.T) {
	n := newNode(t)
	n.options.Host = here{program: "/nonexistent/nvidia-cuda-mps-control"}
	s, _ := n.supervise(t)
	eventually.Holds(t, patience, "the reason is reported", func() bool {
		err := s.Ready(n.uuids)
		return err != nil && strings.Contains(err.Error(), "/nonexistent/nvidia-cuda-mps-control")
	})
	if got := n.said.String(); got != "MPSUnavailable" {
		t.Errorf("Events: %q", got)
	}
}

func TestOwn(t *testing.T) {
	for _, tt := range []struct {
		pod, cgroup string
		want        bool
	}{
		{"", "/nri-vgpu-mps", true},
		{"", "/../../nri-vgpu-mps", true},
		{"", "/", false},
		{"", "/user.slice/other", false},
		{"0123", "/kubepods/pod0123/x/nri-vgpu-mps", false},
	} {
		p := registry.Process{Place: registry.Place{PodUID: tt.pod, Cgroup: tt.cgroup}}
		if got := Own(p); got != tt.want {
			t.Errorf("%q in pod %q: %t", tt.cgroup, tt.pod, got)
		}
	}
}

func TestPids(t *testing.T) {
	if got := pids("12\n 7 \n\nnone\n-3\n"); len(got) != 2 || got[0] != 12 || got[1] != 7 {
		t.Errorf("got %v", got)
	}
}
