package gpu

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// ErrNoEvent says that no event came in time.
var ErrNoEvent = errors.New("no event")

const (
	// eventPatience is how long the driver is asked to wait for an event. It
	// answers at once when there is one; in between, GPUs that came are
	// taken in.
	eventPatience = 5 * time.Second
	// eventRetry is the pause after the driver has failed.
	eventRetry = time.Second
)

// Events are the driver's reports of errors. Its calls may fail and may never
// return; they are made by one goroutine.
type Events interface {
	// Next gives the next XID, or ErrNoEvent if none comes within the time.
	Next(patience time.Duration) (XID, error)
	Close()
}

// WatchOptions say what to make of the driver's reports.
type WatchOptions struct {
	// Ignored are XIDs that leave a GPU healthy.
	Ignored []int
	// Changed is called when a GPU may be unhealthy now. It must not block.
	Changed func()
	Log     *slog.Logger
}

// Watch takes the driver's reports in until ctx ends. A driver that hangs costs
// one goroutine: that the GPUs cannot be used then is seen by Refresh.
func (i *Inventory) Watch(ctx context.Context, source Events, opts WatchOptions) {
	ignored := func(number uint64) bool { return slices.Contains(opts.Ignored, int(number)) }
	reports := follow(ctx, source)
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(eventPatience + i.timeout):
			failed = opts.tell(failed, "the driver does not answer")
		case r := <-reports:
			switch {
			case r.err == nil:
				failed = opts.tell(failed, "")
				i.take(r.xid, ignored, opts)
			case errors.Is(r.err, ErrNoEvent):
				failed = opts.tell(failed, "")
			default:
				failed = opts.tell(failed, r.err.Error())
			}
		}
	}
}

// take judges one XID. Those that applications cause are not worth a line each,
// nor a look at the GPUs: a tenant can make thousands.
func (i *Inventory) take(x XID, ignored func(uint64) bool, opts WatchOptions) {
	unhealthy := i.report(x, ignored, time.Now())
	level := slog.LevelDebug
	if unhealthy {
		level = slog.LevelError
	}
	opts.Log.Log(context.Background(), level, "the driver reports an XID", "xid", x.Number, "gpu", x.UUID, "unhealthy", unhealthy)
	if unhealthy || x.Number == recoveryChanged {
		opts.Changed()
	}
}

// tell says once that the driver's reports cannot be had, or can again. The
// GPUs are looked at then.
func (o WatchOptions) tell(before, now string) string {
	switch {
	case before == now:
	case now == "":
		o.Log.Info("the driver's reports of errors are heard again")
	default:
		o.Log.Warn("the driver's reports of errors cannot be heard: GPUs are looked at every few seconds only", "error", now)
		o.Changed()
	}
	return now
}

type report struct {
	xid XID
	err error
}

// follow asks for events in a goroutine of its own, which a hanging driver may
// keep for ever.
func follow(ctx context.Context, source Events) <-chan report {
	reports := make(chan report)
	go func() {
		defer source.Close()
		for ctx.Err() == nil {
			var r report
			r.xid, r.err = source.Next(eventPatience)
			select {
			case reports <- r:
			case <-ctx.Done():
				return
			}
			if r.err != nil && !errors.Is(r.err, ErrNoEvent) {
				pause(ctx, eventRetry)
			}
		}
	}()
	return reports
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
