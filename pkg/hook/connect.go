// SPDX-License-Identifier: Apache-2.0

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

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/internal/nri"
)

const (
	firstBackoff = 100 * time.Millisecond
	// maxBackoff is short: until the plugin reconnects, a restarted runtime
	// creates containers without it. An attempt is cheap.
	maxBackoff = time.Second
	// registrationPatience bounds the time from connecting to receiving the
	// runtime's containers. The runtime itself stops waiting after 5 s.
	registrationPatience = 15 * time.Second
	// steadyAfter is the duration of a connection that resets the backoff.
	steadyAfter = time.Minute
)

var errNotRegistered = errors.New("the runtime did not register the plugin in time")

// Serve keeps the plugin registered with the runtime until ctx ends. A runtime restart causes only
// a lost connection, so Serve retries without end. The end of Serve does not affect containers.
func (h *Hook) Serve(ctx context.Context) {
	backoff := firstBackoff
	var failure loop.Failure
	for {
		begin := time.Now()
		err := h.session(ctx)
		h.setRegistered(false)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begin) > steadyAfter {
			backoff, failure = firstBackoff, loop.Failure{}
		}
		// Log a repeated failure once, not once a second.
		if failure.Note(err) == loop.Failed {
			h.opts.Log.Warn("lost connection to the container runtime; retrying", "error", err)
		}
		if !loop.Sleep(ctx, jitter(backoff)) {
			return
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// jitter spreads attempts over [d/2, d).
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2)
}

// session runs one connection, from dialling until the connection is lost.
func (h *Hook) session(ctx context.Context) error {
	conn, err := dial(ctx, h.opts.Config.NRI.SocketPath)
	if err != nil {
		return err
	}
	// The stub blocks forever if the runtime disappears between registering and
	// configuring the plugin. Closing the connection is the only remedy, and
	// leaks the goroutine.
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
	h.opts.Log.Info("registered with the container runtime")
	return lost(<-ended)
}

func lost(err error) error {
	if err == nil {
		return errors.New("the connection was closed")
	}
	return fmt.Errorf("serve the runtime: %w", err)
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
		stub.WithPluginName(h.opts.Config.NRI.PluginName),
		stub.WithPluginIdx(h.opts.Config.NRI.PluginIndex),
		stub.WithConnection(conn),
		stub.WithLogger(stubLog{h.opts.Log}),
		nri.Synchronizing(h.reduce),
		// By this policy, a runtime with NRI 0.12.4 or newer refuses a container if the plugin does
		// not answer. Older runtimes ignore the policy, so checkStart must refuse the containers
		// that they create.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}),
	)
	if err != nil {
		return nil, fmt.Errorf("set up the NRI plugin: %w", err)
	}
	e.nriVersion = st.RuntimeNRIVersion
	return st, nil
}

// stubLog forwards the stub's messages to the log, its informational messages
// at debug level.
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
	if l.Enabled(ctx, level) {
		l.Log(ctx, level, fmt.Sprintf(format, args...))
	}
}
