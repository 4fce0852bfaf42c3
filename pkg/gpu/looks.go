// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"context"
	"errors"
	"sync"
	"time"
)

// HeldBytes is the physical memory of one GPU that processes hold, contexts included,
// by pid. HeldBytes omits processes that the driver does not list.
type HeldBytes map[int]uint64

// Holdings lists the memory that processes hold. Looks calls Held for several GPUs at
// once. The calls of Holdings may never return.
type Holdings interface {
	// Held returns the memory that each process holds on a GPU.
	Held(uuid string) (HeldBytes, error)
}

const (
	// hung is the time that a query may last before further requests fail immediately.
	hung = time.Second
	// longestRest bounds the pause between two queries of a GPU.
	longestRest = 10 * time.Millisecond
)

// ErrHung means that an earlier query of a GPU has not returned.
var ErrHung = errors.New("an earlier query of the GPU has not returned")

// Looks shares queries of GPUs among callers. Each query serves the callers that requested it
// before it began, and no later caller. Each GPU has at most one query at a time. After each query,
// Looks pauses for the duration of the query, but at most 10 ms. The pause protects a fast driver
// from frequent requests.
type Looks struct {
	holdings Holdings

	mu   sync.Mutex
	gpus map[string]*looker
}

// NewLooks returns Looks that queries h.
func NewLooks(h Holdings) *Looks { return &Looks{holdings: h, gpus: map[string]*looker{}} }

// looker runs the queries of one GPU.
type looker struct {
	// next is the query that serves new callers, nil if no caller waits.
	next *Look
	// since is the start of the current query, zero if no query runs.
	since time.Time
	// busy is true while a goroutine queries or pauses.
	busy bool
}

// Look is a query of a GPU that begins after its request.
type Look struct {
	done chan struct{}
	held HeldBytes
	err  error
}

// Ask returns a query that begins after this call.
func (l *Looks) Ask(uuid string) *Look {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.gpus[uuid]
	if g == nil {
		g = &looker{}
		l.gpus[uuid] = g
	}
	if !g.since.IsZero() && time.Since(g.since) > hung {
		look := &Look{done: make(chan struct{}), err: ErrHung}
		close(look.done)
		return look
	}
	if g.next == nil {
		g.next = &Look{done: make(chan struct{})}
	}
	if !g.busy {
		g.busy = true
		go l.work(uuid, g)
	}
	return g.next
}

// work queries the GPU until no caller is waiting.
func (l *Looks) work(uuid string, g *looker) {
	for {
		l.mu.Lock()
		look := g.next
		g.next = nil
		if look == nil {
			g.busy = false
			l.mu.Unlock()
			return
		}
		begin := time.Now()
		g.since = begin
		l.mu.Unlock()

		look.held, look.err = l.holdings.Held(uuid)
		close(look.done)

		l.mu.Lock()
		g.since = time.Time{}
		l.mu.Unlock()
		time.Sleep(min(time.Since(begin), longestRest))
	}
}

// Wait returns the result of the query, or ctx's error if ctx ends first. The query continues for
// other callers.
func (l *Look) Wait(ctx context.Context) (HeldBytes, error) {
	select {
	case <-l.done:
		return l.held, l.err
	case <-ctx.Done():
	}
	select {
	case <-l.done: // the query ended while the caller waited for another query
		return l.held, l.err
	default:
		return nil, ctx.Err()
	}
}

// Of returns the memory that one process holds on each of the GPUs that the driver reports before
// ctx ends. Of fails if the driver answers for no GPU. A process with 0 bytes has no entry: drivers
// list 0 for an unknown size.
func (l *Looks) Of(ctx context.Context, pid int, uuids []string) (map[string]uint64, error) {
	looks := make([]*Look, len(uuids))
	for i, uuid := range uuids {
		looks[i] = l.Ask(uuid)
	}
	known := map[string]uint64{}
	var errs []error
	for i, look := range looks {
		held, err := look.Wait(ctx)
		if err != nil {
			errs = append(errs, err)
		} else if held[pid] > 0 {
			known[uuids[i]] = held[pid]
		}
	}
	if len(errs) > 0 && len(errs) == len(uuids) {
		return nil, errors.Join(errs...)
	}
	return known, nil
}
