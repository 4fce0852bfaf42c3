// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// report is the part of the workload storm's output that the test sums.
type report struct {
	Takes    map[string]uint64 `json:"takes"`
	Frees    uint64            `json:"frees"`
	Refusals uint64            `json:"refusals"`
	Forks    uint64            `json:"forks"`
	Execs    uint64            `json:"execs"`
	Outcome  string            `json:"outcome"`
}

// tally counts the outcomes of the processes of one place in the storm.
type tally struct {
	kills, ends int
	reports     []report
	problems    []string
}

// place keeps one process of the storm running until the end. Each process runs for a random time.
// place then kills the process, or the process has ended by itself.
type place struct {
	*machine
	number  int
	random  *rand.Rand
	end     time.Time
	command func(args ...string) *exec.Cmd
	tally   tally
}

func (p *place) run() {
	for time.Now().Before(p.end) && len(p.tally.problems) == 0 {
		if p.random.IntN(4) == 0 {
			p.live()
		} else {
			p.die()
		}
	}
}

// start starts a process of 64 threads that would run for this long.
func (p *place) start(duration time.Duration) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer, error) {
	cmd := p.command(p.workload("storm"),
		"--threads", "64",
		"--ways", p.ways,
		"--device", fmt.Sprint(p.number%gpus),
		"--seed", fmt.Sprint(p.random.Uint32()),
		"--duration", fmt.Sprint(duration.Seconds()),
		"--pause", "20000")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// Children may outlive the process, and keep the process's output open.
	cmd.WaitDelay = time.Second
	return cmd, &stdout, &stderr, cmd.Start()
}

// lifetime prefers the first moments of a process, when most claims are still pending.
func (p *place) lifetime() time.Duration {
	longest := []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second}[p.random.IntN(3)]
	return time.Duration(p.random.Int64N(int64(longest)))
}

// die starts a process and kills it at a random moment.
func (p *place) die() {
	// The process ends even if this test is killed.
	cmd, _, stderr, err := p.start(time.Until(p.end) + patience)
	if err != nil {
		p.problem("start: %v", err)
		return
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
		p.problem("the process ended by itself, %v:\n%s", cmd.ProcessState, stderr)
		return
	case <-time.After(min(p.lifetime(), time.Until(p.end))):
	}
	_ = cmd.Process.Kill()
	p.tally.kills++
	select {
	case <-ended:
	case <-time.After(patience):
		p.problem("the killed process has not ended:\n%s", threadsOf(cmd.Process.Pid))
	}
}

// live starts a process that must end by itself in time.
func (p *place) live() {
	duration := 200*time.Millisecond + time.Duration(p.random.Int64N(int64(2*time.Second)))
	cmd, stdout, stderr, err := p.start(duration)
	if err != nil {
		p.problem("start: %v", err)
		return
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-time.After(duration + patience):
		waits := threadsOf(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		p.problem("%s after its time it still ran, and was killed (%v):\n%s", patience, <-ended, waits)
		return
	}
	var r report
	if err != nil || json.Unmarshal(stdout.Bytes(), &r) != nil {
		p.problem("%v: %s%s", err, stdout, stderr)
		return
	}
	p.tally.ends++
	p.tally.reports = append(p.tally.reports, r)
}

func (p *place) problem(format string, args ...any) {
	p.tally.problems = append(p.tally.problems, fmt.Sprintf("process %d: ", p.number)+fmt.Sprintf(format, args...))
}

// threadsOf returns the places at which the threads of a hanging process wait.
func threadsOf(pid int) string {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return err.Error()
	}
	var lines strings.Builder
	for _, task := range tasks {
		wchan, _ := os.ReadFile(filepath.Join(task, "wchan"))
		call, _ := os.ReadFile(filepath.Join(task, "syscall"))
		fmt.Fprintf(&lines, "  %s in %s: %s\n", filepath.Base(task), wchan, strings.TrimSpace(string(call)))
	}
	return lines.String()
}
