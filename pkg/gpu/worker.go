// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"context"
	"errors"
	"sync"
)

// errBusy reports that an earlier call to the driver has not returned.
var errBusy = errors.New("an earlier call has not returned")

// Worker runs calls that may never return, one at a time. Each caller waits for
// a bounded time. While a call hangs, Worker starts no other call: a hanging
// driver blocks one thread, not one per attempt. The zero value is ready to use.
type Worker struct {
	mu   sync.Mutex
	busy bool
}

// Do runs call and waits for its result until ctx ends. If ctx ends first, the call continues, and
// Do drops the call's result. While an earlier call has not returned, Do fails at once.
func Do[T any](ctx context.Context, w *Worker, call func() (T, error)) (T, error) {
	var none T
	if !w.take() {
		return none, errBusy
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := call()
		w.release()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

func (w *Worker) take() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy {
		return false
	}
	w.busy = true
	return true
}

func (w *Worker) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = false
}
