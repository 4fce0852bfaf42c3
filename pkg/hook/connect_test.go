// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
	"github.com/nri-vgpu/nri-vgpu/pkg/hook/store"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
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

// witness is an NRI plugin that records the last container that the runtime created.
type witness struct {
	mu       sync.Mutex
	adjusted bool     // the hook adjusted the container before the witness received it
	plugins  []string // the plugins that adjusted the container, in order
}

func (w *witness) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.adjusted = slices.ContainsFunc(c.GetEnv(), func(v string) bool { return strings.HasPrefix(v, adjust.VisibleDevices+"=") })
	return &api.ContainerAdjustment{}, nil, nil
}

func (w *witness) ValidateContainerAdjustment(_ context.Context, r *api.ValidateContainerAdjustmentRequest) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plugins = nil
	for _, p := range r.GetPlugins() {
		w.plugins = append(w.plugins, p.GetIndex()+"-"+p.GetName())
	}
	return nil
}

// TestPluginNameAndIndex checks that the runtime registers the plugin under the configured name, and
// calls the plugin at the configured index.
func TestPluginNameAndIndex(t *testing.T) {
	for index, want := range map[string][]string{
		"40": {"40-gpu-parts", "50-witness"},
		"60": {"50-witness", "60-gpu-parts"},
	} {
		t.Run(index, func(t *testing.T) {
			n := newNode(t, func(n *node) { n.cfg.NRI.PluginName, n.cfg.NRI.PluginIndex = "gpu-parts", index })
			w := &witness{}
			defer n.connect(w, "witness", "50").Stop()
			n.pod("u", "main=1024")
			eventually.Holds(t, 10*time.Second, "the runtime calls both plugins", func() bool {
				mustCreate(t, n, "u")
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.plugins) == 2
			})
			if !slices.Equal(w.plugins, want) {
				t.Errorf("the runtime called %v, want %v", w.plugins, want)
			}
			if first := want[1] == "50-witness"; w.adjusted != first {
				t.Errorf("with index %s, the witness received an adjusted container: %t", index, w.adjusted)
			}
		})
	}
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

// record is a log that several goroutines write.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) count(message string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.text.String(), message)
}

// TestConnectionsAreReported checks that the hook reports and logs each registration and each loss of
// the connection once.
func TestConnectionsAreReported(t *testing.T) {
	var log record
	var changes atomic.Int64
	n := newNode(t, func(n *node) {
		n.log = slog.New(slog.NewTextHandler(&log, nil))
		n.changed = func() { changes.Add(1) }
	})
	logged := func(message string, want int) {
		t.Helper()
		eventually.Holds(t, 10*time.Second, message+" is logged", func() bool { return log.count(message) == want })
	}
	logged("registered with the container runtime", 1)
	n.stopRuntime()
	logged("lost connection to the container runtime", 1)
	n.startRuntime()
	n.waitRegistered()
	logged("registered with the container runtime", 2)
	if got := changes.Load(); got != 3 {
		t.Errorf("%d changes of the registration were reported, want 3", got)
	}
}

// TestAMissingSocketIsReported checks that the error of an attempt names the setting of the socket.
func TestAMissingSocketIsReported(t *testing.T) {
	n := newNode(t)
	n.stopHook()
	n.hook.opts.Config.NRI.SocketPath = filepath.Join(n.dir, "missing.sock")
	if err := n.hook.session(t.Context()); err == nil || !strings.Contains(err.Error(), "nri.socket_path") {
		t.Errorf("got %v", err)
	}
}

// TestAttemptsToConnect checks that the plugin soon tries to connect about once a second, and that the
// log has one line about all attempts.
func TestAttemptsToConnect(t *testing.T) {
	dir, err := os.MkdirTemp("", "hook")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	files, err := store.New(filepath.Join(dir, "containers"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.NRI.SocketPath = filepath.Join(dir, "nri.sock")
	cfg.NRI.PluginIndex = "" // each attempt fails after it has connected
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.NRI.SocketPath})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var log record
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		New(Options{Config: cfg, Store: files, Log: slog.New(slog.NewTextHandler(&log, nil))}).Serve(ctx)
	})
	if err := listener.SetDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	attempts := 0
	for {
		conn, err := listener.Accept()
		if err != nil {
			break
		}
		conn.Close()
		attempts++
	}
	if attempts < 30 || attempts > 70 {
		t.Errorf("%d attempts within 30 s", attempts)
	}
	if got := log.count("lost connection to the container runtime"); got != 1 {
		t.Errorf("the log has %d lines about the attempts, want 1", got)
	}
}

// TestAttemptsAreSpread checks that the agents of a cluster do not connect at the same moments.
func TestAttemptsAreSpread(t *testing.T) {
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := jitter(time.Second)
		least, most = min(least, d), max(most, d)
	}
	if least < 500*time.Millisecond || least > 600*time.Millisecond || most < 900*time.Millisecond || most >= time.Second {
		t.Errorf("the pauses are from %v to %v, want 0.5 s to 1 s", least, most)
	}
}
