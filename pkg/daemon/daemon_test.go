package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestConfig(t *testing.T) {
	if cfg, err := Config(""); err != nil || cfg.HTTP != config.Default().HTTP {
		t.Errorf("without a file: %+v, %v", cfg.HTTP, err)
	}
	path := filepath.Join(t.TempDir(), "config.toml")
	if _, err := Config(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is missing: %v", err)
	}
	if err := os.WriteFile(path, []byte("[http]\naddress = \":1\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if cfg, err := Config(path); err != nil || cfg.HTTP.Address != ":1" {
		t.Errorf("a file: %+v, %v", cfg.HTTP, err)
	}
}

func TestLogger(t *testing.T) {
	log, err := Logger(config.Log{Level: "warn", Format: "json"})
	if err != nil {
		t.Fatal(err)
	}
	if log.Enabled(t.Context(), 0) || !log.Enabled(t.Context(), 4) {
		t.Error("the level is not the one of the configuration")
	}
	if _, err := Logger(config.Log{Level: "loud"}); err == nil || !strings.Contains(err.Error(), "log.level") {
		t.Errorf("a level that is none: %v", err)
	}
}

func TestAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := APIServer("", "p"); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Errorf("outside of a cluster: %v", err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	content := `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://example.invalid"}}]
contexts: [{name: c, context: {cluster: c}}]
current-context: c
`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := APIServer(path, "p")
	if err != nil || cfg.Host != "https://example.invalid" || !strings.HasPrefix(cfg.UserAgent, "p/") {
		t.Errorf("by a kubeconfig: %+v, %v", cfg, err)
	}
}

func TestServe(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := Serve(ctx, "", nil); err != nil {
		t.Errorf("nowhere: %v", err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := taken.Addr().String()
	if err := Serve(ctx, address, nil); err == nil {
		t.Error("an address that somebody else has is served")
	}
	taken.Close()
	ended := make(chan error)
	go func() { ended <- Serve(ctx, address, http.NotFoundHandler()) }()
	for {
		answer, err := http.Get("http://" + address)
		if err == nil {
			answer.Body.Close()
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it was told to end: %v", err)
	}
}

// TestSlowClientsAreDisconnected: whoever asks slowly, does not read, or stays for nothing
// loses its connection, and others are answered meanwhile.
func TestSlowClientsAreDisconnected(t *testing.T) {
	const short = 100 * time.Millisecond
	long := patience{header: time.Minute, read: time.Minute, write: time.Minute, idle: time.Minute}
	for name, c := range map[string]struct {
		limit func(*patience)
		asks  string
	}{
		"header":   {func(p *patience) { p.header = short }, "GET / HTTP/1.1\r\n"},
		"body":     {func(p *patience) { p.read = short }, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"},
		"no reads": {func(p *patience) { p.write = short }, "GET /endless HTTP/1.1\r\nHost: x\r\n\r\n"},
		"idle":     {func(p *patience) { p.idle = short }, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := long
			c.limit(&p)
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var connections sync.WaitGroup
			mux := http.NewServeMux()
			mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
			mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
				for err := error(nil); err == nil; {
					_, err = w.Write(make([]byte, 1<<20))
				}
			})
			ended := make(chan error)
			go func() { ended <- serve(ctx, &counted{listener, &connections}, mux, p) }()
			slow, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer slow.Close()
			if _, err := slow.Write([]byte(c.asks)); err != nil {
				t.Fatal(err)
			}
			answer, err := http.Get("http://" + listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
			http.DefaultClient.CloseIdleConnections()
			gone := make(chan struct{})
			go func() { connections.Wait(); close(gone) }()
			select {
			case <-gone:
			case <-time.After(20 * time.Second):
				t.Error("the slow client is still connected")
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// counted tells when all connections that were accepted are closed.
type counted struct {
	net.Listener
	open *sync.WaitGroup
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &countedConn{Conn: conn, closed: sync.OnceFunc(c.open.Done)}, nil
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}
