// SPDX-License-Identifier: Apache-2.0

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
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu/nvml"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// These variables turn the test's own program into a server. A process can open NVML only once, so
// each driver needs a separate process.
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

// serve serves an agent's socket until its standard input ends.
func serve(socket string) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); cancel() }()
	uuids := strings.Split(os.Getenv(gpusVariable), ",")
	looks := gpu.NewLooks(nvml.NewHoldings(nvml.Options{Library: os.Getenv(nvmlVariable)}))
	server := registry.Server{
		Path: socket, Registry: registry.New(), Proc: registry.HostProc, Log: slog.New(slog.DiscardHandler),
		Holdings: Holdings{Looks: looks, GPUs: func(string) []string { return uuids }},
	}
	// An agent lists its GPUs at its start.
	_, _ = looks.Of(ctx, 0, uuids)
	server.Run(ctx)
}

const (
	mib      = 1 << 20
	context1 = 107 * mib
	patience = 10 * time.Second
)

// site is a machine with GPUs of a simulated driver, and with an agent.
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
	dir, err := os.MkdirTemp("", "held") // a socket's path must be short
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
	eventually.Holds(s, patience, "the agent listens", func() bool {
		conn, err := net.Dial("unixpacket", s.socket)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// asker is a process that holds GPU memory and requests the amount.
type asker struct {
	*site
	in    io.Writer
	out   *bufio.Reader
	inner int // the process's pid in its namespace
	bytes uint64
}

// asker starts an asker, in a new pid namespace if contained, and in the agent's pid namespace if
// not.
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

// ask returns the agent's answer: "none", or the bytes by UUID as text.
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

// told returns the answer with the memory that the asker really holds, as asker.c prints it.
func (a *asker) told() string {
	hex := strings.ReplaceAll(strings.TrimPrefix(a.uuids[0], "GPU-"), "-", "")
	return fmt.Sprintf(" %s=%d", hex, a.bytes)
}

// TestEveryRegime checks that the agent reports the memory that a process in a container holds,
// whatever NVML reports in containers. The agent queries NVML on the host, for the pid that the
// kernel reports.
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
			// Two askers are process 1 of their namespaces, and the host also has a process 1.
			if askers[0].inner != 1 || askers[1].inner != 1 {
				t.Fatalf("the pids in the namespaces are %d and %d", askers[0].inner, askers[1].inner)
			}
			for i, a := range askers {
				want := ""
				if tt.known {
					want = a.told()
				}
				if got := a.ask(); got != want {
					t.Errorf("process %d got %q, want %q", i, got, want)
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

// TestWrongLists checks that questions get no answer from a driver that lists processes in a wrong format.
func TestWrongLists(t *testing.T) {
	s := newSite(t, "driver = 535.54.03\n")
	for range 2 {
		if got := s.asker(10*mib, true).ask(); got != "none" {
			t.Errorf("the process got %q", got)
		}
	}
}

// TestNVMLHangs checks that questions soon end without an answer while NVML hangs. After the hang,
// the same agent and a new agent both answer questions.
func TestNVMLHangs(t *testing.T) {
	s := newSite(t, "")
	a := s.asker(10*mib, true)
	eventually.Holds(s, patience, "it is answered", func() bool { return a.ask() == a.told() })
	s.Tool(t, "inject", "nvml-hang", "3600", s.Dir)
	for range 20 {
		begin := time.Now()
		if got := a.ask(); got != "none" {
			t.Errorf("with a driver that hangs, the process got %q", got)
		}
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("an answer took %v", took)
		}
	}
	s.Tool(t, "inject", "clear", s.Dir)
	eventually.Holds(s, patience, "it is answered again", func() bool { return a.ask() == a.told() })

	_ = s.agent.Process.Kill()
	_ = s.agent.Wait()
	if got := a.ask(); got != "none" {
		t.Errorf("without an agent, the process got %q", got)
	}
	s.startAgent()
	eventually.Holds(s, patience, "the next agent answers", func() bool { return a.ask() == a.told() })
}

// TestALostGPU checks that a new agent answers for the other GPU while a GPU is lost.
func TestALostGPU(t *testing.T) {
	s := newSite(t, "")
	a := s.asker(10*mib, true)
	s.Tool(t, "inject", "--gpu", "1", "lost", s.Dir)
	_ = s.agent.Process.Kill()
	_ = s.agent.Wait()
	s.startAgent()
	eventually.Holds(t, patience, "it gets the memory of the GPU that answers", func() bool { return a.ask() == a.told() })
}

// TestOneGPUHangs checks that the answer covers a GPU that works while another GPU hangs.
func TestOneGPUHangs(t *testing.T) {
	s := newSite(t, "")
	a := s.asker(10*mib, true)
	eventually.Holds(s, patience, "it is answered", func() bool { return a.ask() == a.told() })
	s.Tool(t, "inject", "--gpu", "1", "nvml-hang", "3600", s.Dir)
	eventually.Holds(s, patience, "it gets the memory of the GPU that answers", func() bool { return a.ask() == a.told() })
}

// TestAFlood checks that containers that flood the agent cause a bounded number of driver queries,
// and that another container gets some answers.
func TestAFlood(t *testing.T) {
	s := newSite(t, "nvml_processes = 2ms\n")
	a := s.asker(10*mib, true)
	eventually.Holds(s, patience, "it is answered", func() bool { return a.ask() == a.told() })
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
		t.Error("a process beside a flood gets no answer")
	}
	// Each of two GPUs takes a query of 2 ms, a pause of 2 ms, and two calls for a list.
	if most := uint64(took/(4*time.Millisecond)) * 2 * 2; calls > most {
		t.Errorf("%d calls of NVML in %v, want at most %d", calls, took, most)
	}
}

// agentCalls returns the number of the agent's calls of NVML.
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
