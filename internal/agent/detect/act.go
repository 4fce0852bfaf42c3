// SPDX-License-Identifier: Apache-2.0

package detect

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// act reports new findings and stops the processes that the configuration selects.
func (d *Detector) act(findings []finding) {
	d.Metrics.setFindings(findings)
	there := make(map[key]bool, len(findings))
	reports := 0
	for _, f := range findings {
		there[f.key()] = true
		if !d.reported[f.key()] && reports < maxReported {
			reports++
			d.report(f)
			d.reported[f.key()] = true
		}
		if d.stops(f) {
			d.stop(f)
		}
	}
	for k := range d.reported {
		if !there[k] {
			delete(d.reported, k)
		}
	}
}

// report writes a finding to the log and to the Pod or the Node as an Event.
func (d *Detector) report(f finding) {
	d.Metrics.found.WithLabelValues(string(f.kind)).Inc()
	line := f.line()
	d.Log.Warn(line, "cgroup", f.Cgroup, "uid", f.UID)
	d.write(f.PodUID, events.VGPUBypassed, line)
}

// write records an Event on a pod, by the runtime's UID, or on the Node if the pod is unknown.
func (d *Detector) write(podUID string, reason events.Reason, note string) {
	if pod, ok := d.pod(podUID); ok {
		d.Events.OnPod(events.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, reason, "%s", note)
		return
	}
	d.Events.OnNode(reason, "%s", note)
}

func (d *Detector) pod(uid string) (*corev1.Pod, bool) {
	if uid == "" {
		return nil, false
	}
	return d.Pods.Cached(pods.Ref{UID: uid})
}

func (f finding) line() string {
	who := fmt.Sprintf("process %d (%q) holds %d MiB of %s", f.PID, f.Name, f.bytes>>20, f.uuid)
	other := limitless(f.apis)
	if other != 0 {
		who += " by " + other.Names() + " APIs"
	}
	switch {
	case f.kind == Bypass && other != 0:
		return who + ", which the limits of its container do not cover: use CUDA, request whole GPUs, or allow these APIs in config.toml (injection.driver_capabilities)"
	case f.kind == Bypass && f.displaced != nil:
		return who + ", and nri-vgpu's files were removed in its container, so it runs without limits: " + f.displaced.Error() + ": delete the pod; docs/explanation/security.md explains how to prevent this"
	case f.kind == Bypass:
		return who + " and bypasses its container's limits or uses a GPU that the container was not assigned: delete the pod; docs/explanation/security.md explains how to prevent this"
	case f.kind == Pod:
		return who + ", and nri-vgpu assigned its pod no GPU: request a GPU by resource limits, or exempt the namespace in config.toml (node.exempt_namespaces)"
	default:
		return who + " outside of all pods, in memory that nri-vgpu may have allocated to containers: end the process, or reserve memory for it (node.reserved_memory_mib)"
	}
}

// stops reports whether the configuration requests that the detector stop a process. The detector
// stops no process of an unknown pod, whose namespace may be exempt. The detector also stops no
// host process without Compute, which may be the host's display.
func (d *Detector) stops(f finding) bool {
	if f.kind == Host {
		return d.Config.HostAction == config.DetectStop && f.computes()
	}
	_, known := d.pod(f.PodUID)
	return known && d.Config.Action == config.DetectStop
}

// stop kills a process if it is still the found process and still in the same cgroup.
func (d *Detector) stop(f finding) {
	now, handle, err := d.Proc.Pin(f.PID)
	if err != nil {
		return // the process has ended
	}
	defer handle.Close()
	err = errors.New("the process has moved to another cgroup")
	if now.Started == f.Started && now.Place == f.Place {
		err = handle.Kill()
	}
	if err != nil {
		d.Log.Error("failed to stop a process that bypasses its limits", "pid", f.PID, "error", err)
		return
	}
	d.Metrics.stopped.WithLabelValues(string(f.kind)).Inc()
	d.Log.Warn("stopped a process that used a GPU without permission", "pid", f.PID, "name", f.Name, "cgroup", f.Cgroup)
	d.write(f.PodUID, events.VGPUStopped, fmt.Sprintf("stopped process %d (%q) on %s, as [detection] in config.toml requests", f.PID, f.Name, f.uuid))
}

// reportMismatch reports a usage page that understates the memory in use, once while the mismatch lasts.
func (d *Detector) reportMismatch(c container, m mismatch) {
	if d.observed[m.container] || m.explained {
		return
	}
	line := fmt.Sprintf("container %s holds %d MiB of %s; its usage page reports %d MiB, and its limit is %d MiB: a program in the container wrote to the page or bypasses the interposer. The agent now charges the memory that the driver reports",
		c.Container, m.held>>20, c.Devices[m.device].UUID, m.claimed>>20, c.Devices[m.device].Limit()>>20)
	d.Metrics.mismatches.Inc()
	d.Log.Warn(line, "namespace", c.Namespace, "pod", c.Pod)
	d.write(c.PodUID, events.VGPUUsageForged, line)
}
