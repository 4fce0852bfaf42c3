// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
)

// look is an observation at one moment.
type look struct {
	at        time.Time
	processes []oracle.Process
	usage     limits.Usage
}

// watcher queries the oracle every millisecond.
type watcher struct {
	*machine
	stop, done chan struct{}
	began      time.Time
	samples    int
	// seen is the most memory that processes together held in an observation, by GPU. seen may
	// count memory twice that one process freed and another process got during an observation.
	seen [gpus]uint64
	over [gpus]bool
	last []look // for explaining a failure
}

// lastLooks is the number of observations that the watcher keeps.
const lastLooks = 12

func (m *machine) watch() *watcher {
	w := &watcher{machine: m, stop: make(chan struct{}), done: make(chan struct{}), began: time.Now()}
	go func() {
		defer close(w.done)
		for {
			select {
			case <-w.stop:
				return
			case <-time.After(time.Millisecond):
				w.look()
			}
		}
	}()
	return w
}

// end stops the watcher. The caller may read the watcher's findings afterwards.
func (w *watcher) end() {
	close(w.stop)
	<-w.done
}

func (w *watcher) look() {
	processes, err := w.oracle.Processes()
	if err != nil {
		w.Error(err)
		return
	}
	// The page only helps to explain the oracle's findings, and may be too busy to be read.
	usage, err := limits.ReadUsage(filepath.Join(w.groupDir(), limits.UsageFile))
	if err != nil && !errors.Is(err, limits.ErrBusy) {
		w.Error(err)
		return
	}
	w.samples++
	w.last = append(w.last, look{time.Now(), processes, usage})
	if len(w.last) > lastLooks {
		w.last = w.last[1:]
	}
	var sums [gpus]uint64
	for _, p := range processes {
		for _, use := range p.GPUs {
			sums[use.Index] += use.Bytes
		}
	}
	for gpu, peak := range w.peaks() {
		w.seen[gpu] = max(w.seen[gpu], sums[gpu])
		if peak > limit && !w.over[gpu] {
			w.over[gpu] = true
			w.Errorf("GPU %d: %d bytes are held, %d over the limit, at look %d:\n%s", gpu, peak, peak-limit, w.samples, w.story(gpu))
		}
	}
}

// story returns the last observations of a GPU: the memory that each process physically held, and
// the content of the usage page.
func (w *watcher) story(gpu int) string {
	var lines strings.Builder
	for _, l := range w.last {
		fmt.Fprintf(&lines, "  %.4fs", l.at.Sub(w.began).Seconds())
		claims := map[int]uint64{}
		for _, p := range l.usage.Processes {
			claims[int(p.PID)] = p.Devices[gpu].UsedBytes + p.Devices[gpu].PendingBytes
		}
		for _, p := range l.processes {
			for _, use := range p.GPUs {
				if use.Index == gpu {
					fmt.Fprintf(&lines, "  %d: %d", p.Pid, use.Bytes)
				}
			}
			if claim, ok := claims[p.Pid]; ok && claim > 0 {
				fmt.Fprintf(&lines, " (page %d)", claim)
			}
			delete(claims, p.Pid)
		}
		for pid, claim := range claims {
			if claim > 0 {
				fmt.Fprintf(&lines, "  %d: only page %d", pid, claim)
			}
		}
		lines.WriteString("\n")
	}
	return lines.String()
}
