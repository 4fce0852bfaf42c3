// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// listen makes the hook connect to a runtime that accepts connections and does not
// answer.
func (n *node) listen() net.Listener {
	n.t.Helper()
	n.stopHook()
	n.hook.opts.Config.NRI.SocketPath = filepath.Join(n.dir, "silent.sock")
	listener, err := net.Listen("unix", n.hook.opts.Config.NRI.SocketPath)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { listener.Close() })
	return listener
}

// wantClosed checks that the other end of a connection is closed.
func wantClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Errorf("the connection is open: %v", err)
	}
}

func TestASilentRuntimesConnectionEndsWithTheAgent(t *testing.T) {
	n := newNode(t)
	listener := n.listen()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- n.hook.session(ctx) }()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatalf("the plugin sends nothing: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("session() = %v", err)
	}
	wantClosed(t, conn)
}

// TestAPluginThatCannotBeSetUpKeepsNoConnection checks that a failed session closes its connection,
// so that attempts leak no connections.
func TestAPluginThatCannotBeSetUpKeepsNoConnection(t *testing.T) {
	n := newNode(t)
	listener := n.listen()
	n.hook.opts.Config.NRI.PluginIndex = ""
	if err := n.hook.session(context.Background()); err == nil {
		t.Error("session() without an index is no error")
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantClosed(t, conn)
}

// TestTheStubsMessagesGoToTheLog checks that the stub's informational messages appear at debug
// level, and its warnings and errors at their own levels.
func TestTheStubsMessagesGoToTheLog(t *testing.T) {
	for level, want := range map[slog.Level]string{
		slog.LevelDebug: "DEBUG msg=debug-1 DEBUG msg=info-2 WARN msg=warn-3 ERROR msg=error-4",
		slog.LevelInfo:  "WARN msg=warn-3 ERROR msg=error-4",
		slog.LevelError: "ERROR msg=error-4",
	} {
		var log bytes.Buffer
		var none context.Context // the stub may pass a nil context
		l := stubLog{slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level}))}
		l.Debugf(t.Context(), "debug-%d", 1)
		l.Infof(none, "info-%d", 2)
		l.Warnf(t.Context(), "warn-%d", 3)
		l.Errorf(none, "error-%d", 4)
		var got []string
		for line := range strings.Lines(log.String()) {
			_, message, _ := strings.Cut(strings.TrimSpace(line), " level=")
			got = append(got, message)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("at %v the log is %q, want %q", level, got, want)
		}
	}
}
