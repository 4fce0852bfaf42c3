// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/guardfile"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const (
	// askingPause batches changes that arrive together, because each write goes to a disk.
	askingPause = 50 * time.Millisecond
	// askingInterval is the time between checks of the list without a signal.
	askingInterval = 30 * time.Second
)

// PodsChanged signals KeepAsking that the set of pods has changed. PodsChanged never blocks.
func (h *Hook) PodsChanged() { h.podsChanged.Signal() }

// KeepAsking maintains the list of pods that request GPUs until ctx ends. The guard reads the list
// while the agent is down. Unlike the containers' files, the list survives a reboot. KeepAsking
// lists a pod as soon as the watch delivers the pod, before kubelet creates its sandbox.
func (h *Hook) KeepAsking(ctx context.Context) {
	ticker := time.NewTicker(askingInterval)
	defer ticker.Stop()
	var failure loop.Failure
	for {
		if err := h.writeAsking(); failure.Note(err) == loop.Failed {
			h.opts.Log.Error("failed to write the list of GPU pods; after a reboot, pods may start without GPUs", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-h.podsChanged:
			if !loop.Sleep(ctx, askingPause) {
				return
			}
		}
	}
}

// writeAsking writes the list if it has changed.
func (h *Hook) writeAsking() error {
	asking := h.asking()
	// writeAsking compares with the file, since another program may have removed or damaged the
	// file.
	written, err := guardfile.ReadAsking(h.opts.Config.Paths.StateDir)
	if err == nil && slices.Equal(asking, written) {
		return nil
	}
	if errors.Is(err, guardfile.ErrAsking) {
		h.opts.Log.Error("failed to read the list of GPU pods; writing it again", "error", err)
	}
	return guardfile.WriteAsking(h.opts.Config.Paths.StateDir, asking)
}

// asking returns the pods that request or hold GPUs, sorted. Until the pods are synced, asking
// keeps all pods of the written list.
func (h *Hook) asking() []guardfile.Pod {
	asking := h.holders()
	if h.opts.Pods.HasSynced() {
		asking = append(asking, h.askingPods()...)
	} else if before, err := guardfile.ReadAsking(h.opts.Config.Paths.StateDir); err == nil {
		asking = append(asking, before...)
	}
	slices.SortFunc(asking, guardfile.Pod.Compare)
	return slices.Compact(asking)
}

// holders returns the pods that hold GPUs, once for each container.
func (h *Hook) holders() []guardfile.Pod {
	var holders []guardfile.Pod
	for _, a := range h.opts.Ledger.Allocations() {
		holders = append(holders, guardfile.Pod{UID: a.PodUID, Namespace: a.Namespace, Name: a.Pod})
	}
	return holders
}

// askingPods returns the pods that request GPUs. askingPods does not parse an unchanged
// pod again: tenants create pods with thousands of containers.
func (h *Hook) askingPods() []guardfile.Pod {
	var asking []guardfile.Pod
	read := map[*corev1.Pod]bool{}
	for _, pod := range h.opts.Pods.List() {
		if pods.Ended(pod) {
			continue
		}
		asks, known := h.askedBefore[pod]
		if !known {
			// An invalid request counts as a request: the guard then refuses the pod, as the agent
			// would.
			asked, err := request.FromPod(pod, h.opts.Config.Dialects)
			asks = err != nil || slices.ContainsFunc(asked.Containers, func(c request.Container) bool { return len(c.Shares) > 0 })
		}
		read[pod] = asks
		if asks {
			asking = append(asking, guardfile.Pod{UID: pods.RuntimeUID(pod), Namespace: pod.Namespace, Name: pod.Name})
		}
	}
	h.askedBefore = read
	return asking
}
