package hook

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/guard"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const (
	// askingPause gathers changes that come together, of which each would be
	// a write to a disk.
	askingPause = 50 * time.Millisecond
	// askingInterval is how often the list is looked at when nothing is heard.
	askingInterval = 30 * time.Second
)

// PodsChanged says that pods have come or gone. It never blocks.
func (h *Hook) PodsChanged() {
	select {
	case h.podsChanged <- struct{}{}:
	default:
	}
}

// KeepAsking keeps, until ctx ends, the list of the pods that ask for GPUs,
// which the guard goes by when we are not there. The list outlives a reboot,
// unlike all that we keep of containers; a pod is on it as soon as the watch
// has brought it, before kubelet has made its sandbox.
func (h *Hook) KeepAsking(ctx context.Context) {
	ticker := time.NewTicker(askingInterval)
	defer ticker.Stop()
	said := ""
	for {
		switch err := h.writeAsking(); {
		case err == nil:
			said = ""
		case err.Error() != said:
			said = err.Error()
			h.Log.Error("should this node reboot now, pods that ask for GPUs may start without", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-h.podsChanged:
			if !sleep(ctx, askingPause) {
				return
			}
		}
	}
}

// writeAsking writes the list where it has changed.
func (h *Hook) writeAsking() error {
	asking := h.asking()
	// What is written may have been lost meanwhile, or never have been good.
	written, err := guard.ReadAsking(h.Config.Paths.StateDir)
	if err == nil && slices.Equal(asking, written) {
		return nil
	}
	if errors.Is(err, guard.ErrAsking) {
		h.Log.Error("the list of pods that ask for GPUs is not trusted, and is written anew", "error", err)
	}
	return guard.WriteAsking(h.Config.Paths.StateDir, asking)
}

// asking are the pods that ask for GPUs or hold some, sorted. As long as the
// pods are not known nobody is taken off the list.
func (h *Hook) asking() []guard.Pod {
	asking := h.holders()
	if h.Pods.HasSynced() {
		asking = append(asking, h.askingPods()...)
	} else if before, err := guard.ReadAsking(h.Config.Paths.StateDir); err == nil {
		asking = append(asking, before...)
	}
	slices.SortFunc(asking, guard.Pod.Compare)
	return slices.Compact(asking)
}

// holders are the pods that hold GPUs.
func (h *Hook) holders() []guard.Pod {
	var holders []guard.Pod
	for _, uid := range h.Ledger.Holders() {
		if held := h.Ledger.Pod(uid); len(held) > 0 {
			holders = append(holders, guard.Pod{UID: uid, Namespace: held[0].Namespace, Name: held[0].Pod})
		}
	}
	return holders
}

// askingPods are the pods that ask for GPUs. A pod that has not changed is not read again:
// tenants make pods of thousands of containers.
func (h *Hook) askingPods() []guard.Pod {
	var asking []guard.Pod
	read := map[*corev1.Pod]bool{}
	for _, pod := range h.Pods.List() {
		if pods.Ended(pod) {
			continue
		}
		asks, known := h.askedBefore[pod]
		if !known {
			// One that asks for nonsense is refused, which the guard can do, too.
			asked, err := request.FromPod(pod, h.Config.Dialects)
			asks = err != nil || slices.ContainsFunc(asked.Containers, func(c request.Container) bool { return len(c.Shares) > 0 })
		}
		read[pod] = asks
		if asks {
			asking = append(asking, guard.Pod{UID: pods.RuntimeUID(pod), Namespace: pod.Namespace, Name: pod.Name})
		}
	}
	h.askedBefore = read
	return asking
}
