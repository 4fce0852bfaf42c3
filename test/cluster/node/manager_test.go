// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// newTestManager serves a manager of the components on a control socket.
func newTestManager(t *testing.T, components ...Component) (*manager, *Client) {
	t.Helper()
	dir, err := os.MkdirTemp("", "m") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, logDir), 0o755); err != nil {
		t.Fatal(err)
	}
	m := newManager(Spec{StateDir: dir, Components: components})
	if err := serveControl(filepath.Join(dir, controlFile), m); err != nil {
		t.Fatal(err)
	}
	return m, NewClient(dir)
}

// served listens on a socket, so that running components with this probe count as ready.
func served(t *testing.T) Probe {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close(); os.RemoveAll(dir) })
	return Probe{Socket: listener.Addr().String()}
}

// waitState waits until a component is in a state.
func waitState(t *testing.T, c *Client, name string, want State) Status {
	t.Helper()
	var last Status
	eventually.Succeeds(t, 10*time.Second, fmt.Sprintf("%s is %s", name, want), func(ctx context.Context) error {
		all, err := c.Components(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.Name == name {
				last = s
			}
		}
		if last.State != want {
			return fmt.Errorf("the component is %+v", last)
		}
		return nil
	})
	return last
}

func TestManager(t *testing.T) {
	ready := served(t)
	starts := filepath.Join(t.TempDir(), "starts")
	m, c := newTestManager(t,
		Component{
			Name: "ends once", Ready: ready, Restart: true,
			Args: []string{"sh", "-c", "echo >>" + starts + "; [ $(wc -l <" + starts + ") -gt 1 ] && exec sleep 3600; exit 1"},
		},
		Component{Name: "second", Args: []string{"sleep", "3600"}, After: []string{"first"}, Ready: ready},
		Component{Name: "first", Args: []string{"sleep", "3600"}, Ready: ready},
		Component{Name: "fails", Args: []string{"sh", "-c", "echo why; exit 3"}, Ready: Probe{Socket: "/does/not/exist"}},
		Component{Name: "never", Args: []string{"sleep", "3600"}, After: []string{"fails"}, Ready: ready},
	)
	go m.reap()
	m.startAll()
	ctx := context.Background()

	waitState(t, c, "second", Ready)
	if s := waitState(t, c, "fails", Exited); s.Detail != "exit status 3" || s.Pid != 0 {
		t.Errorf("a component that ended is %+v", s)
	}
	if content, err := os.ReadFile(LogFile(m.stateDir, "fails")); err != nil || string(content) != "why\n" {
		t.Errorf("the component's log has %q, %v", content, err)
	}
	waitState(t, c, "never", Waiting)

	before := waitState(t, c, "first", Ready)
	if err := c.Restart(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	if after := waitState(t, c, "first", Ready); after.Pid == before.Pid {
		t.Error("a restart left the process")
	}
	if err := c.Signal(ctx, "first", syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if s := waitState(t, c, "first", Exited); s.Detail != "signal: SIGKILL" {
		t.Errorf("a killed component is %+v", s)
	}
	for _, stopped := range []string{"first", "second"} {
		if err := c.Stop(ctx, stopped); err != nil {
			t.Fatal(err)
		}
		waitState(t, c, stopped, Stopped)
	}
	if err := c.Start(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(ctx, "first"); err == nil || !strings.Contains(err.Error(), "runs already") {
		t.Errorf("a second start: %v", err)
	}
	if err := c.Stop(ctx, "nonesuch"); err == nil || !strings.Contains(err.Error(), "first") {
		t.Errorf("error %v does not list the components", err)
	}
	if err := c.Stop(ctx, "first"); err != nil {
		t.Fatal(err)
	}
	checkRestart(t, c, starts)
}

// checkRestart checks that a component that ended by itself restarts, and that a killed component
// does not restart.
func checkRestart(t *testing.T, c *Client, starts string) {
	t.Helper()
	const name = "ends once"
	eventually.Holds(t, 10*time.Second, "a component that ended by itself is started anew", func() bool {
		content, _ := os.ReadFile(starts)
		return strings.Count(string(content), "\n") == 2
	})
	waitState(t, c, name, Ready)
	if err := c.Signal(context.Background(), name, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitState(t, c, name, Exited)
	time.Sleep(restartPause + 200*time.Millisecond)
	waitState(t, c, name, Exited)
}

func TestStartNeedsHook(t *testing.T) {
	hooked = false
	if _, err := Start(t.TempDir()); err == nil || !strings.Contains(err.Error(), "Supervise") {
		t.Errorf("error %v does not name the function to call", err)
	}
}
