// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/store"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const (
	// killedDir and killedRound are the names of environment variables. With the variables,
	// TestAKilledAgentLosesNothing runs as the agent to kill.
	killedDir   = "NRI_VGPU_TEST_KILLED_DIR"
	killedRound = "NRI_VGPU_TEST_KILLED_ROUND"
	killedAsks  = floodAsks
)

// grantForEver creates the first containers of one pod after another, and prints each pod.
func grantForEver(t *testing.T, dir string) {
	n := newNode(t, func(n *node) {
		n.cfg.Paths.RunDir = dir
		n.cfg.Node.SlotsPerGPU = 1 << 20
	})
	for i := 0; ; i++ {
		uid := fmt.Sprint("pod-", os.Getenv(killedRound), "-", i)
		n.crowd(uid, killedAsks, 1, false)
		for k := range 2 {
			if _, err := n.ask(sandbox(uid), fmt.Sprint("c", k)); err != nil {
				t.Fatal(err)
			}
			fmt.Println("granted", uid)
		}
	}
}

// TestAKilledAgentLosesNothing kills an agent at arbitrary points. The test checks that the disk
// has either all containers of a pod or none. If the agent granted a container of a pod, the disk
// must have all containers of the pod.
func TestAKilledAgentLosesNothing(t *testing.T) {
	if dir := os.Getenv(killedDir); dir != "" {
		grantForEver(t, dir)
	}
	// The path of a socket must be short.
	dir, err := os.MkdirTemp("/dev/shm", "hook")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	granted := map[string]bool{}
	const rounds = 5
	for round := range rounds {
		agent := exec.Command(os.Args[0], "-test.run=^TestAKilledAgentLosesNothing$")
		agent.Env = append(os.Environ(), killedDir+"="+dir, fmt.Sprint(killedRound, "=", round), "TMPDIR="+dir)
		out, err := agent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		listen(t, agent, out, granted)
		checkWhole(t, filepath.Join(dir, "containers"), granted)
	}
	if len(granted) < rounds {
		t.Errorf("%d pods were granted something in %d rounds: the test tests nothing", len(granted), rounds)
	}
}

// listen kills an agent some time after its first grant, and collects the pods with a granted
// container.
func listen(t *testing.T, agent *exec.Cmd, out io.Reader, granted map[string]bool) {
	t.Helper()
	lines := bufio.NewScanner(out)
	first := true
	for lines.Scan() {
		uid, ours := strings.CutPrefix(lines.Text(), "granted ")
		if !ours {
			t.Log(lines.Text())
			continue
		}
		granted[uid] = true
		if first {
			first = false
			time.AfterFunc(10*time.Millisecond+rand.N(50*time.Millisecond), func() { _ = agent.Process.Kill() })
		}
	}
	if err := agent.Wait(); first || err == nil {
		t.Fatalf("the agent was not killed at work: %v", err)
	}
}

func checkWhole(t *testing.T, dir string, granted map[string]bool) {
	t.Helper()
	files, err := store.New(dir)
	if err != nil {
		t.Fatal(err)
	}
	allocations, errs := files.Load()
	for _, err := range errs {
		t.Error(err)
	}
	ledger := placement.New(testGPUs(), config.Default())
	count := map[string]int{}
	for _, a := range allocations {
		count[a.PodUID]++
		if err := ledger.Restore(a); err != nil {
			t.Error(err)
		}
	}
	for uid := range granted {
		if count[uid] == 0 {
			t.Errorf("pod %s was granted a container, and nothing is written", uid)
		}
	}
	for uid, n := range count {
		if n != killedAsks {
			t.Errorf("pod %s has %d written containers, want %d or none", uid, n, killedAsks)
		}
	}
}

// restartFromLastRelease writes a file for each of a pod's first containers, and none for the pod, as the
// last release did. Afterwards, the agent restarts.
func (n *node) restartFromLastRelease(uid string, containers int) {
	n.t.Helper()
	for i := range containers {
		a := placement.Allocation{
			PodUID: uid, Namespace: "ns", Pod: "pod-" + uid, Container: fmt.Sprint("c", i), Kind: "init", Position: i, Dialect: "native",
			Devices: []placement.Device{{UUID: gpuB, MemoryBytes: mib, Slots: 1}},
		}
		if err := n.hook.opts.Store.Rewrite(a); err != nil {
			n.t.Fatal(err)
		}
	}
	n.restartHook()
}

// TestFilesOfTheLastRelease checks that a pod keeps its GPU if all its files are from the last release.
func TestFilesOfTheLastRelease(t *testing.T) {
	n := newNode(t)
	n.crowd("u", 3, 1, false)
	n.restartFromLastRelease("u", 3)
	if _, err := n.ask(sandbox("u"), "c0"); err != nil {
		t.Fatal(err)
	}
	n.restartHook()
	held := n.hook.Held("u")
	for _, a := range held {
		if a.Devices[0].UUID != gpuB {
			t.Errorf("%s has moved to %s", a.Container, a.Devices[0].UUID)
		}
	}
	if len(held) != 3 {
		t.Errorf("the pod holds %d allocations, want 3", len(held))
	}
}

// TestAPodOfTheLastReleaseIsReserved checks a pod with the files of only some of its containers. Once
// the agent has placed the other containers, the agent persists all allocations of the pod.
func TestAPodOfTheLastReleaseIsReserved(t *testing.T) {
	const asks = 4
	n := newNode(t)
	n.crowd("u", asks, 1, false)
	n.restartFromLastRelease("u", 2)
	for _, name := range []string{"c0", "c2"} { // c3 has no file
		if _, err := n.ask(sandbox("u"), name); err != nil {
			t.Fatal(err)
		}
	}
	n.restartHook()
	if held := n.hook.Held("u"); len(held) != asks {
		t.Errorf("the pod holds %d allocations, want %d", len(held), asks)
	}
}

// TestWithoutItsFilesAContainerIsRefused checks that the hook creates no container whose allocation or
// whose pod's allocations it cannot write.
func TestWithoutItsFilesAContainerIsRefused(t *testing.T) {
	for name, blocked := range map[string]func(n *node) (path string, directory bool){
		"the pod's file": func(n *node) (string, bool) {
			return filepath.Join(filepath.Dir(n.containerDir("u")), "assignments.json"), true
		},
		"the container's file":   func(n *node) (string, bool) { return filepath.Join(n.containerDir("u"), "assignment.json"), true },
		"the socket's directory": func(n *node) (string, bool) { return paths.Agent(n.cfg.Paths.RunDir), false },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.pod("u", "main=1024", "side=1024")
			path, directory := blocked(n)
			if directory {
				write(t, filepath.Join(path, "in the way"), "")
			} else {
				write(t, path, "in the way")
			}
			if _, err := n.create("u"); err == nil || !strings.Contains(err.Error(), "the agent failed to write its limits") {
				t.Errorf("got %v", err)
			}
			n.wantLive()
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			mustCreate(t, n, "u")
			n.wantLive("u")
		})
	}
}

// TestTheSocketsDirectoryIsOpen checks that the processes of any user in a container reach the agent's
// socket, also if another program has removed the socket's directory.
func TestTheSocketsDirectoryIsOpen(t *testing.T) {
	defer unix.Umask(unix.Umask(0o022))
	n := newNode(t)
	n.pod("u", "main=1024")
	dir := paths.Agent(n.cfg.Paths.RunDir)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, n, "u")
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the directory has the mode %v: %v", info, err)
	}
}
