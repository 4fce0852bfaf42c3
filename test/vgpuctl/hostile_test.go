// SPDX-License-Identifier: Apache-2.0

package vgpuctl

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/timed"
)

const (
	// disturbed is the number of points that a container's share may lose or gain by another
	// container's attacks.
	disturbed = 2.0
	// agentMemory bounds the agent's resident memory during the attacks, in bytes.
	agentMemory = 50 << 20
)

// agent starts the real agent, without runtime and API server. agent returns the command and the
// directory of the agent's runtime files.
func (m *machine) agent() (cmd *exec.Cmd, runDir string) {
	m.Helper()
	dir, err := os.MkdirTemp("", "agent") // a socket's path is short
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { os.RemoveAll(dir) })
	runDir = filepath.Join(dir, "run")
	files := map[string]string{
		"config.toml": fmt.Sprintf(`driver.nvml_library = "%s/gpusim/libnvidia-ml.so.1"
injection = {cdi_spec_dirs = ["%s"], cdi_output_dir = "%[2]s"}
nri.socket_path = "%[2]s/nri.sock"
paths = {install_dir = "%[2]s", run_dir = "%s", state_dir = "%[2]s/state"}
http = {address = "127.0.0.1:0", probe_address = "127.0.0.1:0"}
`, m.build, dir, runDir),
		"kubeconfig": `{apiVersion: v1, kind: Config, current-context: c, users: [{name: u}],
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c, user: u}}]}`,
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			m.Fatal(err)
		}
	}
	cmd = exec.Command(filepath.Join(m.build, "bin/nri-vgpu"), "--node-name", "n",
		"--config", filepath.Join(dir, "config.toml"), "--kubeconfig", filepath.Join(dir, "kubeconfig"))
	cmd.Env = slices.Clone(m.env)
	cmd.Stderr = os.Stderr
	m.start(cmd)
	eventually.Holds(m, patience, "the agent's socket is there", func() bool { _, err := os.Stat(paths.AgentSocket(runDir)); return err == nil })
	return cmd, runDir
}

// resident returns a process's peak resident memory, in bytes.
func (m *machine) resident(pid int) int64 {
	m.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		m.Fatalf("the agent has ended: %v", err)
	}
	var kib int64
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		m.Fatal(err)
	}
	return kib << 10
}

// TestHostileClients checks that hostile clients change neither the shares of other clients nor the
// agent's memory. Some clients send garbage to the agent's socket, hold thousands of connections
// open, or flood the socket from short-lived processes. Other clients forge their own usage page.
func TestHostileClients(t *testing.T) { timed.Run(t, testHostileClients) }

func testHostileClients(t testing.TB) {
	m := newMachine(t)
	agent, runDir := m.agent()
	o := m.oracle()
	m.start(m.command("run", "--group", "hostile", "--memory", "1Gi", "--", "sleep", "3600"))
	var victims []int
	for _, cores := range []string{"30", "50"} {
		cmd := m.command("run", "--cores", cores, "--", m.workload("spin"), "--kernel-us", "2000", "--duration", "3600")
		victims = append(victims, m.start(cmd).Process.Pid)
	}
	eventually.Holds(m, patience, "the victims use the GPU", func() bool {
		times := m.gpuTime(o)
		return times[victims[0]] > 0 && times[victims[1]] > 0
	})
	share := func(meanwhile func()) (shares [2]float64) {
		from, before := time.Now(), m.gpuTime(o)
		meanwhile()
		after, passed := m.gpuTime(o), time.Since(from)
		for i, pid := range victims {
			shares[i] = 100 * float64(after[pid]-before[pid]) / float64(passed.Nanoseconds())
		}
		return shares
	}
	time.Sleep(2 * time.Second) // the first moments do not count
	peace := share(func() { time.Sleep(3 * time.Second) })
	t.Logf("in peace the victims have %.1f %%, the agent %.1f MiB", peace, float64(m.resident(agent.Process.Pid))/(1<<20))
	for _, hostile := range []struct{ way, duration, dir string }{
		{"fuzz", "4", runDir},
		{"flood", "4", runDir},
		{"half-open", "8", runDir},
		{"forge", "4", filepath.Join(m.runs, "nri-vgpu/hostile")},
	} {
		var said string
		war := share(func() {
			said = m.finish(0, exec.Command(m.workload("pester"), "--way", hostile.way, "--dir", hostile.dir, "--connections", "10000", "--duration", hostile.duration))
		})
		var did struct {
			Made    int `json:"connections_made"`
			Refused int `json:"connections_refused"`
		}
		if err := json.Unmarshal([]byte(said), &did); err != nil || hostile.way != "forge" && did.Made+did.Refused < 10000 {
			t.Errorf("%s: it tried no 10,000 connections: %s%v", hostile.way, said, err)
		}
		resident := m.resident(agent.Process.Pid)
		t.Logf("%s: the victims have %.1f %%, the agent %.1f MiB; %s", hostile.way, war, float64(resident)/(1<<20), said)
		for i := range war {
			if math.Abs(war[i]-peace[i]) > disturbed {
				t.Errorf("%s: a victim has %.1f %% of the GPU's time, and %.1f %% in peace", hostile.way, war[i], peace[i])
			}
		}
		if resident > agentMemory {
			t.Errorf("%s: the agent takes %d bytes", hostile.way, resident)
		}
	}
}
