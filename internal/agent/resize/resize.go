// SPDX-License-Identifier: Apache-2.0

// Package resize sets the sizes of running containers' parts of GPUs that users request by an
// annotation, and reports the sizes in force.
package resize

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

const (
	// interval is the time between attempts to set deferred sizes.
	interval = time.Second
	// mostTries bounds the sizes that the Resizer sets in one round. Each takes the lock under which
	// containers are created, and a tenant can request any number of sizes.
	mostTries = 128
	// mostTime bounds the time of a round in which requests are tried again.
	mostTime = 100 * time.Millisecond
	// mostMessage bounds the message of a report, in bytes. A tenant's annotation may be long, and
	// mostCondition bounds the message of a condition.
	mostMessage, mostCondition = 256, 1024
)

// Pods are the node's pods as the API server reports them.
type Pods interface {
	List() []*corev1.Pod
	HasSynced() bool
}

// Places holds the allocations of the node's GPUs.
type Places interface {
	// Held returns the allocations of a pod. podUID is the pod's UID as the runtime reports it.
	Held(podUID string) []placement.Allocation
	// Resize changes the sizes of a container's parts, which an earlier call may have begun.
	Resize(podUID, container string, shares []request.Share) error
}

// Ledger plans changes of allocations.
type Ledger interface {
	// PlanResize returns a container's allocation with other sizes, and changes nothing.
	PlanResize(podUID, container string, shares []request.Share) (placement.Allocation, error)
}

// Events records Events about a pod.
type Events interface {
	OnPod(pod events.Pod, reason events.Reason, format string, args ...any)
}

// Options configures a Resizer.
type Options struct {
	Client kubernetes.Interface
	Config config.Config
	Pods   Pods
	Places Places
	Ledger Ledger
	Events Events
	// Changed, if set, is called when a size has changed. Changed must not block.
	Changed func()
	Log     *slog.Logger
}

// Resizer sets requested sizes. The pods' annotations, the ledger and the containers' files hold its
// state, so a Resizer may be stopped and restarted at any time.
type Resizer struct {
	Options
	metrics metrics
	poke    loop.Wakeup
	// failures are the sizes that could not be set, by pod and container. Only setAll uses failures, and
	// only reportAll unreported and reported.
	failures   loop.Failures
	unreported loop.Failures      // reports that could not be written, by pod
	reported   map[string]written // by pod
}

// New returns a Resizer that does nothing until Run.
func New(o Options) *Resizer {
	return &Resizer{Options: o, metrics: newMetrics(), poke: loop.NewWakeup(), failures: loop.Failures{}, unreported: loop.Failures{}, reported: map[string]written{}}
}

// Poke wakes the Resizer because pods have changed. Poke never blocks.
func (r *Resizer) Poke() { r.poke.Signal() }

// Run resizes containers until ctx ends. Reports are written beside, because the API server may be slow.
func (r *Resizer) Run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var reports sync.WaitGroup
	defer reports.Wait()
	news := make(chan []*pod, 1)
	reports.Go(func() { r.keepReporting(ctx, news) })
	for {
		again := false
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			again = true
		case <-r.poke:
		}
		if !r.Pods.HasSynced() {
			continue
		}
		all := r.setAll(again)
		select {
		case <-news: // is out of date
		default:
		}
		news <- all
	}
}

// keepReporting reports the latest round until ctx ends.
func (r *Resizer) keepReporting(ctx context.Context, news <-chan []*pod) {
	for {
		select {
		case <-ctx.Done():
			return
		case all := <-news:
			r.reportAll(ctx, all)
		}
	}
}

// setAll sets the sizes of all pods once, and returns the pods. With again, setAll also tries the sizes
// that an earlier round could not set.
func (r *Resizer) setAll(again bool) []*pod {
	var all []*pod
	for _, p := range request.Asking(r.Pods.List(), r.Config.Dialects) {
		if one := r.read(p); one != nil {
			all = append(all, one)
		}
	}
	begin := time.Now()
	made := 0
	for _, try := range tries(all) {
		if made == mostTries || try.retried && (!again || time.Since(begin) > mostTime) {
			try.err = errLater
			continue
		}
		made++
		try.err = r.set(try.pod, try.container)
	}
	known := knownPods(all)
	maps.DeleteFunc(r.failures, func(name, _ string) bool {
		uid, _, _ := strings.Cut(name, "/")
		return !known[uid]
	})
	return all
}

func knownPods(all []*pod) map[string]bool {
	known := map[string]bool{}
	for _, p := range all {
		known[string(p.UID)] = true
	}
	return known
}

// errLater is the reason of a size that the Resizer did not try in this round.
var errLater = errors.New("the node sets other sizes first")

// try is a container whose requested size the node has not set.
type try struct {
	*pod
	*container
	turn int // among the tries of its namespace
}

// tries returns the containers whose sizes are not in force, in the order in which their sizes are
// set. Namespaces take turns, so that no namespace delays another. In a namespace, new requests
// come first, and in random order the requests that could not be met before. Parts that shrink come
// first, because they make room.
func tries(all []*pod) []try {
	var tries []try
	for _, p := range all {
		for _, c := range p.containers {
			if c.err == nil && !c.inForce {
				tries = append(tries, try{p, c, 0})
			}
		}
	}
	rand.Shuffle(len(tries), func(i, j int) { tries[i], tries[j] = tries[j], tries[i] })
	byUrgency := func(a, b try) int { return cmp.Or(order(a.retried, b.retried), order(a.grows, b.grows)) }
	slices.SortStableFunc(tries, byUrgency)
	turns := map[string]int{}
	for i := range tries {
		tries[i].turn = turns[tries[i].Namespace]
		turns[tries[i].Namespace]++
	}
	slices.SortStableFunc(tries, func(a, b try) int { return cmp.Or(cmp.Compare(a.turn, b.turn), byUrgency(a, b)) })
	return tries
}

// order orders false before true.
func order(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// pod is a pod whose containers have been resized, or will be.
type pod struct {
	*corev1.Pod
	uid        string // by the runtime
	containers []*container
}

// container is a container with parts of GPUs.
type container struct {
	name   string
	size   resize.Size     // the requested size
	wanted bool            // the annotation names the container
	shares []request.Share // of the requested size
	placed []request.Share // of the container's placement, which a size changes
	spec   []request.Share // of the pod's spec, as the node's configuration reads the spec now
	grows  bool            // on any GPU
	// inForce states that the size is in force and reported, and retried that an earlier round could not
	// set the size.
	inForce, retried bool
	// reported is the report of the earlier round, if retried.
	reported resize.Report
	err      error // why the size is not in force
}

// read returns the containers of a pod whose sizes a user has changed, or nil if there are none. Mirrors
// of static pods have none.
func (r *Resizer) read(p *corev1.Pod) *pod {
	uid := pods.RuntimeUID(p)
	held := r.Places.Held(uid)
	_, requests := p.Annotations[resize.Annotation]
	_, reported := p.Annotations[resize.ReportAnnotation]
	resized := slices.ContainsFunc(held, func(a placement.Allocation) bool { return a.Resized })
	if len(held) == 0 || !requests && !reported && !resized || pods.IsMirror(p) {
		return nil
	}
	asked, err := request.Read(p, r.Config)
	if err != nil {
		return nil // the containers keep their sizes
	}
	sizes, invalid := resize.Wanted(p, asked)
	if invalid != nil {
		invalid = &placement.InfeasibleError{Why: invalid.Error()}
	}
	one, reports := &pod{Pod: p, uid: uid}, resize.Reports(p)
	for _, a := range held {
		i := slices.IndexFunc(asked.Containers, func(c request.Container) bool { return c.Name == a.Container })
		size, wanted := sizes[a.Container]
		if i < 0 || !wanted && !a.Resized && invalid == nil {
			continue
		}
		c := &container{name: a.Container, size: size, wanted: wanted || invalid != nil, err: invalid}
		c.spec = resize.Size{}.Apply(asked.Containers[i].Shares)
		c.placed = sharesAtPlacement(a, c.spec)
		c.shares = size.Apply(c.placed)
		for k := range c.shares { // a first limit on time gets the node's policy
			if c.placed[k].ComputePPM == 0 && c.shares[k].ComputePPM > 0 && c.shares[k].ComputePPM < request.Whole && r.Config.Compute.Policy == config.ComputeShare {
				c.shares[k].MaximumPPM = request.Whole
			}
		}
		if c.err == nil {
			c.err = r.check(p, uid, c, a)
		}
		report, has := reports[a.Container]
		c.retried, c.reported = has && report.Requested == size && report.Pending != "", report
		c.inForce = c.inForce && report.Requested == size && report.Pending == ""
		one.containers = append(one.containers, c)
	}
	return one
}

// sharesAtPlacement returns the shares of a container's placement, or the shares of the spec if an older
// agent has resized the container. A divided share also keeps the single share of the spec, which
// PlanResize refuses, because no size describes the pieces.
func sharesAtPlacement(a placement.Allocation, spec []request.Share) []request.Share {
	if shares := a.PlacedShares(); len(shares) == len(spec) {
		return shares
	}
	return spec
}

// check compares a container's requested size with the size in force, and returns an error if the
// container can never have the requested size.
func (r *Resizer) check(p *corev1.Pod, uid string, c *container, held placement.Allocation) error {
	to, err := r.Ledger.PlanResize(uid, c.name, c.shares)
	if err != nil {
		return err
	}
	placed, err := r.Ledger.PlanResize(uid, c.name, c.placed)
	if err != nil { // the GPU has less than the container had: any growth needs the maximum
		placed = held
	}
	most := r.Config.Resize.Of(p.Namespace)
	for i, d := range to.Devices {
		if err := withinMaximum(placed.Devices[i], d, most); err != nil {
			return err
		}
		c.grows = c.grows || d.MemoryBytes > held.Devices[i].MemoryBytes || d.ComputePPM > held.Devices[i].ComputePPM
	}
	c.inForce = slices.Equal(to.Devices, held.Devices)
	return nil
}

// withinMaximum returns an error if a device exceeds both the device at the container's placement and
// the maximum of the pod's namespace.
func withinMaximum(placed, d placement.Device, most config.ResizeMaximum) error {
	for _, amount := range []struct {
		wanted, placed, most uint64
		unit                 string
	}{
		{d.MemoryBytes / request.MiB, placed.MemoryBytes / request.MiB, most.MemoryMiB, "MiB"},
		{uint64(d.ComputePPM) * 100 / request.Whole, uint64(placed.ComputePPM) * 100 / request.Whole, uint64(most.Cores), "% of the time"},
	} {
		if amount.wanted > max(amount.placed, amount.most) {
			return &placement.InfeasibleError{Why: fmt.Sprintf("%d %s of a GPU exceed the pod's request (%d) and the maximum of its namespace (%d): request less, or raise resize.maximum in config.toml",
				amount.wanted, amount.unit, amount.placed, amount.most)}
		}
	}
	return nil
}

// set sets the size of a container.
func (r *Resizer) set(p *pod, c *container) error {
	before := r.sizes(p, c)
	err := r.Places.Resize(p.uid, c.name, c.shares)
	failure := err
	if reason, _ := pending(err); reason != resize.InProgress {
		failure = nil
	}
	if r.failures.Note(p.uid+"/"+c.name, failure) == loop.Failed {
		r.Log.Warn("failed to resize a container; retrying", "namespace", p.Namespace, "pod", p.Name, "container", c.name, "error", err)
	}
	if after := r.sizes(p, c); before != after {
		r.Log.Info("resized a container's parts of GPUs", "namespace", p.Namespace, "pod", p.Name, "container", c.name, "from", before, "to", after)
		if r.Changed != nil {
			r.Changed()
		}
	}
	return err
}

// sizes describes the parts that a container holds.
func (r *Resizer) sizes(p *pod, c *container) string {
	var all []string
	for _, d := range r.held(p, c).Devices {
		all = append(all, fmt.Sprintf("%d MiB and %g %% of %s", d.MemoryBytes/request.MiB, float64(d.ComputePPM)*100/request.Whole, d.UUID))
	}
	return strings.Join(all, ", ")
}

func (r *Resizer) held(p *pod, c *container) placement.Allocation {
	for _, a := range r.Places.Held(p.uid) {
		if a.Container == c.name {
			return a
		}
	}
	return placement.Allocation{}
}
