// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// WaitResult waits for the JSON line that a workload prints, and reads it into result. WaitResult
// skips other lines of the log.
func (b *Bed) WaitResult(ctx context.Context, pod, container string, timeout time.Duration, result any) error {
	var last string
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		log, err := b.Log(ctx, pod, container)
		if err != nil {
			last = err.Error()
			return false, nil
		}
		last = log
		for line := range strings.Lines(log) {
			if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), result) == nil {
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("no result from %s/%s after %v; its log so far: %q", pod, container, timeout, last)
	}
	return nil
}

// Held returns the bytes that a pod's processes physically hold, according to the oracle, by GPU
// UUID. Held omits GPUs on which the processes hold no memory.
func (b *Bed) Held(pod *corev1.Pod) (map[string]uint64, error) {
	holdings, err := b.holdings(pod)
	if err != nil {
		return nil, err
	}
	held := map[string]uint64{}
	for _, h := range holdings {
		if h.bytes > 0 {
			held[h.uuid] += h.bytes
		}
	}
	return held, nil
}

// Spender is a process on a GPU.
type Spender struct {
	Pid  int
	UUID string
}

// Busy returns the GPU time that the pod's processes have had, according to the oracle.
func (b *Bed) Busy(pod *corev1.Pod) (map[Spender]time.Duration, error) {
	holdings, err := b.holdings(pod)
	if err != nil {
		return nil, err
	}
	busy := map[Spender]time.Duration{}
	for _, h := range holdings {
		busy[Spender{h.pid, h.uuid}] = h.busy
	}
	return busy, nil
}

// holdings returns the memory that the pod's processes hold on each GPU.
func (b *Bed) holdings(pod *corev1.Pod) ([]holding, error) {
	all, err := b.physical.Holdings()
	if err != nil {
		return nil, err
	}
	var ours []holding
	for _, h := range all {
		inPod, err := runsIn(h.pid, pod)
		if err != nil {
			return nil, err
		}
		if inPod {
			ours = append(ours, h)
		}
	}
	return ours, nil
}

// Pids returns the pids of the pod's processes that use a GPU, on this machine.
func (b *Bed) Pids(pod *corev1.Pod) ([]int, error) {
	holdings, err := b.holdings(pod)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, h := range holdings {
		if !slices.Contains(pids, h.pid) {
			pids = append(pids, h.pid)
		}
	}
	return pids, nil
}

// runsIn reports whether the process belongs to the pod. Kubelet puts the pod's UID into the path
// of the process's cgroup, with dashes or underscores.
func runsIn(pid int, pod *corev1.Pod) (bool, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if os.IsNotExist(err) {
		return false, nil // the process has ended since the oracle's report
	}
	if err != nil {
		return false, fmt.Errorf("find the pod of process %d: %w", pid, err)
	}
	paths := bytes.ReplaceAll(raw, []byte("_"), []byte("-"))
	return bytes.Contains(paths, []byte("pod"+string(pod.UID))), nil
}
