// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
)

// ErrNoEvent reports that no event arrived in time.
var ErrNoEvent = errors.New("no event")

const (
	// eventPatience is the time for which the driver waits for an event. The driver returns at once
	// when an event arrives. Between waits, Events registers for new GPUs.
	eventPatience = 5 * time.Second
	// eventRetry is the pause after a failure of the driver.
	eventRetry = time.Second
)

// Events receives the driver's reports of errors. The calls of Events may fail
// and may never return. Only one goroutine calls Events.
type Events interface {
	// Next returns the next XID, or ErrNoEvent if no XID arrives within the
	// time.
	Next(patience time.Duration) (XID, error)
	Close()
}

// WatchOptions configure the handling of the driver's reports.
type WatchOptions struct {
	// Ignored are XIDs that leave a GPU healthy.
	Ignored []int
	// Changed is called when a GPU may have become unhealthy. Changed must not
	// block.
	Changed func()
	Log     *slog.Logger
}

var errSilent = errors.New("the driver does not answer")

// Watch processes the driver's reports until ctx ends. A driver that hangs
// blocks one goroutine; Refresh then detects that the GPUs are unusable.
func (i *Inventory) Watch(ctx context.Context, source Events, opts WatchOptions) {
	ignored := func(number uint64) bool { return slices.Contains(opts.Ignored, int(number)) }
	reports := follow(ctx, source)
	var failure loop.Failure
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(eventPatience + i.timeout):
			opts.noteReports(failure.Note(errSilent), errSilent)
		case r := <-reports:
			switch {
			case r.err == nil:
				opts.noteReports(failure.Note(nil), nil)
				i.take(ctx, r.xid, ignored, opts)
			case errors.Is(r.err, ErrNoEvent):
				opts.noteReports(failure.Note(nil), nil)
			default:
				opts.noteReports(failure.Note(r.err), r.err)
			}
		}
	}
}

// take processes one XID. take logs ignored XIDs at debug level and triggers no
// refresh for them: a tenant's applications can cause thousands of XIDs.
func (i *Inventory) take(ctx context.Context, x XID, ignored func(uint64) bool, opts WatchOptions) {
	unhealthy := i.report(x, ignored, time.Now())
	level := slog.LevelDebug
	if unhealthy {
		level = slog.LevelError
	}
	opts.Log.Log(ctx, level, "received an XID from the driver", "xid", x.Number, "gpu", x.UUID, "unhealthy", unhealthy)
	if unhealthy || x.Number == recoveryChanged {
		opts.Changed()
	}
}

// noteReports logs once when the driver's reports become unavailable, and once when
// they are available again. noteReports triggers a refresh when the reports become
// unavailable.
func (o WatchOptions) noteReports(change loop.Change, err error) {
	switch change {
	case loop.Unchanged:
	case loop.Recovered:
		o.Log.Info("subscribed to the driver's error reports again")
	case loop.Failed:
		o.Log.Warn("failed to subscribe to the driver's error reports; polling the GPUs every few seconds", "error", err)
		o.Changed()
	}
}

type report struct {
	xid XID
	err error
}

// follow waits for events in a separate goroutine, which a hanging driver may
// block forever.
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
				loop.Sleep(ctx, eventRetry)
			}
		}
	}()
	return reports
}
