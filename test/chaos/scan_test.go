// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

const (
	scanInterval = 150 * time.Millisecond
	// cgroupOfNode is a part of the cgroup paths of all of the node's processes.
	cgroupOfNode = "/nri-vgpu-clusters/" + name + "/"
	// pageInContainer is the path of the limits page in a container.
	pageInContainer = "/run/nri-vgpu/limits"
	simulatedGPU    = "/dev/gpusim/gpu"
)

// process is the marked process of a container on the machine.
type process struct {
	mark
	pid      int
	id       string // the runtime's id of the container
	pod      string // the pod's UID in the runtime
	promised map[string]uint64
}

// scanner finds the containers' processes among all processes of the machine, and judges a process
// when the scanner first sees the process.
type scanner struct {
	*world

	mu      sync.Mutex
	foreign map[int]bool // in no container, or not marked
	young   map[int]int  // how often a process was seen without a mark
	known   map[int]*process
	homes   map[string]string // subject/container → first id of the steady container
	killed  map[int]bool      // killed by the test
	started map[string]bool   // containers that kubelet has reported as running
	met     map[string]time.Time
}

func newScanner(w *world) *scanner {
	return &scanner{world: w, foreign: map[int]bool{}, young: map[int]int{}, known: map[int]*process{},
		homes: map[string]string{}, killed: map[int]bool{}, started: map[string]bool{}, met: map[string]time.Time{}}
}

func (s *scanner) run(ctx context.Context) {
	for loop.Sleep(ctx, scanInterval) {
		s.scan()
	}
}

func (s *scanner) scan() {
	s.mu.Lock()
	defer s.mu.Unlock()
	present := map[int]bool{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		s.Error(err)
		return
	}
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			present[pid] = true
		}
	}
	for pid := range s.foreign {
		if !present[pid] {
			delete(s.foreign, pid)
		}
	}
	for pid, p := range s.known {
		if !present[pid] {
			delete(s.known, pid)
			s.ended(p)
		}
	}
	for pid := range present {
		if !s.foreign[pid] && s.known[pid] == nil {
			s.meet(pid)
		}
	}
	s.count.add("looks", "processes")
	s.checkPromises()
}

// unmarkedLooks is the number of scans after which a process of a pod, such as a pause process,
// counts as unmarked. Until then the process may be runc.
const unmarkedLooks = 40

// meet inspects an unknown process.
func (s *scanner) meet(pid int) {
	pod, id, ours := containerOf(pid)
	if !ours {
		s.foreign[pid] = true
		return
	}
	m, ok := markOf(pid)
	if !ok {
		if s.young[pid]++; s.young[pid] >= unmarkedLooks {
			delete(s.young, pid)
			s.foreign[pid] = true
		}
		return
	}
	delete(s.young, pid)
	p := &process{mark: m, pid: pid, id: id, pod: pod}
	s.count.container(id, "the process list")
	switch err := s.judge(p); {
	case err == nil || !alive(pid):
	case p.gpus > 0 && s.isHostile(p.subject):
		s.count.addOnce("hostile containers without their requested limits", id)
	default:
		s.broken("unlimited", "container %s (%s), process %d: %v", p.where(), id[:12], pid, err)
	}
	s.known[pid] = p
	if _, again := s.met[p.subject]; !again {
		s.met[p.subject] = time.Now()
	}
	s.home(p)
}

// judge returns an error if a container was created incorrectly.
func (s *scanner) judge(p *process) error {
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.pid))
	if err != nil {
		return err
	}
	p.promised = map[string]uint64{}
	for _, index := range shownGPUs(string(mounts)) {
		p.promised[s.UUIDs[index]] = p.bytes
	}
	switch {
	case p.gpus == 0 && len(p.promised) > 0:
		return fmt.Errorf("the container requests no GPU, and sees %v", p.promised)
	case p.blind() && s.isHostile(p.subject):
		return nil
	case p.blind():
		s.count.add("started blind", "requests a GPU, and got none")
		return nil
	case len(p.promised) != p.gpus:
		return fmt.Errorf("the container requests %d GPUs, and sees %v", p.gpus, p.promised)
	case p.gpus == 0 || p.bytes == gpuMemory:
		return nil // no limits, or all of its GPUs
	}
	devices, err := limits.Read(fmt.Sprintf("/proc/%d/root%s", p.pid, pageInContainer))
	if err != nil {
		return err
	}
	held := map[string]uint64{}
	for _, d := range devices {
		held[d.UUID] = d.MemoryBytes
	}
	if !maps.Equal(held, p.promised) {
		return fmt.Errorf("the container has the limits %v, and requests %v", held, p.promised)
	}
	return nil
}

// metAt returns the time at which the scanner first saw a process of a subject.
func (s *scanner) metAt(subject string) (at time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok = s.met[subject]
	return at, ok
}

// isHostile reports whether the subject belongs to a hostile tenant.
func (w *world) isHostile(subject string) bool {
	one := w.subjects.get(subject)
	return one != nil && one.hostile
}

// blind reports whether a container requests GPUs and has none. The container's pod was bound to
// the node while the agent was down, and the image names no GPU. The container fails, and affects
// no other container.
func (p *process) blind() bool { return p.gpus > 0 && len(p.promised) == 0 }

// shownGPUs returns the simulated GPUs of a container, by index.
func shownGPUs(mounts string) []int {
	var indices []int
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if number, ok := strings.CutPrefix(fields[4], simulatedGPU); ok {
			if index, err := strconv.Atoi(number); err == nil && index < gpus {
				indices = append(indices, index)
			}
		}
	}
	return indices
}

// checkPromises checks that the allocations of living containers fit into each GPU.
func (s *scanner) checkPromises() {
	sum := map[string]uint64{}
	seen := map[string]bool{}
	var who []string
	for _, p := range s.known {
		if seen[p.id] || !alive(p.pid) {
			continue
		}
		seen[p.id] = true
		for uuid, bytes := range p.promised {
			sum[uuid] += bytes
			who = append(who, fmt.Sprintf("%s: %d MiB of %s", p.where(), bytes/mib, uuid))
		}
	}
	for uuid, bytes := range sum {
		if bytes > gpuMemory {
			slices.Sort(who)
			s.brokenOnce("oversold", uuid+strings.Join(who, ""), "GPU %s of %d MiB has allocations of %d MiB: %s", uuid, gpuMemory/mib, bytes/mib, strings.Join(who, ", "))
		}
	}
}

// runs records that a container has started. Before the start is complete, a kill of kubelet or
// containerd ends the start, which is not a disturbance.
func (s *scanner) runs(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started[id] = true
}

// ended judges a process that has ended.
func (s *scanner) ended(p *process) {
	if s.killed[p.pid] {
		delete(s.killed, p.pid)
		return
	}
	if p.blind() {
		return
	}
	one := s.subjects.get(p.subject)
	started := s.started[p.id] || one != nil && one.steady
	if p.eternal && started && one != nil && !one.ordered.Load() {
		s.broken("disturbed", "process %d of %s has ended without a signal from the test", p.pid, p.where())
	}
}

// home records the container of a steady pod, which must not change.
func (s *scanner) home(p *process) {
	one := s.subjects.get(p.subject)
	if one == nil || !one.steady || !p.eternal {
		return
	}
	first, ok := s.homes[p.where()]
	if !ok {
		s.homes[p.where()] = p.id
	} else if first != p.id {
		s.broken("disturbed", "steady container %s was %s and is %s", p.where(), first, p.id)
	}
}

// steadyContainers is the number of containers that hold memory or idle without end.
const steadyContainers = 8

// steadyRuns returns nil if all steady containers run.
func (s *scanner) steadyRuns() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.homes) != steadyContainers {
		return fmt.Errorf("%d of %d steady containers run: %v", len(s.homes), steadyContainers, s.homes)
	}
	return nil
}

// others returns the subjects with processes, except the steady subjects.
func (s *scanner) others() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, p := range s.known {
		if one := s.subjects.get(p.subject); one == nil || !one.steady {
			names = append(names, p.where())
		}
	}
	return names
}

// find returns the process with this id.
func (s *scanner) find(pid int) (process, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.known[pid]
	if p == nil {
		return process{}, false
	}
	// A process of another container may have got the pid since the last scan.
	if _, id, ours := containerOf(pid); ours && id != p.id {
		return process{}, false
	}
	return *p, true
}

// containerOf returns the container of a process if the container belongs to the node.
func containerOf(pid int) (pod, id string, ok bool) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", "", false
	}
	for line := range strings.Lines(string(raw)) {
		path := strings.TrimSpace(line)
		if strings.Contains(path, cgroupOfNode) && strings.Contains(path, "/pod") {
			pod = strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "pod")
			return pod, filepath.Base(path), len(filepath.Base(path)) == 64
		}
	}
	return "", "", false
}

// markOf returns the mark of a process that is no longer runc.
func markOf(pid int) (mark, bool) {
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || bytes.HasPrefix(comm, []byte("runc")) {
		return mark{}, false
	}
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return mark{}, false
	}
	for variable := range bytes.SplitSeq(environment, []byte{0}) {
		if text, ok := bytes.CutPrefix(variable, []byte(markVariable+"=")); ok {
			return parseMark(string(text))
		}
	}
	return mark{}, false
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	_, after, _ := bytes.Cut(stat, []byte(") "))
	return len(after) > 0 && after[0] != 'Z' && after[0] != 'X'
}

// pick returns a container's process that the test may kill.
func (s *scanner) pick(r *rand.Rand) (process, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*process
	for _, pid := range slices.Sorted(maps.Keys(s.known)) {
		one := s.subjects.get(s.known[pid].subject)
		if one != nil && !one.steady && s.known[pid].eternal {
			all = append(all, s.known[pid])
		}
	}
	if len(all) == 0 {
		return process{}, false
	}
	p := all[r.IntN(len(all))]
	s.killed[p.pid] = true
	return *p, true
}

// promised returns the allocations of the running containers, by GPU.
func (s *scanner) promised() map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := map[string]uint64{}
	seen := map[string]bool{}
	for _, p := range s.known {
		if seen[p.id] {
			continue
		}
		seen[p.id] = true
		for uuid, bytes := range p.promised {
			sum[uuid] += bytes
		}
	}
	return sum
}

// steadyPods returns the UIDs of the steady pods, as the runtime knows them.
func (s *scanner) steadyPods() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	uids := map[string]bool{}
	for _, p := range s.known {
		if one := s.subjects.get(p.subject); one != nil && one.steady {
			uids[p.pod] = true
		}
	}
	return uids
}
