// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/cluster"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// settle repairs everything, removes all pods but the steady pods, and checks that no other state
// remains.
func (w *world) settle() {
	w.Helper()
	w.log("restoring everything")
	begin := time.Now()
	w.restore()
	// After outages of the API server these components back off ever longer. nri-vgpu cannot change
	// the back-off.
	for _, component := range []string{cluster.Scheduler, cluster.ControllerManager} {
		if err := w.Cluster.Restart(w.Context(), component); err != nil {
			w.Errorf("start %s again: %v", component, err)
		}
	}
	w.removeAll()
	for _, check := range []struct {
		what    string
		promise string
		within  time.Duration
		still   func() error
	}{
		{"the pods are gone", "recovered", patience, w.podsLeft},
		{"the agent is ready", "recovered", patience, w.agentServes},
		{"the node offers its GPUs", "recovered", patience, w.capacityIsBack},
		{"nothing is left", "leaked", freed, w.nothingLeft},
	} {
		if err := eventually.Check(w.Context(), check.within, check.still); err != nil {
			w.broken(check.promise, "%v", err)
		}
		w.log("  %v: %s", time.Since(begin).Round(100*time.Millisecond), check.what)
	}
	w.log("settled after %v", time.Since(begin).Round(time.Second))
	w.count.add("looks", "settled")
}

// restore ends all faults and restarts killed components.
func (w *world) restore() {
	w.inject("clear")
	w.emptyDisk()
	for _, t := range append([]target{agent, patcher}, nodes...) {
		w.signal(t, syscall.SIGCONT)
		if t.component == "" {
			continue
		}
		if err := w.start(t); err != nil {
			w.broken("recovered", "%s does not come back: %v", t.name, err)
		}
	}
}

func (w *world) removeAll() {
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	var all sync.WaitGroup
	for _, one := range w.subjects.remain() {
		all.Go(func() { w.remove(ctx, one) })
	}
	all.Wait()
}

func (w *world) podsLeft() error {
	names, err := w.left()
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("these pods do not end: %v", names)
	}
	if running := w.scanner.others(); err == nil && len(running) > 0 {
		err = fmt.Errorf("these containers still run: %v", running)
	}
	return err
}

func (w *world) deleteAgent(ctx context.Context) error {
	return w.Client.CoreV1().Pods(testbed.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=nri-vgpu"})
}

// agentServes returns nil if the agent is ready, and the guard runs.
func (w *world) agentServes() error {
	if _, err := w.ask("/readyz"); err != nil {
		return err
	}
	metrics, err := w.ask("/metrics")
	if err == nil && !strings.Contains(metrics, "\nnri_vgpu_guard_loaded 1") {
		err = errors.New("the agent reports that the guard is not loaded")
	}
	return err
}

// ask requests a path of the agent over HTTP.
func (w *world) ask(path string) (body string, err error) {
	err = call(func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.Cluster.Address+":9394"+path, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		content, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("the agent's %s: %s: %s", path, response.Status, strings.TrimSpace(string(content)))
		}
		body = string(content)
		return err
	})
	return body, err
}

func (w *world) capacityIsBack() error {
	return call(func(ctx context.Context) error {
		node, err := w.Node(ctx)
		if err != nil {
			return err
		}
		quantity := node.Status.Allocatable[testbed.Memory]
		if want := int64(gpus * gpuMemory / mib); quantity.Value() != want {
			return fmt.Errorf("the node offers %d MiB, want %d", quantity.Value(), want)
		}
		return nil
	})
}

// nothingLeft compares the allocations, on disk and in the agent's ledger, with the steady
// containers' holdings.
func (w *world) nothingLeft() error {
	return errors.Join(w.checkFiles(), w.checkMounts(), w.checkLedger(), w.scanner.steadyRuns())
}

func (w *world) checkFiles() error {
	entries, err := os.ReadDir(filepath.Join(w.Cluster.Root(), paths.Containers(runDir)))
	if err != nil {
		return err
	}
	steady := w.scanner.steadyPods()
	for _, entry := range entries {
		if !steady[entry.Name()] {
			return fmt.Errorf("the state directory has files of the pod %s, which is gone", entry.Name())
		}
	}
	return nil
}

// checkMounts returns an error for file systems that are still mounted for a pod below the state
// directory.
func (w *world) checkMounts() error {
	mounts, err := os.ReadFile(filepath.Join(w.Cluster.Root(), "proc/1/mountinfo"))
	if err != nil {
		return err
	}
	steady := w.scanner.steadyPods()
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		below, ours := strings.CutPrefix(fields[4], runDir+"/usage/")
		if uid, _, _ := strings.Cut(below, "/"); ours && !steady[uid] {
			return fmt.Errorf("%s is still mounted, and its pod is gone", fields[4])
		}
	}
	return nil
}

func (w *world) checkLedger() error {
	metrics, err := w.ask("/metrics")
	if err != nil {
		return err
	}
	promised := w.scanner.promised()
	seen := 0
	for lines := bufio.NewScanner(strings.NewReader(metrics)); lines.Scan(); {
		line := lines.Text()
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		switch {
		case err != nil:
		case strings.HasPrefix(line, "nri_vgpu_unadjusted_containers") && value != 0:
			return fmt.Errorf("the agent reports %v unadjusted containers", value)
		case strings.HasPrefix(line, "nri_vgpu_gpu_free_memory_bytes{"):
			seen++
			_, after, _ := strings.Cut(line, `uuid="`)
			uuid, _, _ := strings.Cut(after, `"`)
			if want := gpuMemory - promised[uuid]; uint64(value) != want {
				return fmt.Errorf("the agent reports %d free MiB of GPU %s; the running containers leave %d", uint64(value)/mib, uuid, want/mib)
			}
		}
	}
	if seen != gpus {
		return fmt.Errorf("the agent knows %d GPUs, not %d", seen, gpus)
	}
	return nil
}
