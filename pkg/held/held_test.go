package held

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/gpusim/simtest"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
)

// What makes the test's own program a server: NVML is opened once per process, so
// that each driver wants its own.
const (
	serveVariable = "HELD_TEST_SOCKET"
	gpusVariable  = "HELD_TEST_GPUS"
	nvmlVariable  = "HELD_TEST_NVML"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(serveVariable); socket != "" {
		serve(socket)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// serve is an agent's socket, for as long as its input lasts.
func serve(socket string) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	uuids := strings.Split(os.Getenv(gpusVariable), ",")
	looks := gpu.NewLooks(nvml.NewHoldings(nvml.Options{Library: os.Getenv(nvmlVariable)}))
	server := registry.Server{
		Path: socket, Registry: registry.New(), Proc: registry.HostProc, Log: slog.New(slog.DiscardHandler),
		Holdings: Holdings{Looks: looks, GPUs: func(string) []string { return uuids }},
	}
	// An agent looks at its GPUs as it starts.
	_, _ = looks.Of(ctx, 0, uuids)
	server.Run(ctx)
}

const (
	mib      = 1 << 20
	context1 = 107 * mib
	patience = 10 * time.Second
)

// site is a machine with GPUs of a driver, and an agent on it.
type site struct {
	*testing.T
	*simtest.Machine
	socket string
	uuids  []string
	agent  *exec.Cmd
	truth  *oracle.Oracle
}

func newSite(t *testing.T, profile string) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "held") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "profile.conf")
	if err := os.WriteFile(file, []byte("context = 107MiB\n"+profile), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &site{T: t, Machine: simtest.At(t, filepath.Join(dir, "gpusim")), socket: filepath.Join(dir, "agent.sock")}
	s.Tool(t, "create", "--profile", file, "--gpus", "2", s.Dir)
	if s.truth, err = oracle.Open(s.Dir); err != nil {
		t.Fatal(err)
	}
	gpus, err := s.truth.GPUs()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range gpus {
		s.uuids = append(s.uuids, g.UUID)
	}
	s.startAgent()
	return s
}

func (s *site) startAgent() {
	s.Helper()
	s.agent = s.Command(s.T, os.Args[0])
	s.agent.Env = append(s.agent.Env, serveVariable+"="+s.socket, gpusVariable+"="+strings.Join(s.uuids, ","),
		nvmlVariable+"="+filepath.Join(s.LibraryDir, "libnvidia-ml.so.1"))
	s.agent.Stderr = os.Stderr
	if _, err := s.agent.StdinPipe(); err != nil {
		s.Fatal(err)
	}
	if err := s.agent.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = s.agent.Process.Kill(); _ = s.agent.Wait() })
	s.eventually("the agent listens", func() bool {
		conn, err := net.Dial("unixpacket", s.socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

func (s *site) eventually(what string, condition func() bool) {
	s.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// asker is a process that holds memory, and asks.
type asker struct {
	*site
	in    io.Writer
	out   *bufio.Reader
	inner int // its pid, as itself knows it
	bytes uint64
}

// asker starts one, in a pid namespace of its own or the agent's.
func (s *site) asker(bytes uint64, contained bool) *asker {
	s.Helper()
	program, err := buildAsker()
	if err != nil {
		s.Fatal(err)
	}
	command := s.Command(s.T, program, filepath.Join(s.LibraryDir, "libcuda.so.1"), s.socket, strconv.FormatUint(bytes, 10))
	if contained {
		command.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		}
	}
	command.Stderr = os.Stderr
	in, err := command.StdinPipe()
	if err != nil {
		s.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := command.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = command.Process.Kill(); _ = command.Wait() })
	a := &asker{site: s, in: in, out: bufio.NewReader(out), bytes: context1 + bytes}
	if _, err := fmt.Fscan(a.out, &a.inner); err != nil {
		s.Fatal(err)
	}
	if _, err := a.out.ReadString('\n'); err != nil {
		s.Fatal(err)
	}
	return a
}

var buildAsker = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "asker")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "asker")
	output, err := exec.Command("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/asker.c", "-ldl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the asker: %w: %s", err, output)
	}
	return program, nil
})

// ask returns what the agent answers: "none", or the bytes by UUID as text.
func (a *asker) ask() string {
	if _, err := fmt.Fprintln(a.in, "?"); err != nil {
		return err.Error()
	}
	line, err := a.out.ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(line, "\n")
}

// told is the answer in which the agent says what the asker truly holds.
func (a *asker) told() string {
	hex := strings.ReplaceAll(strings.TrimPrefix(a.uuids[0], "GPU-"), "-", "")
	return fmt.Sprintf(" %s=%d", hex, a.bytes)
}

// A process in a container is told what it holds, whatever NVML tells containers:
// the agent asks on the host, for the pid that the kernel gave.
func TestEveryRegime(t *testing.T) {
	for _, tt := range []struct {
		regime string
		known  bool
	}{
		{"true", true}, {"host-pids", true}, {"own-zero", true}, {"own-bytes", true}, {"not-available", false},
	} {
		t.Run(tt.regime, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "nvml = "+tt.regime+"\n")
			askers := []*asker{s.asker(10*mib, true), s.asker(30*mib, true), s.asker(50*mib, false)}
			// Two are process 1 of their namespaces, and the host has one, too.
			if askers[0].inner != 1 || askers[1].inner != 1 {
				t.Fatalf("the pids in the namespaces are %d and %d", askers[0].inner, askers[1].inner)
			}
			for i, a := range askers {
				want := ""
				if tt.known {
					want = a.told()
				}
				if got := a.ask(); got != want {
					t.Errorf("number %d was told %q, want %q", i, got, want)
				}
			}
			processes, err := s.truth.Processes()
			if err != nil || len(processes) != len(askers) {
				t.Fatalf("the oracle knows %+v, %v", processes, err)
			}
			for _, p := range processes {
				if p.NVMLCalls != 0 {
					t.Errorf("process %d called NVML %d times", p.Pid, p.NVMLCalls)
				}
			}
		})
	}
}

// While NVML hangs, questions end without an answer, soon; afterwards they are
// answered again, by another agent too.
func TestNVMLHangs(t *testing.T) {
	s := newSite(t, "")
	a := s.asker(10*mib, true)
	s.eventually("it is answered", func() bool { return a.ask() == a.told() })
	s.Tool(t, "inject", "nvml-hang", "3600", s.Dir)
	for range 20 {
		begin := time.Now()
		if got := a.ask(); got != "none" {
			t.Errorf("a driver that hangs told %q", got)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("an answer took %v", took)
		}
	}
	s.Tool(t, "inject", "clear", s.Dir)
	s.eventually("it is answered again", func() bool { return a.ask() == a.told() })

	_ = s.agent.Process.Kill()
	_ = s.agent.Wait()
	if got := a.ask(); got != "none" {
		t.Errorf("without an agent it was told %q", got)
	}
	s.startAgent()
	s.eventually("the next agent answers", func() bool { return a.ask() == a.told() })
}

// One of two GPUs hangs: what is held of the other is still told.
func TestOneGPUHangs(t *testing.T) {
	s := newSite(t, "")
	a := s.asker(10*mib, true)
	s.eventually("it is answered", func() bool { return a.ask() == a.told() })
	s.Tool(t, "inject", "--gpu", "1", "nvml-hang", "3600", s.Dir)
	s.eventually("it is told of the GPU that answers", func() bool { return a.ask() == a.told() })
}

// A container that floods the agent with questions is answered some, costs the
// driver a bounded number of looks, and keeps no other from registering.
func TestAFlood(t *testing.T) {
	s := newSite(t, "nvml_processes = 2ms\n")
	a := s.asker(10*mib, true)
	s.eventually("it is answered", func() bool { return a.ask() == a.told() })
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 8 {
		flooder := s.asker(mib, true)
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					flooder.ask()
				}
			}
		})
	}
	before := s.agentCalls()
	begin := time.Now()
	answered := 0
	for time.Since(begin) < 2*time.Second {
		if a.ask() == a.told() {
			answered++
		}
		time.Sleep(20 * time.Millisecond)
	}
	calls, took := s.agentCalls()-before, time.Since(begin)
	close(stop)
	all.Wait()
	if answered == 0 {
		t.Error("who asks beside a flood is never answered")
	}
	// Two GPUs, a look of 2 ms and a rest of as much each, and two calls for a list.
	if most := uint64(took/(4*time.Millisecond)) * 2 * 2; calls > most {
		t.Errorf("%d calls of NVML in %v, want at most %d", calls, took, most)
	}
}

// agentCalls is how often the agent has called NVML.
func (s *site) agentCalls() uint64 {
	s.Helper()
	users, err := s.truth.NVMLUsers()
	if err != nil {
		s.Fatal(err)
	}
	for _, user := range users {
		if user.Alive && user.Pid == s.agent.Process.Pid {
			return user.Calls
		}
	}
	s.Fatalf("the agent is not among %+v", users)
	return 0
}
