// SPDX-License-Identifier: Apache-2.0

// Package detect finds processes that use a GPU without permission. The package reads each GPU's
// processes from the driver, and their cgroups from the kernel. The package reports a process that
// belongs to no container of ours, bypasses the interposer, or uses a forbidden API. The package
// also stops the process if the configuration requests a stop. If our files in a container were
// displaced, every process of the container counts as a bypass. If a container holds more than its
// usage page reports, the package passes the observed amount to the container's processes.
package detect

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/container/ourfiles"
	"github.com/nri-vgpu/nri-vgpu/internal/deadline"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
)

const (
	// looks is the number of consecutive checks that must agree before the detector acts. Processes
	// may end or free memory during a check.
	looks        = 3
	betweenLooks = 500 * time.Millisecond
	// maxReported bounds the log lines and the Events of one round.
	maxReported = 10
)

// GPUs lists the processes on the GPUs.
type GPUs interface {
	Processes(context.Context) (map[string][]gpu.Process, error)
}

// Containers are the containers that the runtime has.
type Containers interface {
	// Holders returns the allocations of our running containers, by the runtime's id.
	Holders() map[string]placement.Allocation
	// Carried returns our files that are mounted in each container, by the runtime's id.
	Carried() map[string]ourfiles.Carried
	// Synchronized reports whether all of the runtime's containers are known.
	Synchronized() bool
	// Unlimited reports whether a container, by the runtime's id, runs without the limits that it
	// should have.
	Unlimited(id string) bool
}

// Pods are the node's pods.
type Pods interface {
	Cached(pods.Ref) (*corev1.Pod, bool)
	HasSynced() bool
}

// Events records Events that ask people to act.
type Events interface {
	OnPod(pod events.Pod, reason events.Reason, format string, args ...any)
	OnNode(reason events.Reason, format string, args ...any)
}

// Options configures a Detector.
type Options struct {
	Config config.Detection
	// Exempt are the namespaces in which containers without a GPU request may use every GPU.
	Exempt []string
	// Foreign, if set, reports whether a GPU belongs to other programs. Only our containers have no
	// permission to use the GPU.
	Foreign func(uuid string) bool
	// Allowed are the kinds of API, beside Compute, through which containers with
	// limits may use a GPU.
	Allowed    gpu.APIs
	GPUs       GPUs
	Containers Containers
	Pods       Pods
	// Own, if set, reports whether a process belongs to the node and serves containers. Detection
	// ignores these processes.
	Own func(registry.Process) bool
	// Registered reports whether a process has registered.
	Registered func(registry.Process) bool
	// Dir returns the directory of a container's files.
	Dir    func(podUID, container string) (string, error)
	Proc   registry.Proc
	Events Events
	Log    *slog.Logger
}

// Detector inspects the GPUs' processes at every interval.
type Detector struct {
	Options
	Metrics *Metrics
	// reported are the findings that were reported and still hold.
	reported map[key]bool
	// observed holds the ids of containers whose limits page carries an observation.
	observed map[string]bool
	// seen holds the ids of containers whose limits page this agent has read.
	seen map[string]bool
	// busy maps the id of each container to the time since when every check has found its usage
	// page busy.
	busy map[string]busyPage
	// grown is the time of the last Event about a container that had grown its usage page, by pod
	// UID and name.
	grown map[string]time.Time
	// displaced are the containers whose displaced files were reported, by id.
	displaced map[string]bool
	looks     *ourfiles.Looks
	// cuts bounds the truncations of usage pages.
	cuts *deadline.Bound
	// refused counts the refusals of memory of each container and GPU at the last check, by id.
	refused  map[string][]uint64
	began    time.Time
	failure  loop.Failure // of looking at the GPUs
	pause    time.Duration
	patience time.Duration
}

// New returns a detector that does nothing until Run.
func New(opts Options) *Detector {
	return &Detector{
		Options: opts, Metrics: newMetrics(), pause: betweenLooks, began: time.Now(),
		reported: map[key]bool{}, observed: map[string]bool{}, seen: map[string]bool{}, busy: map[string]busyPage{}, patience: busyPatience,
		grown: map[string]time.Time{}, displaced: map[string]bool{}, looks: ourfiles.NewLooks(), cuts: deadline.New(cutPatience, 1),
	}
}

// Run starts a round at every interval until ctx ends.
func (d *Detector) Run(ctx context.Context) {
	for loop.Sleep(ctx, d.Config.Interval.Duration) {
		d.round(ctx)
	}
}

// round checks the GPUs once, and up to looks times while the checks find the same problem.
func (d *Detector) round(ctx context.Context) {
	if !d.Containers.Synchronized() || !d.Pods.HasSynced() {
		return // an unknown container is not evidence yet
	}
	p, ok := d.look(ctx)
	if !ok {
		return
	}
	d.reportRefusals(p)
	findings, mismatches, displaced := certain(d.judge(p)), d.certain(p.compare()), p.displaced()
	for range looks - 1 {
		if len(findings) == 0 && len(mismatches) == 0 && len(displaced) == 0 {
			break
		}
		if !loop.Sleep(ctx, d.pause) {
			return
		}
		if p, ok = d.look(ctx); !ok {
			return
		}
		findings = confirmFindings(findings, d.judge(p))
		mismatches = confirmMismatches(mismatches, p.compare())
		displaced = confirmDisplaced(displaced, p.displaced())
	}
	d.reportDisplaced(p, displaced)
	d.act(findings)
	d.observe(p, mismatches)
}

// look queries the driver and the kernel. look returns false if the driver does not answer.
func (d *Detector) look(ctx context.Context) (*picture, bool) {
	p := &picture{answered: map[string]bool{}, containers: map[string]container{}}
	for id, held := range d.Containers.Holders() {
		p.containers[id] = d.open(ctx, held)
	}
	processes, err := d.GPUs.Processes(ctx)
	if d.logDriver(err); err != nil {
		return nil, false
	}
	for uuid, running := range processes {
		p.answered[uuid] = true
		for _, r := range running {
			// A process that has ended needs no verdict.
			if process, err := d.Proc.Look(r.PID); err == nil && (d.Own == nil || !d.Own(process)) {
				p.sightings = append(p.sightings, sighting{process, uuid, r.Bytes, r.APIs})
			}
		}
	}
	d.Metrics.setKinds(processes)
	d.lookAgain(ctx, p)
	d.settle(p)
	d.lookAtFiles(p)
	return p, true
}

// lookAgain reads the usage pages of the containers that have a process on a GPU. Skipping the
// other containers keeps the cost of an idle node low.
func (d *Detector) lookAgain(ctx context.Context, p *picture) {
	seen := map[string]bool{}
	for _, s := range p.sightings {
		seen[s.Container] = true
	}
	for id, c := range p.containers {
		if seen[id] {
			c.after = d.usage(ctx, &c)
			p.containers[id] = c
		}
	}
}

// logDriver logs the driver's error when the error changes. Other components also report a driver
// that does not answer.
func (d *Detector) logDriver(err error) {
	if d.failure.Note(err) == loop.Failed {
		d.Log.Warn("failed to list the processes on the GPUs", "error", err)
	}
}

func (d *Detector) open(ctx context.Context, held placement.Allocation) container {
	c := container{Allocation: held}
	dir, err := d.Dir(held.PodUID, held.Container)
	if err != nil {
		return c
	}
	if info, err := os.Stat(dir); err == nil {
		c.made = info.ModTime()
	}
	_, err = os.Stat(filepath.Join(dir, limits.LimitsFile))
	c.interposed = !errors.Is(err, fs.ErrNotExist)
	c.before = d.usage(ctx, &c)
	return c
}

// judge returns the processes that use a GPU without permission.
func (d *Detector) judge(p *picture) []finding {
	var findings []finding
	for _, s := range p.sightings {
		kind, ok := p.judge(s, d.Registered, d.Allowed)
		if ok || d.tolerates(kind, s) {
			continue
		}
		findings = append(findings, finding{s, kind, p.containers[s.Container].displaced})
	}
	return findings
}

// tolerates reports whether a process outside our containers may use a GPU.
func (d *Detector) tolerates(kind Kind, s sighting) bool {
	foreign := d.Foreign != nil && d.Foreign(s.uuid)
	switch kind {
	case Host:
		return foreign || d.Config.HostAction == config.DetectIgnore
	case Pod:
		return foreign || d.exempt(s)
	default:
		return false
	}
}

// exempt reports whether a process of a container without a GPU may use a GPU.
func (d *Detector) exempt(s sighting) bool {
	pod, ok := d.pod(s.PodUID)
	return ok && slices.Contains(d.Exempt, pod.Namespace) && !d.Containers.Unlimited(s.Container)
}

// observe writes the observed memory of each container with a mismatch to the container's limits
// page, at every round. observe also clears the observation of containers that no longer have a
// mismatch.
func (d *Detector) observe(p *picture, mismatches []mismatch) {
	held := map[string][]uint64{}
	for _, m := range mismatches {
		c := p.containers[m.container]
		if held[m.container] == nil {
			held[m.container] = make([]uint64, len(c.Devices))
		}
		held[m.container][m.device] = m.held
		d.reportMismatch(c, m)
	}
	d.Metrics.setMismatches(p, mismatches)
	for id, c := range p.containers {
		bytes, amiss := held[id]
		if !c.interposed || !amiss && !d.wasObserved(id, c) {
			continue
		}
		if bytes == nil {
			bytes = make([]uint64, len(c.Devices))
		}
		if err := d.put(c, bytes); err != nil {
			d.Log.Error("failed to write the observed memory to a container's limits page", "namespace", c.Namespace, "pod", c.Pod, "container", c.Container, "error", err)
			continue
		}
		d.observed[id] = amiss
	}
	for id := range d.seen {
		if _, runs := p.containers[id]; !runs {
			delete(d.seen, id)
			delete(d.observed, id)
		}
	}
}

func (d *Detector) put(c container, bytes []uint64) error {
	dir, err := d.Dir(c.PodUID, c.Container)
	if err != nil {
		return err
	}
	return limits.Observe(dir, bytes)
}

// wasObserved reports whether a container's limits page already contains an observation, possibly
// of an earlier agent.
func (d *Detector) wasObserved(id string, c container) bool {
	if d.seen[id] {
		return d.observed[id]
	}
	d.seen[id] = true
	dir, err := d.Dir(c.PodUID, c.Container)
	if err != nil {
		return false
	}
	words, err := limits.Observed(filepath.Join(dir, limits.LimitsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.Log.Error("failed to read a limits page", "namespace", c.Namespace, "pod", c.Pod, "container", c.Container, "error", err)
	}
	d.observed[id] = slices.ContainsFunc(words, func(bytes uint64) bool { return bytes != 0 })
	return d.observed[id]
}
