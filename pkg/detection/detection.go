// Package detection looks from outside who uses the node's GPUs. It asks the
// driver for the processes and the kernel where they run: one that belongs to no
// container of ours, goes around the interposer, or uses an API that knows no
// limits and is not allowed, is reported, and stopped
// where the configuration says so. So is each in a container in which our files are
// no longer where we put them. Where a container holds more than its usage
// page reports, its processes learn what was observed.
package detection

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

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/events"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/injected"
	"github.com/nri-vgpu/nri-vgpu/pkg/limits"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/pods"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
)

const (
	// looks must agree before anything is done, with a pause between them:
	// processes end and memory is freed while they are being looked at.
	looks        = 3
	betweenLooks = 500 * time.Millisecond
	// maxSaid bounds the lines of the log and the Events of one round.
	maxSaid = 10
)

// GPUs are asked for processes.
type GPUs interface {
	Processes(context.Context) (map[string][]gpu.Process, error)
}

// Containers are those that the runtime has.
type Containers interface {
	// Holders returns what each of our containers holds that runs, by the
	// runtime's id.
	Holders() map[string]placement.Allocation
	// Carried returns, by the same id, our files in each that has them.
	Carried() map[string]injected.Carried
	// Synchronized reports whether that is all of them.
	Synchronized() bool
	// Unlimited reports whether a container, by the runtime's id, runs without the
	// limits that it should have.
	Unlimited(id string) bool
}

// Pods are the node's.
type Pods interface {
	Cached(pods.Ref) (*corev1.Pod, bool)
	HasSynced() bool
}

// Events are written for people to act on.
type Events interface {
	OnPod(pod events.Pod, reason events.Reason, format string, args ...any)
	OnNode(reason events.Reason, format string, args ...any)
}

// Options of a Detector.
type Options struct {
	Config config.Detection
	// Exempt are namespaces in which containers that ask for nothing may use every GPU.
	Exempt []string
	// Allowed are the kinds of API, beside Compute, through which containers with
	// limits may use a GPU.
	Allowed    gpu.APIs
	GPUs       GPUs
	Containers Containers
	Pods       Pods
	// Own, where set, tells whether a process is one of the node's that serves
	// containers, and is left alone.
	Own func(registry.Process) bool
	// Registered reports whether a process has registered.
	Registered func(registry.Process) bool
	// Dir is where the files of a container are.
	Dir    func(podUID, container string) (string, error)
	Proc   registry.Proc
	Events Events
	Log    *slog.Logger
}

// Detector looks every interval.
type Detector struct {
	Options
	Metrics *Metrics
	// reported are findings that were told of, and are still there.
	reported map[key]bool
	// observed are containers whose limits page says what was seen, by id.
	observed map[string]bool
	// seen are containers whose limits page this agent has looked at.
	seen map[string]bool
	// busy are containers whose usage page was kept busy at every look since, by id.
	busy map[string]busyPage
	// grown is when it was last told that a container made its usage page grow, by
	// pod UID and name.
	grown map[string]time.Time
	// displaced are containers of which it was told that our files are not at their
	// places, by id.
	displaced map[string]bool
	looks     *injected.Looks
	// refused is how often containers were refused memory of each GPU by the last
	// look, by id.
	refused  map[string][]uint64
	began    time.Time
	failed   string
	pause    time.Duration
	patience time.Duration
}

// New returns a detector that looks at nothing until Run.
func New(opts Options) *Detector {
	return &Detector{
		Options: opts, Metrics: newMetrics(), pause: betweenLooks, began: time.Now(),
		reported: map[key]bool{}, observed: map[string]bool{}, seen: map[string]bool{}, busy: map[string]busyPage{}, patience: busyPatience,
		grown: map[string]time.Time{}, displaced: map[string]bool{}, looks: injected.NewLooks(),
	}
}

// Run looks every interval until ctx ends.
func (d *Detector) Run(ctx context.Context) {
	for sleep(ctx, d.Config.Interval.Duration) {
		d.round(ctx)
	}
}

// sleep reports whether it slept to the end.
func sleep(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// round looks once, and where something is amiss again until it is sure.
func (d *Detector) round(ctx context.Context) {
	if !d.Containers.Synchronized() || !d.Pods.HasSynced() {
		return // that a container is not known means nothing yet
	}
	p, ok := d.look(ctx)
	if !ok {
		return
	}
	d.tellRefusals(p)
	findings, mismatches, displaced := certain(d.judge(p)), d.certain(p.compare()), p.displaced()
	for range looks - 1 {
		if len(findings) == 0 && len(mismatches) == 0 && len(displaced) == 0 {
			break
		}
		if !sleep(ctx, d.pause) {
			return
		}
		if p, ok = d.look(ctx); !ok {
			return
		}
		findings = confirmFindings(findings, d.judge(p))
		mismatches = confirmMismatches(mismatches, p.compare())
		displaced = confirmDisplaced(displaced, p.displaced())
	}
	d.tellDisplaced(p, displaced)
	d.act(findings)
	d.observe(p, mismatches)
}

// look asks the driver and the kernel. Nothing is known where the driver does
// not answer.
func (d *Detector) look(ctx context.Context) (*picture, bool) {
	p := &picture{answered: map[string]bool{}, containers: map[string]container{}}
	for id, held := range d.Containers.Holders() {
		p.containers[id] = d.open(held)
	}
	processes, err := d.GPUs.Processes(ctx)
	if d.tell(err); err != nil {
		return nil, false
	}
	for uuid, running := range processes {
		p.answered[uuid] = true
		for _, r := range running {
			// One that ends meanwhile is no longer worth a thought.
			if process, err := d.Proc.Look(r.PID); err == nil && (d.Own == nil || !d.Own(process)) {
				p.sightings = append(p.sightings, sighting{process, uuid, r.Bytes, r.APIs})
			}
		}
	}
	d.Metrics.setKinds(processes)
	d.lookAgain(p)
	d.settle(p)
	d.lookAtFiles(p)
	return p, true
}

// lookAgain reads what the containers say that were seen on a GPU. What the
// others say is of no matter, and an idle node is not to pay for it.
func (d *Detector) lookAgain(p *picture) {
	seen := map[string]bool{}
	for _, s := range p.sightings {
		seen[s.Container] = true
	}
	for id, c := range p.containers {
		if seen[id] {
			c.after = d.usage(&c)
			p.containers[id] = c
		}
	}
}

// tell logs what the driver says when that changes. That it does not answer is
// said elsewhere, too.
func (d *Detector) tell(err error) {
	said := ""
	if err != nil {
		said = err.Error()
	}
	if said != d.failed && said != "" {
		d.Log.Warn("the processes on the GPUs cannot be looked at", "error", err)
	}
	d.failed = said
}

func (d *Detector) open(held placement.Allocation) container {
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
	c.before = d.usage(&c)
	return c
}

// judge returns the processes that should not be where they are.
func (d *Detector) judge(p *picture) []finding {
	var findings []finding
	for _, s := range p.sightings {
		kind, ok := p.judge(s, d.Registered, d.Allowed)
		if ok || kind == Host && d.Config.HostAction == config.DetectIgnore || kind == Pod && d.exempt(s) {
			continue
		}
		findings = append(findings, finding{s, kind, p.containers[s.Container].displaced})
	}
	return findings
}

// exempt reports whether a process of a container that was given no GPU may use one.
func (d *Detector) exempt(s sighting) bool {
	pod, ok := d.pod(s.PodUID)
	return ok && slices.Contains(d.Exempt, pod.Namespace) && !d.Containers.Unlimited(s.Container)
}

// observe tells the processes of containers with a mismatch what was seen, each
// time anew, and takes it back from those that have none any more.
func (d *Detector) observe(p *picture, mismatches []mismatch) {
	held := map[string][]uint64{}
	for _, m := range mismatches {
		c := p.containers[m.container]
		if held[m.container] == nil {
			held[m.container] = make([]uint64, len(c.Devices))
		}
		held[m.container][m.device] = m.held
		d.accuse(c, m)
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
			d.Log.Error("a container cannot be told what it was seen to hold", "namespace", c.Namespace, "pod", c.Pod, "container", c.Container, "error", err)
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

// wasObserved reports whether a container's limits page already contains an observation,
// possibly of an earlier agent.
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
		d.Log.Error("a limits page cannot be read", "namespace", c.Namespace, "pod", c.Pod, "container", c.Container, "error", err)
	}
	d.observed[id] = slices.ContainsFunc(words, func(bytes uint64) bool { return bytes != 0 })
	return d.observed[id]
}
