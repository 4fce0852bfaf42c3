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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/nri-vgpu/nri-vgpu/pkg/hook/adjust"
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
