// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// gathered counts collections. Each collection takes some time.
type gathered struct {
	prometheus.Gatherer
	times, now, atOnce atomic.Int64
	takes              time.Duration
	err                error
}

func (g *gathered) Gather() ([]*dto.MetricFamily, error) {
	g.times.Add(1)
	g.atOnce.Store(max(g.atOnce.Load(), g.now.Add(1)))
	defer g.now.Add(-1)
	time.Sleep(g.takes)
	families, err := g.Gatherer.Gather()
	return families, errors.Join(err, g.err)
}

// TestManyAskAtOnce checks that with many concurrent clients, collections do not overlap, and begin at
// most twice a second. No client gets a page that is older than its request.
func TestManyAskAtOnce(t *testing.T) {
	registry := prometheus.NewRegistry()
	value := prometheus.NewGauge(prometheus.GaugeOpts{Name: "value", Help: "h"})
	registry.MustRegister(value)
	from := &gathered{Gatherer: registry, takes: 20 * time.Millisecond}
	pages := Metrics(from, slog.New(slog.DiscardHandler))
	began := time.Now()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for time.Since(began) < 2*time.Second {
				get(t, pages)
			}
		})
	}
	all.Wait()
	took := time.Since(began)
	if n := from.atOnce.Load(); n != 1 {
		t.Errorf("metrics were collected %d times at once", n)
	}
	if n, most := from.times.Load(), int64(took/pause)+1; n > most || n < 2 {
		t.Errorf("in %v metrics were collected %d times, want at most %d", took, n, most)
	}
	value.Set(7)
	if body := get(t, pages); !strings.Contains(body, "value 7\n") {
		t.Errorf("a client got a page from before its request:\n%s", body)
	}
}

// TestSharedPages checks that a client gets the results of a collection that runs, and not the results
// of a collection that has ended.
func TestSharedPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, end := 0, make(chan struct{})
		pages := SharedPages("text/plain", func() []byte {
			n++
			<-end
			return []byte(strconv.Itoa(n))
		})
		got := make(chan string, 2)
		for range 2 {
			go func() { got <- get(t, pages) }()
			synctest.Wait() // the collection has begun
		}
		close(end)
		if first, second := <-got, <-got; first != "1" || second != "1" {
			t.Errorf("clients get %s and %s, want 1", first, second)
		}
		if later := get(t, pages); later != "2" {
			t.Errorf("a later client gets %s, want 2", later)
		}
		time.Sleep(2 * pause) // the last goroutine ends
	})
}

func get(t *testing.T, h http.Handler) string {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody)
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, request)
	return answer.Body.String()
}

// TestPage checks that a client that accepts gzip gets a compressed page. If one collector fails,
// the page has the series of the other collectors.
func TestPage(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "value", Help: "h"}))
	var log strings.Builder
	pages := Metrics(&gathered{Gatherer: registry, err: errors.New("another is wrong")}, slog.New(slog.NewTextHandler(&log, nil)))
	server := httptest.NewServer(pages)
	defer server.Close()
	answer, err := http.Get(server.URL) // the client requests gzip and decompresses the page
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if !answer.Uncompressed || !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Errorf("gzip: %v, %s", answer.Uncompressed, answer.Header)
	}
	if body := scrape(t, server.URL, 5*time.Second); !strings.Contains(body, "value 0\n") {
		t.Errorf("series are missing:\n%s", body)
	}
	if !strings.Contains(log.String(), "another is wrong") {
		t.Errorf("the log lacks the error: %s", log.String())
	}
}
