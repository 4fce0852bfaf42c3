package hook

import (
	"context"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/deadline"
)

// The runtime asks its plugins about one container at a time, so whatever keeps a
// handler delays every container of the node. A handler's work may have to wait: for
// the API server, for a file system of the host, or, as it changes what others hold,
// for another handler's work that does. So each runs aside, and is answered for in time.
const (
	// handlerPatience is how long a handler may take. A second is promised.
	handlerPatience = 900 * time.Millisecond
	// waitMargin is how much earlier waits within a handler's work end, which know
	// better what to say.
	waitMargin = 100 * time.Millisecond
	// maxHandlers is how many may be at work at once. The runtime asks one at a
	// time; more are there only if some hang.
	maxHandlers = 64
)

// within runs a handler's work, and returns its result, or an error once the runtime
// has to be answered. The work's context ends before. Work whose context has ended when
// its turn comes changes nothing, but for what it was told has ended.
func within[T any](ctx context.Context, h *Hook, work func(context.Context) T) (T, error) {
	begin := time.Now()
	// Older runtimes create a container of which they hear too late as if it needed
	// no adjustment.
	ctx, cancel := deadline.Before(ctx)
	defer cancel()
	return deadline.Do(ctx, h.bound, func() T {
		defer h.handlers.enter(begin)()
		waits, cancel := context.WithTimeout(ctx, handlerPatience-waitMargin)
		defer cancel()
		return work(waits)
	})
}

// lateRefusal is what a container is told for which an answer took too long.
func (c Container) lateRefusal(err error) error {
	return c.refuse(ReasonState, "nri-vgpu's agent could not decide on it: %w: kubelet will try again; if it goes on, see the agent's log, and whether the node's disks answer", err)
}
