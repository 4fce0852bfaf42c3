// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/deadline"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
)

// These constants bound the handlers. The runtime calls its plugins for one container at a time, so
// a slow handler delays every container of the node. A handler may have to wait for the API server,
// for a file system of the host, or for another handler that holds mu. Therefore each handler runs
// in a goroutine, and the runtime gets an answer within a bound.
const (
	// handlerPatience is the time that a handler may take; the documented bound is one second.
	handlerPatience = 900 * time.Millisecond
	// The handler's waits end waitMargin before the handler, because the errors of the waits are
	// more specific.
	waitMargin = 100 * time.Millisecond
	// maxHandlers bounds the handlers that run at once. The runtime calls one handler at
	// a time, so more handlers run only if some hang.
	maxHandlers = 64
)

// within runs a handler's work and returns its result, or an error if the work exceeds the bound.
// The context of the work ends before the bound. Work whose context has ended before it starts
// changes no state, except to record stopped containers.
func within[T any](ctx context.Context, h *Hook, work func(context.Context) T) (T, error) {
	begin := time.Now()
	// Older runtimes create a container without adjustment if the answer comes too late.
	ctx, cancel := deadline.Before(ctx)
	defer cancel()
	return deadline.Do(ctx, h.bound, func() T {
		defer h.handlers.enter(begin)()
		waits, cancel := context.WithTimeout(ctx, handlerPatience-waitMargin)
		defer cancel()
		return work(waits)
	})
}

// lateRefusal returns the refusal of a container whose decision took too long.
func lateRefusal(c adjust.Container, err error) error {
	return c.Refuse(adjust.ReasonState, "nri-vgpu's agent did not answer in time (%w): kubelet will retry; if the refusals continue, check the agent's log and the node's disks", err)
}
