// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// connected returns the number of connections to a server's port that the kernel lists.
func connected(t *testing.T, address string) int {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	const established = "01"
	count := 0
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 3 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", number)) && fields[3] == established {
			count++
		}
	}
	return count
}

// send opens a connection from a loopback address, with a small receive buffer, and sends a text. The
// connection stays open until the test ends. The server may close the connection at once.
func send(t *testing.T, from, to, text string) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	conn, err := dialer.DialContext(t.Context(), "tcp", to)
	if errors.Is(err, syscall.ECONNRESET) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_, _ = io.WriteString(conn, text)
}

// large returns a registry whose page exceeds the kernel's buffers of a connection.
func large(t *testing.T) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewRegistry()
	series := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "large", Help: strings.Repeat("x", 8<<20)}, []string{"n"})
	if err := registry.Register(series); err != nil {
		t.Fatal(err)
	}
	series.WithLabelValues("1").Set(1)
	return registry
}

// serveUntilEnd serves the endpoints until the test ends.
func serveUntilEnd(t *testing.T, options Options) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- Run(ctx, options) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestTenantsHoldEverything checks that tenants delay neither the kubelet nor Prometheus. The
// tenants hold as many connections as possible from any number of addresses, and do not read.
func TestTenantsHoldEverything(t *testing.T) {
	for name, from := range map[string]func(i int) string{
		"from one address":    func(int) string { return "127.0.0.2" },
		"from many addresses": func(i int) string { return fmt.Sprintf("127.0.%d.%d", 1+i/200, 1+i%200) },
	} {
		t.Run(name, func(t *testing.T) {
			options := Options{
				Address: freeAddress(t), ProbeAddress: freeAddress(t), Log: slog.New(slog.DiscardHandler), Metrics: large(t),
				Probes: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }),
			}
			serveUntilEnd(t, options)
			scrape(t, "http://"+options.Address+"/metrics", 5*time.Second)
			scrape(t, "http://"+options.ProbeAddress+"/healthz", 5*time.Second)
			for i := range 300 {
				send(t, from(i), options.Address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
				send(t, from(i), options.ProbeAddress, "")
			}
			for range 3 {
				scrape(t, "http://"+options.Address+"/metrics", 5*time.Second)
				scrape(t, "http://"+options.ProbeAddress+"/healthz", time.Second)
			}
			for _, address := range []string{options.Address, options.ProbeAddress} {
				// Some closed connections may still be listed.
				n := 0
				_ = eventually.Wait(5*time.Second, "", func() bool { n = connected(t, address); return n <= mostConnections })
				if n > mostConnections || n < mostConnections/2 {
					t.Errorf("%s has %d connections, want some %d", address, n, mostConnections)
				}
			}
		})
	}
}

// TestAFloodReachesTheServerAtItsPace checks that connections above the rate are closed before the
// HTTP server handles a request, while the kubelet gets answers.
func TestAFloodReachesTheServerAtItsPace(t *testing.T) {
	var asked atomic.Int64
	options := Options{ProbeAddress: freeAddress(t), Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Probes: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/flood" {
				asked.Add(1)
			}
			_, _ = io.WriteString(w, "ok")
		})}
	serveUntilEnd(t, options)
	scrape(t, "http://"+options.ProbeAddress+"/healthz", 5*time.Second)
	began := time.Now()
	for range 2000 {
		send(t, "127.0.0.2", options.ProbeAddress, "GET /flood HTTP/1.0\r\n\r\n")
	}
	scrape(t, "http://"+options.ProbeAddress+"/healthz", time.Second)
	if most := connectionsAtOnce + connectionsPerSecond*int64(1+time.Since(began).Seconds()); asked.Load() > most {
		t.Errorf("the server handled %d requests of a flood, want at most %d", asked.Load(), most)
	}
}

// scrape gets a page over a new connection, within limit.
func scrape(t *testing.T, url string, limit time.Duration) string {
	t.Helper()
	client := &http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true}}
	var answer *http.Response
	var err error
	for deadline := time.Now().Add(limit); ; {
		answer, err = client.Get(url)
		if err == nil || !strings.Contains(err.Error(), "refused") || time.Now().After(deadline) {
			break // an error means that the server does not listen yet
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s answers %s, %v", url, answer.Status, err)
	}
	return string(body)
}

func TestClientOf(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:80": "10.0.0.1", "[::ffff:10.0.0.1]:80": "10.0.0.1",
		"[fd00:1:2:3::9]:80": "fd00:1:2:3::", "[fd00:1:2:3:4::]:80": "fd00:1:2:3::", "[fe80::1%eth0]:80": "fe80::",
		"@": "invalid IP",
	} {
		if got := clientOf(address).String(); got != want {
			t.Errorf("%s is of client %s, want %s", address, got, want)
		}
	}
}
