// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// promises are the promises that must never be broken, by their names in the counts.
var promises = []string{"over", "unlimited", "oversold", "disturbed", "leaked", "promise", "failed", "recovered",
	"run", "slow", "delayed", "metrics", "grown"}

// counts are numbers by group and name.
type counts struct {
	mu sync.Mutex
	n  map[string]map[string]int
	// containers are all containers that the test has seen, by the runtime's id.
	containers map[string]bool
	once       map[string]bool
}

func newCounts() *counts {
	c := &counts{n: map[string]map[string]int{"broken": {}}, containers: map[string]bool{}, once: map[string]bool{}}
	for _, p := range promises {
		c.n["broken"][p] = 0
	}
	return c
}

func (c *counts) add(group, name string) { c.addN(group, name, 1) }

func (c *counts) addN(group, name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n[group] == nil {
		c.n[group] = map[string]int{}
	}
	c.n[group][name] += n
}

// container records that a watcher has seen a container.
func (c *counts) container(id, how string) {
	c.mu.Lock()
	fresh := !c.containers[id]
	c.containers[id] = true
	c.mu.Unlock()
	if fresh {
		c.add("containers, by the watcher that saw them first", how)
	}
}

// addOnce counts each culprit once.
func (c *counts) addOnce(group, culprit string) {
	c.mu.Lock()
	fresh := !c.once[group+culprit]
	c.once[group+culprit] = true
	c.mu.Unlock()
	if fresh {
		c.add("hostile", group)
	}
}

func (c *counts) sum(group string) (sum int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.n[group] {
		sum += n
	}
	return sum
}

func (c *counts) get(group, name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[group][name]
}

// summary is the result of a run.
type summary struct {
	Commit     string                    `json:"commit"`
	Date       string                    `json:"date"`
	Machine    string                    `json:"machine"`
	Seed       uint64                    `json:"seed"`
	Seconds    int                       `json:"seconds"`
	CPUSeconds int                       `json:"cpu_seconds"` // of the whole node
	Containers int                       `json:"containers_created"`
	Kills      int                       `json:"kills"`
	Broken     int                       `json:"promises_broken"`
	Counts     map[string]map[string]int `json:"counts"`
	Hostile    measured                  `json:"hostile"`
}

func (w *world) summarize() {
	w.Helper()
	commit, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
	s := summary{
		Commit:     strings.TrimSpace(string(commit)),
		Date:       w.begin.UTC().Format(time.RFC3339),
		Machine:    fmt.Sprintf("simulated GPUs, %d cores", runtime.NumCPU()),
		Seed:       w.seed,
		Seconds:    int(w.spent.Seconds()),
		CPUSeconds: cpuSeconds(),
		Containers: len(w.count.containers),
		Kills:      w.count.sum("kills"),
		Broken:     w.count.sum("broken"),
		Counts:     w.count.n,
		Hostile:    w.results.all(),
	}
	w.print(s)
	line, err := json.Marshal(s)
	if err != nil {
		w.Error(err)
		return
	}
	fmt.Println(string(line))
	if *output != "" {
		if err := os.WriteFile(*output, append(line, '\n'), 0o644); err != nil {
			w.Error(err)
		}
	}
	// A run without kills or without checks has no meaning.
	if s.Kills == 0 || s.Containers == 0 || w.count.get("looks", "memory") == 0 || w.count.get("fills", "refused") == 0 {
		w.Errorf("%d kills, %d containers: that was no chaos", s.Kills, s.Containers)
	}
}

// cpuSeconds returns the processor time of all processes of the node, or 0 if the kernel does not
// report it.
func cpuSeconds() int {
	raw, err := os.ReadFile("/sys/fs/cgroup/cpuacct" + cgroupOfNode + "cpuacct.usage")
	if err == nil {
		n, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
		return int(time.Duration(n).Seconds())
	}
	raw, _ = os.ReadFile("/sys/fs/cgroup" + cgroupOfNode + "cpu.stat")
	for line := range strings.Lines(string(raw)) {
		if text, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			return int(n / 1e6)
		}
	}
	return 0
}

func (w *world) print(s summary) {
	fmt.Printf("\n%d s, seed %d, %s: %d containers created, %d kills, %d promises broken\n\n",
		s.Seconds, s.Seed, s.Machine, s.Containers, s.Kills, s.Broken)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, group := range slices.Sorted(maps.Keys(s.Counts)) {
		for _, name := range slices.Sorted(maps.Keys(s.Counts[group])) {
			fmt.Fprintf(table, "%s\t%s\t%d\n", group, name, s.Counts[group][name])
		}
	}
	_ = table.Flush()
	s.Hostile.print()
	fmt.Println()
}
