package hook

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/nri-vgpu/nri-vgpu/pkg/runtimes"
)

const (
	firstBackoff = 100 * time.Millisecond
	// maxBackoff is short: until we are back, a runtime that has restarted
	// creates containers without us, and to try costs nothing.
	maxBackoff = time.Second
	// registrationPatience bounds the time from connecting to knowing the
	// runtime's containers. The runtime itself gives up after 5 s.
	registrationPatience = 15 * time.Second
	// steadyAfter is how long a connection must have held for the next
	// attempt to come at once.
	steadyAfter = time.Minute
)

var errNotRegistered = errors.New("the runtime did not register the plugin in time")

// Serve keeps the plugin registered with the runtime until ctx ends: a lost
// connection is the only sign of a runtime that restarts, and it comes back by
// itself, so there is no last attempt. Containers are not touched when it ends.
func (h *Hook) Serve(ctx context.Context) {
	backoff := firstBackoff
	said := ""
	for {
		begin := time.Now()
		err := h.session(ctx)
		h.setRegistered(false)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begin) > steadyAfter {
			backoff, said = firstBackoff, ""
		}
		// The same trouble is worth one line, not one a second.
		if err.Error() != said {
			said = err.Error()
			h.Log.Warn("not connected to the container runtime; trying on", "error", err)
		}
		if !sleep(ctx, jitter(backoff)) {
			return
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// jitter spreads attempts over [d/2, d).
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2)
}

// sleep tells whether it slept to the end.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// session is one connection, from dialling to its loss.
func (h *Hook) session(ctx context.Context) error {
	conn, err := dial(ctx, h.Config.NRI.SocketPath)
	if err != nil {
		return err
	}
	// The stub waits for ever for a runtime that goes away between
	// registering and configuring it. Closing the connection under it is all
	// that can be done; the goroutine is lost then.
	defer conn.Close()
	e := &edge{Hook: h, synced: make(chan struct{})}
	st, err := h.stub(e, conn)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- st.Run(ctx) }()
	select {
	case err := <-ended:
		return lost(err)
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(registrationPatience):
		return errNotRegistered
	case <-e.synced:
	}
	h.Log.Info("registered with the container runtime")
	return lost(<-ended)
}

func lost(err error) error {
	if err == nil {
		return errors.New("the connection was closed")
	}
	return fmt.Errorf("NRI plugin: %w", err)
}

func dial(ctx context.Context, path string) (net.Conn, error) {
	var dialer net.Dialer
	ctx, cancel := context.WithTimeout(ctx, registrationPatience)
	defer cancel()
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("reach the runtime's NRI socket (nri.socket_path; containerd 1.7 needs NRI enabled in its configuration): %w", err)
	}
	return conn, nil
}

func (h *Hook) stub(e *edge, conn net.Conn) (stub.Stub, error) {
	st, err := stub.New(e,
		stub.WithPluginName(h.Config.NRI.PluginName),
		stub.WithPluginIdx(h.Config.NRI.PluginIndex),
		stub.WithConnection(conn),
		stub.WithLogger(stubLog{h.Log}),
		runtimes.Synchronizing(h.reduce),
		// A runtime with NRI 0.12.4 or newer then refuses a container for
		// which we do not answer; older ones ignore it, and checkStart has to
		// catch what they let through.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}),
	)
	if err != nil {
		return nil, fmt.Errorf("set up the NRI plugin: %w", err)
	}
	e.nriVersion = st.RuntimeNRIVersion
	return st, nil
}

// stubLog takes the stub's messages; its information is for debugging.
type stubLog struct{ *slog.Logger }

func (l stubLog) Debugf(ctx context.Context, format string, args ...any) {
	l.log(ctx, slog.LevelDebug, format, args)
}

func (l stubLog) Infof(ctx context.Context, format string, args ...any) {
	l.log(ctx, slog.LevelDebug, format, args)
}

func (l stubLog) Warnf(ctx context.Context, format string, args ...any) {
	l.log(ctx, slog.LevelWarn, format, args)
}

func (l stubLog) Errorf(ctx context.Context, format string, args ...any) {
	l.log(ctx, slog.LevelError, format, args)
}

func (l stubLog) log(ctx context.Context, level slog.Level, format string, args []any) {
	if ctx == nil {
		ctx = context.Background()
	}
	if l.Enabled(ctx, level) {
		l.Log(ctx, level, fmt.Sprintf(format, args...))
	}
}
