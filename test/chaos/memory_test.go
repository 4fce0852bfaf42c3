// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

const memoryInterval = 25 * time.Millisecond

// watchMemory continuously queries the simulator for the memory that live processes hold and ended
// processes held.
func (w *world) watchMemory(ctx context.Context) {
	judge, err := oracle.Open(filepath.Join(w.Cluster.Root(), "dev", "gpusim"))
	if err != nil {
		w.Error(err)
		return
	}
	defer judge.Close()
	past := map[string]bool{}
	for n := 0; loop.Sleep(ctx, memoryInterval); n++ {
		w.checkHeld(judge)
		// The simulator keeps the last thousand processes.
		if n%20 == 0 {
			w.checkPast(judge, past)
		}
	}
}

// checkHeld sums the memory that the processes of each container hold.
func (w *world) checkHeld(judge *oracle.Oracle) {
	processes, err := judge.Processes()
	if err != nil {
		w.Error(err)
		return
	}
	w.count.add("looks", "memory")
	held := map[string]map[string]uint64{}
	of := map[string]process{}
	for _, one := range processes {
		p, ok := w.scanner.find(one.Pid)
		if !ok {
			continue // known after the scanner's next scan
		}
		of[p.id] = p
		for _, use := range one.GPUs {
			if held[p.id] == nil {
				held[p.id] = map[string]uint64{}
			}
			held[p.id][use.UUID] += use.Bytes
		}
	}
	for id, byGPU := range held {
		for uuid, bytes := range byGPU {
			switch p := of[id]; {
			case bytes <= p.bytes:
			case w.isHostile(p.subject):
				w.count.addOnce("hostile containers that hold more than their part", id)
			default:
				w.brokenOnce("over", id, "container %s (%s) holds %d bytes of %s, %d more than its limit", p.where(), id[:12], bytes, uuid, bytes-p.bytes)
			}
		}
	}
}

// checkPast judges ended processes, however short-lived, by the host name that the test has set.
func (w *world) checkPast(judge *oracle.Oracle, past map[string]bool) {
	finished, err := judge.Finished()
	if err != nil {
		w.Error(err)
		return
	}
	for _, one := range finished {
		key := fmt.Sprintf("%s %d %d", one.Hostname, one.SelfPid, one.Start)
		subject := w.subjects.get(one.Hostname)
		if past[key] || subject == nil {
			continue
		}
		past[key] = true
		w.count.add("processes", "ended, that used a GPU")
		for _, use := range one.GPUs {
			if use.PeakBytes > subject.most && !subject.hostile {
				w.broken("over", "a process of %s held %d bytes of %s, %d more than any of its containers may", one.Hostname, use.PeakBytes, use.UUID, use.PeakBytes-subject.most)
			}
		}
	}
}

// fillResult is the output of the workload fill.
type fillResult struct {
	Granted uint64 `json:"granted_bytes"`
	Total   uint64 `json:"total_mem_seen"`
	Outcome string `json:"outcome"`
	Code    int    `json:"error_code"`
	line    string
}

// watchLogs reads the output of containers from kubelet's files, which needs no running component.
func (w *world) watchLogs(ctx context.Context) {
	read := map[string]bool{}
	attacks := attackLog{}
	for loop.Sleep(ctx, time.Second) {
		attacks.read(w)
		// The pattern is valid, and an invalid pattern is the only error.
		files, _ := filepath.Glob(filepath.Join(w.Cluster.StateDir, "logs/pods/*/*/*.log"))
		for _, file := range files {
			if !read[file] && !strings.Contains(file, "/"+hostilePrefix) {
				read[file] = w.readLog(file)
			}
		}
	}
}

// readLog judges a container's output once the container has printed it.
func (w *world) readLog(file string) (done bool) {
	content, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	var m mark
	for line := range strings.Lines(string(content)) {
		// Time, stream and a flag precede the output.
		parts := strings.SplitN(strings.TrimSpace(line), " ", 4)
		if len(parts) < 4 {
			continue
		}
		if found, ok := parseMark(parts[3]); ok {
			m = found
		}
		var result fillResult
		if strings.HasPrefix(parts[3], "{") && json.Unmarshal([]byte(parts[3]), &result) == nil && m.bytes > 0 {
			result.line = parts[3]
			w.judgeFill(m, result)
			return true
		}
	}
	return false
}

// judgeFill checks that a container gets its allocation, and no more.
func (w *world) judgeFill(m mark, result fillResult) {
	w.count.add("fills", cmp.Or(result.Outcome, "could not begin"))
	least := m.bytes - contextBytes - m.bytes/100
	switch {
	case result.Outcome == "" && strings.Contains(result.line, "libcuda"):
		w.count.add("started blind", "found no driver")
	case result.Code == notPermitted && w.full.recently():
		w.count.add("fills", "refused CUDA while /run was full")
	case result.Outcome != "refused" && w.faults.recently():
		w.count.add("fills", "failed while a GPU failed")
	case result.Outcome != "refused":
		w.broken("failed", "%s could not fill: %s", m.where(), result.line)
	case result.Total != m.bytes:
		w.broken("promise", "%s saw a GPU of %d bytes, and requests %d", m.where(), result.Total, m.bytes)
	case result.Granted < least || result.Granted > m.bytes:
		w.broken("promise", "%s was granted %d bytes, and requests %d", m.where(), result.Granted, m.bytes)
	}
}

// notPermitted is the result of cuInit if the usage page has no room for a process. A process
// without a slot would have no limit.
const notPermitted = 800

// faultLog records the time of the last failure.
type faultLog struct {
	mu   sync.Mutex
	last time.Time
}

func (f *faultLog) note() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = time.Now()
}

// recently reports whether a recent fault explains a program's failure.
func (f *faultLog) recently() bool { return f.within(30 * time.Second) }

func (f *faultLog) within(d time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Since(f.last) < d
}
