// SPDX-License-Identifier: Apache-2.0

package resize

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// written is a report, and the version of the pod for which it was written.
type written struct{ text, version string }

// reportAll writes the reports about all pods that have changed.
func (r *Resizer) reportAll(ctx context.Context, all []*pod) {
	known := knownPods(all)
	for _, p := range all {
		err := r.report(ctx, p)
		if r.unreported.Note(string(p.UID), err) == loop.Failed {
			r.Log.Warn("failed to report the sizes of a pod's parts of GPUs; retrying", "namespace", p.Namespace, "pod", p.Name, "error", err)
		}
	}
	maps.DeleteFunc(r.unreported, func(uid, _ string) bool { return !known[uid] })
	maps.DeleteFunc(r.reported, func(uid string, _ written) bool { return !known[uid] })
}

// sizeOf returns the size that a container has, as far as it differs from the pod's spec. The present
// configuration determines the meaning of the spec, because schedulers use this configuration and count
// the size. sizeOf rounds up, and returns the largest size of several GPUs.
func (r *Resizer) sizeOf(p *pod, c *container) (size resize.Size) {
	held := r.held(p, c)
	spec, err := r.Ledger.PlanResize(p.uid, c.name, c.spec)
	for i, has := range held.Devices {
		unknown := err != nil && held.Resized // the GPU has less than the spec requests
		if unknown || err == nil && has.MemoryBytes != spec.Devices[i].MemoryBytes {
			size.MemoryMiB = max(size.MemoryMiB, (has.MemoryBytes+request.MiB-1)/request.MiB)
		}
		if unknown || err == nil && has.ComputePPM != spec.Devices[i].ComputePPM {
			size.Cores = max(size.Cores, (has.ComputePPM+request.Whole/100-1)/(request.Whole/100))
		}
	}
	return size
}

// pending returns the reason and the message of a size that is not in force. The message has no amounts
// that change by themselves, since each change of it is a write to the API server.
func pending(err error) (reason, message string) {
	inUse, noRoom, never := (*placement.InUseError)(nil), (*placement.NoRoomError)(nil), (*placement.InfeasibleError)(nil)
	switch {
	case err == nil:
		return "", ""
	case errors.As(err, &never):
		return resize.Infeasible, cut(never.Why, mostMessage)
	case errors.As(err, &inUse):
		return resize.Deferred, fmt.Sprintf("the container uses more than %d MiB of GPU %s", inUse.Want/request.MiB, inUse.UUID)
	case errors.As(err, &noRoom):
		return resize.Deferred, "its GPU has no room for " + placement.Describe(noRoom.Share)
	case errors.Is(err, placement.ErrNotReady), errors.Is(err, errLater):
		return resize.Deferred, err.Error()
	default: // the agent's log has the error, which may contain paths of the node
		return resize.InProgress, "the node cannot read or write the container's files: see the log of the node's agent"
	}
}

// cut shortens a text to a number of bytes.
func cut(text string, most int) string {
	const mark = "…"
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len(mark)], "") + mark
}

// report writes the sizes in force to a pod, if they have changed.
func (r *Resizer) report(ctx context.Context, p *pod) error {
	reports := map[string]resize.Report{}
	for _, c := range p.containers {
		one := resize.Report{Size: r.sizeOf(p, c), Requested: c.size}
		if one.Pending, one.Message = pending(c.err); c.retried && errors.Is(c.err, errLater) {
			one = c.reported
		}
		if c.wanted || one != (resize.Report{}) {
			reports[c.name] = one
		}
	}
	text := ""
	if len(reports) > 0 {
		var err error
		if text, err = resize.Format(reports); err != nil {
			return err
		}
	}
	now := written{text, p.ResourceVersion}
	if p.Annotations[resize.ReportAnnotation] == text || r.reported[string(p.UID)] == now {
		return nil
	}
	if err := pods.Report(ctx, r.Client, p.Pod, resize.ReportAnnotation, text, conditions(resize.Reports(p.Pod), reports)); err != nil {
		return err
	}
	r.reported[string(p.UID)] = now
	r.announce(p, reports)
	return nil
}

// announce counts the changed reports of a pod, and writes Events about them.
func (r *Resizer) announce(p *pod, reports map[string]resize.Report) {
	before := resize.Reports(p.Pod)
	for _, name := range slices.Sorted(maps.Keys(reports)) {
		one := reports[name]
		if was, ok := before[name]; ok && was == one {
			continue
		}
		r.metrics.count(one.Pending)
		on := events.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
		if one.Pending == "" {
			r.Events.OnPod(on, events.VGPUResized, "container %q has the requested sizes of its parts of GPUs", name)
			continue
		}
		r.Events.OnPod(on, events.VGPUNotResized, "the resize of container %q is %s: %s", name, resultOf(one.Pending), one.Message)
	}
}

// conditions returns the conditions of a pod with these reports. pods.Report removes a condition
// without a status. A condition keeps its time if the earlier reports had the condition, too.
func conditions(before, now map[string]resize.Report) []corev1.PodCondition {
	all := []corev1.PodCondition{{Type: resize.ConditionPending}, {Type: resize.ConditionInProgress}}
	for i := range all {
		c := &all[i]
		is := func(r resize.Report) bool {
			return r.Pending != "" && (r.Pending == resize.InProgress) == (c.Type == resize.ConditionInProgress)
		}
		var messages []string
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if r := now[name]; is(r) {
				messages = append(messages, fmt.Sprintf("container %s: %s", name, r.Message))
				c.Status, c.Reason = corev1.ConditionTrue, infeasibleFirst(c.Reason, r.Pending)
			}
		}
		c.Message = cut(strings.Join(messages, "; "), mostCondition)
		if c.Status != "" && !slices.ContainsFunc(slices.Collect(maps.Values(before)), is) {
			c.LastTransitionTime = metav1.Now()
		}
	}
	return all
}

// infeasibleFirst returns the more important of two reasons.
func infeasibleFirst(a, b string) string {
	if a == resize.Infeasible {
		return a
	}
	return b
}
