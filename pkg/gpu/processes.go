package gpu

import "context"

// Process is what the driver says of a process that computes on a GPU.
type Process struct {
	// PID is in the pid namespace of the agent, which is the host's.
	PID int
	// Bytes is what the process physically holds on the GPU, contexts
	// included; 0 where the driver does not tell.
	Bytes uint64
}

// Processes asks the driver which processes compute on each GPU, by UUID. GPUs
// that do not answer are missing. It waits as long as Refresh does, and changes
// nothing of what is known of the GPUs.
func (i *Inventory) Processes(ctx context.Context) (map[string][]Process, error) {
	ctx, cancel := context.WithTimeout(ctx, i.timeout)
	defer cancel()
	processes, err := ask(ctx, i, i.driver.Processes)
	if err != nil {
		return nil, i.explain(err)
	}
	return processes, nil
}

// ask makes a call of the driver when it is the caller's turn.
func ask[T any](ctx context.Context, i *Inventory, call func() (T, error)) (T, error) {
	var none T
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
		return do(ctx, &i.calls, call)
	case <-ctx.Done():
		return none, ctx.Err()
	}
}
