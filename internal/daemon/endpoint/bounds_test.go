// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func TestBoundsAreDocumented(t *testing.T) {
	documented.Bound(t, "connections to the ports of metrics and of the view, unread answers", fmt.Sprintf("%d for each address", mostConnections),
		fmt.Sprintf("%d new connections a second for each client", connectionsPerSecond),
		documented.Time(usual.header)+" for a header", documented.Time(usual.write)+" for an answer")
}

// pipes is a listener with in-process connections, which therefore follow a test's
// clock.
type pipes struct {
	incoming chan net.Conn
	closed   chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.incoming:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.incoming <- server
	return client
}

// TestClientsAreWaitedForSoLong checks that the documentation states the time-outs of clients.
func TestClientsAreWaitedForSoLong(t *testing.T) {
	for name, c := range map[string]struct {
		asks string
		// ends returns when the server closes the connection.
		ends func(client net.Conn, answered <-chan struct{})
		want time.Duration
	}{
		"half a header": {"GET / HTTP/1.1\r\n", func(client net.Conn, _ <-chan struct{}) { _, _ = io.Copy(io.Discard, client) }, 5 * time.Second},
		"no reads":      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", func(_ net.Conn, answered <-chan struct{}) { <-answered }, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answered := make(chan struct{})
				endless := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					defer close(answered)
					for err := error(nil); err == nil; {
						_, err = w.Write(make([]byte, 1<<20))
					}
				})
				listener := newPipes()
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() {
					ended <- serve(ctx, listener, server{handler: endless, log: slog.New(slog.DiscardHandler)}, usual)
				}()
				begin, client := time.Now(), listener.dial()
				defer client.Close()
				if _, err := io.WriteString(client, c.asks); err != nil {
					t.Fatal(err)
				}
				c.ends(client, answered)
				if took := time.Since(begin); took != c.want {
					t.Errorf("it was waited for for %v, want %v", took, c.want)
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
