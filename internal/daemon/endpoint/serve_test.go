// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := Run(ctx, Options{Probes: http.NotFoundHandler()}); err != nil {
		t.Errorf("nowhere: %v", err)
	}
	address, probes := freeAddress(t), freeAddress(t)
	taken, err := net.Listen("tcp", probes)
	if err != nil {
		t.Fatal(err)
	}
	options := Options{
		Address: address, ProbeAddress: probes, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Probes: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }),
	}
	if err := Run(ctx, options); err == nil {
		t.Error("an address in use is served")
	}
	taken.Close()
	ended := make(chan error)
	go func() { ended <- Run(ctx, options) }()
	for _, url := range []string{"http://" + address + "/healthz", "http://" + probes + "/readyz"} {
		for {
			answer, err := http.Get(url)
			if err == nil {
				body, err := io.ReadAll(answer.Body)
				answer.Body.Close()
				if !strings.HasSuffix(url, string(body)) || err != nil {
					t.Errorf("%s answers %q, %v", url, body, err)
				}
				break
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the server did not end with its context: %v", err)
	}
}

// freeAddress returns a loopback address without a listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// TestSlowClientsAreDisconnected checks that the server disconnects a client that sends slowly,
// does not read, or has its answer. Meanwhile the server answers other clients.
func TestSlowClientsAreDisconnected(t *testing.T) {
	const short = 100 * time.Millisecond
	long := patience{header: time.Minute, read: time.Minute, write: time.Minute}
	for name, c := range map[string]struct {
		limit func(*patience)
		asks  string
	}{
		"header":   {func(p *patience) { p.header = short }, "GET / HTTP/1.1\r\n"},
		"body":     {func(p *patience) { p.read = short }, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"},
		"no reads": {func(p *patience) { p.write = short }, "GET /endless HTTP/1.1\r\nHost: x\r\n\r\n"},
		// The server answers one request of a connection.
		"served": {func(*patience) {}, "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"},
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
			go func() {
				ended <- serve(ctx, &counted{listener, &connections}, server{handler: mux, log: slog.New(slog.DiscardHandler)}, p)
			}()
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

// counted is a listener that counts its open connections.
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
