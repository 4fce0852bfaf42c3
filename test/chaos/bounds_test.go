// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const (
	// runSize is the node's /run, in the units of its file system's options.
	runSize, runInodes = "64m", "20000"
	// fullest is the highest allowed use of /run, in percent.
	fullest = 80
	// answerBound bounds the answer time of the agent's metrics. The agent waits for the driver for
	// at most a second.
	answerBound = 3 * time.Second
	// ended is the time within which agent, guard and patcher must release the resources that
	// tenants used.
	ended = 20 * time.Second
)

// watchRun checks the node's /run every second. watchRun subtracts the test's own files.
func (w *world) watchRun(ctx context.Context) {
	for loop.Sleep(ctx, time.Second) {
		if w.full.within(3 * time.Second) {
			continue
		}
		var s syscall.Statfs_t
		if err := syscall.Statfs(filepath.Join(w.Cluster.Root(), "run"), &s); err != nil {
			w.Error(err)
			return
		}
		bytes, inodes := percent(s.Blocks, s.Bfree), percent(s.Files, s.Ffree)
		w.count.add("looks", "/run")
		w.results.see(&w.results.RunPercent, bytes)
		w.results.see(&w.results.RunInodePercent, inodes)
		if max(bytes, inodes) > fullest && !w.full.within(3*time.Second) {
			w.brokenOnce("run", "", "the node's /run is full to %.0f %%, its inodes to %.0f %%", bytes, inodes)
		}
	}
}

func percent(all, free uint64) float64 {
	return 100 * float64(all-free) / float64(max(all, 1))
}

// watchMetrics requests the agent's metrics every second. An agent that the test may kill need not
// answer, but an answer must not be an error.
func (w *world) watchMetrics(ctx context.Context) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for loop.Sleep(ctx, time.Second) {
		calm := w.calmNow.Load()
		begin := time.Now()
		status, err := get(ctx, client, "http://"+w.Cluster.Address+":9394/metrics")
		took := time.Since(begin)
		w.count.add("looks", "metrics")
		if !calm || !w.calmNow.Load() || ctx.Err() != nil {
			if status == http.StatusInternalServerError {
				w.brokenOnce("metrics", "500", "the agent's metrics are an error")
			}
			continue
		}
		w.results.see(&w.results.MetricsSeconds, took.Seconds())
		switch {
		case err != nil:
			w.broken("metrics", "no answer after %v: %v", took, err)
		case status != http.StatusOK:
			w.broken("metrics", "the agent answers %d", status)
		case took > answerBound:
			w.broken("metrics", "the answer took %v", took)
		}
	}
}

func get(ctx context.Context, client *http.Client, url string) (status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// programs are the programs that must neither grow nor restart by themselves.
var programs = map[string][]string{
	"agent":   {"/usr/local/nri-vgpu/bin/nri-vgpu", "nri-vgpu"},
	"guard":   {"99-nri-vgpu-guard"},
	"patcher": {"extended-resource-patcher"},
}

// look contains the sizes of a program, as the kernel and the agent itself report them.
type look struct {
	pids        []int
	rss         int64
	descriptors int
	goroutines  int // of the agent
}

// These constants bound the growth from before the first attack to after the last attack. A heap
// that has grown does not return its memory to the kernel immediately.
const (
	moreRSS, moreDescriptors, moreGoroutines = 96 * mib, 16, 32
)

func (w *world) lookAtOurs() map[string]look {
	w.Helper()
	all := map[string]look{}
	for name, names := range programs {
		one := look{pids: w.pidsOf(names)}
		for _, pid := range one.pids {
			one.rss += rss(pid)
			entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
			one.descriptors += len(entries)
		}
		if name == "agent" {
			one.goroutines = w.goroutines()
		}
		all[name] = one
	}
	return all
}

// pidsOf returns the node's processes by the names of their programs.
func (w *world) pidsOf(names []string) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var pids []int
	for _, dir := range dirs {
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(string(cmdline), "\x00")
		if !slices.Contains(names, args[0]) && !slices.Contains(names, filepath.Base(args[0])) || slices.Contains(args, "install") {
			continue
		}
		cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if pid, wrong := strconv.Atoi(filepath.Base(dir)); err == nil && wrong == nil && strings.Contains(string(cgroup), cgroupOfNode) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

func rss(pid int) int64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if fields := strings.Fields(string(raw)); err == nil && len(fields) > 1 {
		pages, _ := strconv.ParseInt(fields[1], 10, 64)
		return pages * int64(os.Getpagesize())
	}
	return 0
}

// goroutines returns the number of the agent's goroutines.
func (w *world) goroutines() int {
	metrics, err := w.ask("/metrics")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(metrics) {
		if text, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(text))
			return n
		}
	}
	return 0
}

// checkOurs checks that agent, guard and patcher are the same processes after the attacks, and have
// not grown beyond the bounds.
func (w *world) checkOurs(before map[string]look) {
	w.Helper()
	var after map[string]look
	err := eventually.Check(w.Context(), ended, func() error {
		after = w.lookAtOurs()
		var errs []error
		for _, name := range slices.Sorted(maps.Keys(before)) {
			errs = append(errs, grown(name, before[name], after[name]))
		}
		return errors.Join(errs...)
	})
	for name, one := range after {
		w.log("  %s: %d MiB, %d descriptors, %d goroutines; before %d, %d, %d", name, one.rss/mib, one.descriptors, one.goroutines,
			before[name].rss/mib, before[name].descriptors, before[name].goroutines)
		w.results.growth(name, before[name], one)
	}
	if err != nil {
		w.broken("grown", "%v", err)
	}
}

func grown(name string, before, after look) error {
	switch {
	case len(before.pids) == 0:
		return fmt.Errorf("there is no %s", name)
	case !slices.Equal(before.pids, after.pids):
		return fmt.Errorf("%s was process %v and is %v", name, before.pids, after.pids)
	case after.rss > before.rss+moreRSS:
		return fmt.Errorf("%s had %d MiB and has %d", name, before.rss/mib, after.rss/mib)
	case after.descriptors > before.descriptors+moreDescriptors:
		return fmt.Errorf("%s had %d descriptors open and has %d", name, before.descriptors, after.descriptors)
	case after.goroutines > before.goroutines+moreGoroutines:
		return fmt.Errorf("%s had %d goroutines and has %d", name, before.goroutines, after.goroutines)
	}
	return nil
}

func round2(x float64) float64 { return math.Round(x*100) / 100 }
