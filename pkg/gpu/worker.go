package gpu

import (
	"context"
	"errors"
	"sync"
)

// errBusy says that an earlier call to the driver has not returned.
var errBusy = errors.New("an earlier call has not returned")

// Worker makes calls that may never return, one at a time, each on behalf of
// a caller who waits only so long. While a call hangs no other is started: a
// stuck driver costs one thread, not one per attempt. Its zero value is ready.
type Worker struct {
	mu   sync.Mutex
	busy bool
}

// Do runs call and waits for it until ctx ends. The call goes on then, and
// what it returns late is dropped. While an earlier call has not returned, it is
// an error at once.
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
