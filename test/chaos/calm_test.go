// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const (
	// delayBound is the longest allowed delay of a container's start by hostile tenants.
	delayBound = time.Second
	// startPatience bounds one start.
	startPatience = 30 * time.Second
	// probeLife is the time for which a started pod stays. In this time the pod fills its part.
	probeLife = 5 * time.Second
	// longestCalm bounds the length of each part of a calm.
	longestCalm = 25 * time.Second
)

// part is a measurement in a calm phase, while tenants attacked or only worked.
type part struct {
	starts  []time.Duration
	handled []spent
}

func (p part) median() time.Duration { return quantile(p.starts, 0.5) }
func (p part) worst() time.Duration  { return quantile(p.starts, 1) }

// slowest returns the request for which agent and guard took longest.
func (p part) slowest() (most spent) {
	for _, one := range p.handled {
		if one.took > most.took {
			most = one
		}
	}
	return most
}

func (p part) String() string {
	return fmt.Sprintf("%d starts, median %v, worst %v; %d requests, the slowest took %v", len(p.starts),
		p.median().Round(time.Millisecond), p.worst().Round(time.Millisecond), len(p.handled), p.slowest())
}

func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(q*float64(len(sorted)-1))]
}

// calm measures, without injected failures, the cost of hostile tenants for other tenants. The
// tenants act twice. The first time, their pods request no resources of ours and reach none of our
// parts. The cost of pods for kubelet and the processors therefore does not count. Delays by the
// processors themselves do not repeat, so a delay counts only if a second try shows the delay
// again.
func (w *world) calm(length time.Duration) {
	w.Helper()
	if len(w.tenants) == 0 {
		return
	}
	w.log("no failures, in parts of %v", length.Round(time.Second))
	h := w.watchHandlers()
	defer h.stop()
	before := w.lookAtOurs()
	w.calmNow.Store(true)
	defer w.calmNow.Store(false)
	if w.results.Quiet.Starts == 0 {
		quiet := w.measure(h, length/2, nil)
		w.log("  quiet: %v", quiet)
		w.results.Quiet.add(quiet)
	}
	w.compare(h, length)
	w.checkOurs(before)
}

// compare compares hostile with harmless tenants, and tries at most twice.
func (w *world) compare(h *handlers, length time.Duration) {
	w.Helper()
	const tries = 2
	from := make([]int, len(w.tenants))
	for i, t := range w.tenants {
		from[i] = t.dealt
	}
	for try := 1; ; try++ {
		for i, t := range w.tenants {
			t.dealt = from[i]
		}
		harmless := w.measure(h, length, func(ctx context.Context) { w.attackAll(ctx, true) })
		w.log("  harmless: %v", harmless)
		hostile := w.measure(h, length, func(ctx context.Context) { w.attackAll(ctx, false) })
		w.log("  hostile: %v", hostile)
		w.results.Harmless.add(harmless)
		w.results.Hostile.add(hostile)
		slow, delayed := slowHandler(hostile), delay(harmless, hostile)
		if slow == nil && delayed == nil {
			return
		}
		w.log("  %v", errors.Join(slow, delayed))
		if try < tries {
			w.count.add("looks", "calm, tried again")
			continue
		}
		if slow != nil {
			w.broken("slow", "%v", slow)
		}
		if delayed != nil {
			w.broken("delayed", "%v", delayed)
		}
		return
	}
}

func slowHandler(p part) error {
	if s := p.slowest(); s.took > handlerBound {
		return fmt.Errorf("agent and guard took %v", s)
	}
	return nil
}

func delay(harmless, hostile part) error {
	if d := hostile.median() - harmless.median(); d > delayBound {
		return fmt.Errorf("half of the containers started %v later beside hostile tenants: after %v instead of %v", d, hostile.median(), harmless.median())
	}
	if d := hostile.worst() - harmless.worst(); d > delayBound {
		return fmt.Errorf("the slowest container started %v later beside hostile tenants: after %v instead of %v", d, hostile.worst(), harmless.worst())
	}
	return nil
}

// measure starts one well-behaved pod after another while others acts, and removes the pods that
// others has left.
func (w *world) measure(h *handlers, length time.Duration, others func(context.Context)) part {
	w.Helper()
	h.take()
	ctx, cancel := context.WithTimeout(w.Context(), length)
	defer cancel()
	var all sync.WaitGroup
	if others != nil {
		all.Go(func() { others(ctx) })
	}
	var p part
	for ctx.Err() == nil {
		p.starts = append(p.starts, w.probe())
	}
	all.Wait()
	w.probes.Wait()
	w.removeAll()
	if err := eventually.Check(w.Context(), patience, func() error { return errors.Join(w.podsLeft(), h.idle()) }); err != nil {
		w.broken("recovered", "%v", err)
	}
	p.handled = h.take()
	return p
}

// probe returns the time until the container of a pod that fills its part of a GPU runs.
func (w *world) probe() time.Duration {
	w.Helper()
	r := w.random(uint64(time.Since(w.begin)))
	d := newDraft(fmt.Sprintf("probe-%d", w.subjects.next()), "probe", r)
	// The pod must stay until the watcher has seen the pod.
	d.pod.Spec.Containers = []corev1.Container{d.container("main", askMemory(700), false, fillScript(r, "2"))}
	w.subjects.add(d.subject)
	begin := time.Now()
	if err := w.makePod(d); err != nil {
		w.broken("delayed", "a pod cannot be created: %v", err)
		return 0
	}
	// A probe that has not started continues, because no one can wait for a deleted pod.
	defer w.probes.Go(func() {
		loop.Sleep(w.Context(), probeLife)
		w.remove(w.Context(), d.subject)
	})
	for time.Since(begin) < startPatience {
		if at, ok := w.scanner.metAt(d.key); ok {
			return at.Sub(begin)
		}
		time.Sleep(20 * time.Millisecond)
	}
	w.broken("delayed", "the pod %s did not start within %v", d.key, startPatience)
	return startPatience
}
