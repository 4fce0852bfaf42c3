// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// calmDown is the time in which the programs become idle.
const calmDown = 15 * time.Second

// rest measures the costs of the idle programs.
func (n *node) rest(ctx context.Context, length time.Duration) ([]idleness, error) {
	if err := pause(ctx, calmDown); err != nil {
		return nil, err
	}
	names := []string{agentName, patcherName}
	begin, before := time.Now(), map[string]time.Duration{}
	for _, name := range names {
		used, err := cpuTime(n.programs[name].Process.Pid)
		if err != nil {
			return nil, err
		}
		before[name] = used
	}
	if err := pause(ctx, length); err != nil {
		return nil, err
	}
	var all []idleness
	for _, name := range names {
		one, err := n.idleness(name, begin, before[name])
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func (n *node) idleness(name string, begin time.Time, before time.Duration) (idleness, error) {
	pid := n.programs[name].Process.Pid
	used, err := cpuTime(pid)
	if err != nil {
		return idleness{}, err
	}
	passed := time.Since(begin)
	memory, err := memoryOf(pid)
	if err != nil {
		return idleness{}, err
	}
	requests, err := n.requests(name, begin)
	if err != nil {
		return idleness{}, err
	}
	one := idleness{
		Measure: "idle", Program: name, Seconds: passed.Round(time.Millisecond).Seconds(),
		CPUPercent:  float64((used-before)*10000/passed) / 100,
		ResidentMiB: memory["VmRSS"], PeakMiB: memory["VmHWM"], AnonMiB: memory["RssAnon"],
		Requests: requests,
	}
	for verb, count := range requests {
		if verb != "get" && verb != "list" && verb != "watch" {
			one.Writes += count
		}
	}
	return one, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// tick is the unit of times in a process's stat file on every version of Linux.
const tick = 10 * time.Millisecond

// cpuTime returns the processor time of all threads of a process.
func cpuTime(pid int) (time.Duration, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the processor time: %w", err)
	}
	// The program's name, which may contain anything, ends with the last
	// bracket. User and system time are the 12th and 13th fields after the bracket.
	fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the processor time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// memoryOf returns the sizes in a process's status file, in MiB.
func memoryOf(pid int) (map[string]float64, error) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, fmt.Errorf("read the memory: %w", err)
	}
	defer file.Close()
	sizes := map[string]float64{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if kib, ok := strings.CutSuffix(strings.TrimSpace(value), " kB"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(kib), 64)
			if err != nil {
				return nil, fmt.Errorf("read the memory: %w", err)
			}
			sizes[name] = float64(int(n/1024*10)) / 10
		}
	}
	return sizes, lines.Err()
}

// event is a request in the API server's audit log.
type event struct {
	Stage     string    `json:"stage"`
	Verb      string    `json:"verb"`
	UserAgent string    `json:"userAgent"`
	Received  time.Time `json:"requestReceivedTimestamp"`
}

// requests counts a program's requests since an instant, by verb.
func (n *node) requests(program string, since time.Time) (map[string]int, error) {
	file, err := os.Open(filepath.Join(n.cluster.Root(), auditLog))
	if err != nil {
		return nil, fmt.Errorf("read the API server's audit log: %w", err)
	}
	defer file.Close()
	counts := map[string]int{}
	ever := false
	decoder := json.NewDecoder(file)
	for decoder.More() {
		var e event
		if err := decoder.Decode(&e); err != nil {
			return nil, fmt.Errorf("read the API server's audit log: %w", err)
		}
		if !strings.HasPrefix(e.UserAgent, program+"/") {
			continue
		}
		ever = true
		// A watch counts when its response starts, because a watch may last forever.
		if begins := e.Verb == "watch"; begins != (e.Stage == "ResponseStarted") {
			continue
		}
		if e.Received.After(since) {
			counts[e.Verb]++
		}
	}
	if !ever {
		return nil, fmt.Errorf("read the API server's audit log: no request of %s: check the audit policy", program)
	}
	return counts, nil
}
